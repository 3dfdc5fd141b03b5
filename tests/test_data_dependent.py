"""Python that goes on with a tensor's value: one program for each path, each a readable trace, never a stale answer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils import rnn

import tracemill as tm
from tests.programs import computation_inputs, run_text

MIXED = torch.tensor([1.0, 2.0, -3.0, 4.0])
POSITIVE = torch.tensor([1.0, 2.0, 3.0, 4.0])
ZEROS = torch.zeros(4)


def assert_like_eager(
    fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], **options: Any
) -> Any:
    """Runs each call in eager and jitted from one seed; values and random states must be the same bits."""
    jitted = tm.jit(fn, **options)
    for args in calls:
        torch.manual_seed(7)
        wanted, wanted_state = fn(*args), torch.get_rng_state()
        torch.manual_seed(7)
        got, state = jitted(*args), torch.get_rng_state()
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(state, wanted_state)
    return jitted


def branch(x: torch.Tensor) -> torch.Tensor:
    if (x > 0).all():
        return x * 2
    return -x


def branch_after_a_draw(x: torch.Tensor) -> torch.Tensor:
    noise = torch.rand(4)
    if (x > 0).all():
        return noise + torch.rand(4)
    return noise * torch.randn(4)


def branch_after_a_write(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.add_(1)
    if y.sum() > 10:
        y.mul_(2)
    return y


def branch_on_a_draw(x: torch.Tensor) -> torch.Tensor:
    noise = torch.rand(())
    return x + noise if noise.item() > 0.5 else x - noise


def loop_until_small(x: torch.Tensor) -> torch.Tensor:
    while x.abs().max() > 1:
        x = x / 2
    return x


def counted(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(int((x > 0).sum()) + 1)


def rows(x: torch.Tensor) -> torch.Tensor:
    return sum((row * 2 for row in x[x > 0]), torch.zeros(()))


def listed(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * value for value in x.tolist()]


PROGRAMS: dict[str, Callable[..., Any]] = {
    "branch": branch,
    "branch_after_a_draw": branch_after_a_draw,
    "branch_after_a_write": branch_after_a_write,
    "branch_on_a_draw": branch_on_a_draw,
    "loop_until_small": loop_until_small,
    "counted": counted,
    "rows": rows,
    "listed": listed,
    "item": lambda x: x * x.sum().item(),
    "truth": lambda x: x + 1 if x.sum() else x - 1,
    "nonzero": lambda x: x.nonzero(),
    "nonzero_as_tuple": lambda x: x.nonzero(as_tuple=True),
    "mask": lambda x: x[x > 0].sum(),
    "masked_select": lambda x: x.masked_select(x > 1) * 2,
    "unique": lambda x: torch.unique(x > 0, return_counts=True),
    "length": lambda x: x * len(x.nonzero()),
    "repeat_interleave": lambda x: x.repeat_interleave(x.abs().long()),
    "arange": lambda x: torch.arange(x.abs().sum()),
    "equal": lambda x: x if torch.equal(x, x.abs()) else -x,
    "contains": lambda x: x if 2.0 in x else -x,
    "cond": lambda x: torch.cond(x.sum() > 5, torch.sin, torch.cos, (x,)),
    "index": lambda x: x[x.abs().argmax()] * 2,
    "array": lambda x: x * float(x.numpy().sum()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_random_states_are_eagers_whatever_path_comes_next(name: str) -> None:
    calls = [(x,) for x in (MIXED, POSITIVE, ZEROS, MIXED, ZEROS, POSITIVE)]
    assert_like_eager(PROGRAMS[name], calls)


@given(st.lists(st.sampled_from([-2.0, -0.0, 0.0, 1.0, 3.0, float("nan")]), min_size=3, max_size=3))
@settings(max_examples=40, deadline=None)
def test_every_float_has_a_path_of_its_own(values: list[float]) -> None:
    jitted = _reciprocal
    x = torch.tensor(values)
    torch.testing.assert_close(
        jitted(x), _reciprocal.__wrapped__(x), rtol=0, atol=0, equal_nan=True
    )


@tm.jit
def _reciprocal(x: torch.Tensor) -> torch.Tensor:
    first = x[0].item()  # the sign of a zero matters to 1 / x
    return torch.full((1,), first).reciprocal() + x


def test_two_paths_are_two_programs_and_each_is_found_again() -> None:
    jitted = assert_like_eager(branch, [(MIXED,), (POSITIVE,)] * 5)

    assert tm.cache_info(jitted) == tm.CacheInfo(hits=8, misses=2, entries=2)


def test_the_path_is_a_line_of_plain_python(golden: Callable[[str, str], None]) -> None:
    jitted = tm.jit(branch, printer="minimal")
    jitted(POSITIVE)

    golden(tm.last_traces(jitted)[-1].text("minimal"), "branch")


def test_a_printed_path_runs_alone_and_says_when_the_path_is_another() -> None:
    jitted = tm.jit(branch, printer="minimal")
    jitted(POSITIVE)
    text = tm.last_traces(jitted)[-1].text("minimal")

    assert torch.equal(run_text(text, computation_inputs(jitted, POSITIVE)), POSITIVE * 2)
    with pytest.raises(AssertionError, match=r"another path: test_data_dependent.py:\d+"):
        run_text(text, [MIXED])


def test_reading_a_value_leaves_no_line_of_its_own() -> None:
    trace = tm.trace(lambda x: x[x > 0] * 2, MIXED)

    assert [line.sym.name for line in trace.bound_symbols] == [
        "torch.Tensor.gt",
        "torch.Tensor.__getitem__",
        "path",
        "torch.Tensor.mul",
    ]


def test_a_program_without_values_has_no_check() -> None:
    jitted = tm.jit(lambda x: x * torch.arange(4).sum().item())
    jitted(MIXED)

    assert "AssertionError" not in tm.last_traces(jitted)[-1].text()


def test_inputs_that_share_memory_do_so_in_the_environment_too() -> None:
    def fn(x: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
        return x * view.sum().item() + x.sum().item()

    base = torch.arange(6.0)
    assert_like_eager(fn, [(base, base[1:3]), (base + 1, base[1:3])])


def test_a_mistake_in_the_program_stays_eagers_own_error() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            raise AssertionError("another path")
        return x

    jitted = tm.jit(fn)
    torch.testing.assert_close(jitted(-POSITIVE), -POSITIVE)
    with pytest.raises(AssertionError, match=r"^another path$"):
        jitted(POSITIVE)


def test_a_value_that_changes_at_each_call_is_refused_when_the_paths_are_used_up() -> None:
    jitted = tm.jit(lambda x: x * x.sum().item(), paths=3)
    for number in range(3):
        jitted(POSITIVE + number)
    state = torch.get_rng_state()

    with pytest.raises(tm.DataDependentError, match=r"taken 3 paths.*\n.*paths=6"):
        jitted(POSITIVE + 3)
    assert torch.equal(torch.get_rng_state(), state)


def test_same_input_checks_nothing_and_so_refuses_a_value() -> None:
    jitted = tm.jit(branch, cache="same input")

    with pytest.raises(tm.DataDependentError) as raised:
        jitted(POSITIVE)
    message = str(raised.value)
    assert "torch.Tensor.__bool__ needs the data of a tensor" in message
    assert f'File "{__file__}"' in message
    assert "if (x > 0).all():" in message
    assert "the result of torch.Tensor.all" in message
    assert '"cpu b8[]"' in message
    assert "torch.where" in message


def test_no_caching_follows_each_path() -> None:
    assert_like_eager(branch, [(MIXED,), (POSITIVE,)], cache="no caching")


def test_a_long_list_is_refused_by_name() -> None:
    jitted = tm.jit(lambda x: x.tolist())

    with pytest.raises(tm.DataDependentError, match=r"5000 elements"):
        jitted(torch.zeros(5000))


def test_writing_to_an_array_of_an_input_is_left_to_eager() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.numpy()[0] = 5
        return x

    x = POSITIVE.clone()
    with pytest.warns(UserWarning, match=r"ValueError when it is traced.*read-only"):
        tm.jit(fn)(x)
    assert x[0] == 5


def test_text_of_a_value_is_the_value_of_the_call() -> None:
    jitted = tm.jit(lambda x: (x, f"{x[0]:.2f} of {x}"))
    for x in (POSITIVE, MIXED * 2):
        assert jitted(x)[1] == f"{x[0]:.2f} of {x}"


def test_packed_sequences_run_on_the_lengths_of_the_call() -> None:
    """What a recurrent layer makes of packed data goes by lengths that only the values tell."""
    layer = torch.nn.GRU(3, 4, bidirectional=True)

    def fn(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        packed = rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        made, state = layer(packed)
        return *rnn.pad_packed_sequence(made), state

    x = torch.randn(5, 2, 3)
    for weights in (torch.no_grad(), torch.enable_grad()):
        with weights:
            assert_like_eager(fn, [(x, torch.tensor(pair)) for pair in ([5, 3], [2, 5], [5, 3])])


def test_packed_sequences_are_arguments_and_train() -> None:
    layer = torch.nn.LSTM(3, 4)
    jitted = tm.jit(layer)
    packed = rnn.pack_padded_sequence(torch.randn(5, 2, 3), torch.tensor([5, 2]))
    gradients = [
        torch.autograd.grad(run(packed)[0].data.square().sum(), list(layer.parameters()))
        for run in (layer, jitted, jitted)
    ]
    assert type(jitted(packed)[0]) is rnn.PackedSequence
    assert all(map(torch.equal, gradients[0], gradients[1]))
    assert all(map(torch.equal, gradients[0], gradients[2]))


def test_a_call_that_is_wrong_for_its_values_has_eagers_error() -> None:
    one, other = torch.ones(3, 2, dtype=torch.int64), torch.ones(3, 2, dtype=torch.int64)
    for cache in ("constant values", "same input"):
        with pytest.raises(RuntimeError, match=r"cannot be multiplied \(3x2 and 3x2\)"):
            tm.jit(torch.matmul, cache=cache)(one, other)


def test_a_view_by_a_number_in_a_tensor_is_one_program_for_all_numbers() -> None:
    x = torch.arange(8.0).reshape(4, 2)
    calls = [(x, torch.tensor(number)) for number in range(4)]
    jitted = assert_like_eager(lambda x, i: x[i] * 2, calls)

    assert tm.cache_info(jitted).entries == 1


def test_a_write_to_such_a_view_reaches_its_own_part() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        row = y[i]
        row.mul_(10)
        return y

    x = torch.arange(8.0).reshape(4, 2)
    assert_like_eager(fn, [(x, torch.tensor(number)) for number in (1, 3, 1, 0)])


def test_what_a_first_call_was_given_is_freed_without_the_garbage_collector() -> None:
    jitted = tm.jit(branch)
    gc.collect()
    gc.disable()
    try:
        x = POSITIVE.clone()
        alive = weakref.ref(x)
        jitted(x)
        del x
        assert alive() is None
    finally:
        gc.enable()
