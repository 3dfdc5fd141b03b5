"""Symbolic values: one specialisation for many shapes, right for each, and Python's numbers as eager has them."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tracemill as tm
from tests.models import bert, gpt2, llama
from tests.specialisations import ASKS_MORE, has_entries
from tracemill.passes.interpretation.python.python_numbers import asking_pytorch, like_plain_numbers

pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again")
Program = Callable[..., Any]


def symbolic(program: Program) -> Any:
    return tm.jit(program, cache="symbolic values")


def agrees(program: Program, *calls: tuple[Tensor, ...], entries: int = 1) -> Any:
    """The jitted program, after calls whose results are eager's and that needed `entries` specialisations."""
    jitted = symbolic(program)
    with torch.no_grad():
        for call in calls:
            want, got = program(*call), jitted(*call)
            assert type(got) is type(want)
            torch.testing.assert_close(got, want, rtol=0, atol=0)
    has_entries(jitted, entries)
    return jitted


def halves(a: Tensor) -> Tensor:
    return a[..., : (a.shape[-1] // 2)]


def tensors(*shapes: tuple[int, ...]) -> list[tuple[Tensor]]:
    return [(torch.randn(shape),) for shape in shapes]


@pytest.mark.skipif(ASKS_MORE, reason="PyTorch 2.10 asks more of sizes, which the prologue shows")
def test_the_computation_takes_the_numbers_that_it_needs(golden: Any) -> None:
    jitted = agrees(halves, *tensors((2, 9), (3, 8), (4, 7), (10, 2)))
    golden(str(tm.last_traces(jitted)[-1]), "computation")
    golden(str(tm.last_prologue_traces(jitted)[-1]), "prologue")


def test_the_texts_of_other_printers() -> None:
    trace = tm.last_traces(agrees(halves, *tensors((2, 9), (3, 8))))[-1]
    assert "# for the sizes of the call that was traced:" in trace.text("verbose")
    scope: dict[str, Any] = {"__name__": "script"}
    exec(trace.text("script"), scope)
    for chosen in ((), (3, 8), (5, 2)):
        a, last = scope["example_inputs"](*reversed(chosen))
        assert a.shape == (tuple(reversed(chosen)) or (2, 9))
        assert torch.equal(scope["computation"](a, last), halves(a))


def test_a_trace_of_indices_that_are_arguments() -> None:
    a = torch.randn(2, 9)
    trace = tm.trace(lambda a, index: a[index], a, (..., slice(None, 8, None)))
    assert torch.equal(trace(a), a[..., :8])


def test_sizes_0_and_1_specialise() -> None:
    agrees(halves, *tensors((2, 9), (1, 9), (2, 1), (0, 9)), entries=4)


def test_other_strides_are_another_specialisation() -> None:
    agrees(
        halves,
        *tensors((4, 6), (5, 7)),
        (torch.randn(6, 4).t(),),
        (torch.randn(7, 5).t(),),
        entries=2,
    )
    agrees(lambda x: x.view(-1), *tensors((4, 6), (5, 7)))


def test_a_view_into_a_larger_tensor() -> None:
    base = torch.randn(10, 12)
    agrees(lambda x: (x + 1, x.storage_offset()), (base[2:],), (base[4:],), (base,), entries=3)


def test_guards_that_python_needed() -> None:
    def program(x: Tensor) -> Tensor:
        if x.shape[0] % 2 == 0:
            return x.view(2, -1).sin()
        return x.cos() if x.shape[0] > 5 else x.exp()

    jitted = agrees(program, *tensors((4,), (6,), (7,), (9,), (3,), (5,), (8,)), entries=3)
    text = str(tm.last_prologue_traces(jitted)[-1])
    assert "if x.shape[0] % 2 == 0" in text


def test_sizes_that_must_agree() -> None:
    jitted = symbolic(lambda x, y: x + y)
    for n in (2, 3, 5):
        x, y = torch.randn(n, 4), torch.randn(n, 4)
        torch.testing.assert_close(jitted(x, y), x + y)
    has_entries(jitted, 1)
    with pytest.raises(RuntimeError, match="must match"):
        jitted(torch.randn(2, 4), torch.randn(3, 4))
    x, y = torch.randn(3, 4), torch.randn(1, 4)
    torch.testing.assert_close(jitted(x, y), x + y)


def takes_ints(n: Any) -> list[Any]:
    return [
        isinstance(n, int),
        isinstance(n, (str, float)),
        f"{n}",
        str(n),
        repr(n),
        f"{n:04d}",
        {n: 1}[int(n)],
    ]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: takes_ints(x.shape[0]),
        lambda x: [x * i for i in range(x.shape[0])],
        lambda x: x * math.sqrt(x.shape[0]),
        lambda x: x * (x.shape[0] / 3),
        lambda x: x.sum() / x.numel(),
        lambda x: x * x.shape[0] ** -0.5,
        lambda x: x * max(x.shape[0], 3),
        lambda x: (len(x), x.shape, x.size(0), x.numel(), x.stride()),
        lambda x: x * {3: 1.0}.get(x.shape[0], 2.0),
        lambda x: x * x.shape[0].bit_length(),
        lambda x: x * int(x.shape[0]),
        lambda x: [0] * x.shape[0],
        lambda x: (x.shape[0] == 3, x.shape[0] > 3, x.shape[0] + 1),
        lambda x: {"n": x.shape[0], "x": x},
        lambda x: torch.arange(x.shape[0]) + x[:, 0],
        lambda x: torch.zeros(x.shape[0] * 2 - 1, 3).sum(1),
        lambda x: x.reshape(x.shape[0] * x.shape[1]),
        lambda x: x.expand(2, *x.shape).transpose(0, 1).contiguous().flatten(1),
        lambda x: torch.cat([x, x[1:]]).chunk(2),
        lambda x: x.unfold(1, 2, 1).mean(-1),
        lambda x: x.new_ones(x.shape[1], x.shape[0]) @ x,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.as_strided((x.shape[0],), (1,)),
        lambda x: torch.nn.functional.pad(x, (0, x.shape[0])),
        lambda x: x.tolist(),
        lambda x: x * 3 if x.shape[0] * 0.5 > 1.6 else x,
        lambda x: x[: int(x.shape[0] * 0.5)],
        lambda x: (
            int((1 - x.shape[0]) / 2),
            1 / x.shape[0],
            0.5 - x.shape[0],
            round(x.shape[0] / 3, 2),
        ),
        lambda x: (
            (x.shape[0] > 3) is True,
            divmod(x.shape[0], 3),
            -x.shape[0] // 2,
            -x.shape[0] % 3,
        ),
        lambda x: (math.floor(x.shape[0] / 2), math.log(x.shape[0])),
        lambda x: nn.functional.interpolate(x[None, None], scale_factor=1.7),
        lambda x: x * 2 if x.shape[0] in (3, 5) else x,
        lambda x: x.split(2),
        lambda x: torch.tril(torch.ones(x.shape[0], x.shape[0]), diagonal=x.shape[0] - 2),
    ],
)
def test_python_and_pytorch_on_sizes(program: Program) -> None:
    jitted = symbolic(program)
    for shape in [(3, 4), (4, 4), (5, 6), (3, 4), (1, 4), (6, 2)]:
        x = torch.randn(shape)
        want, got = program(x), jitted(x)
        assert _same(got, want), (shape, got, want)


def _same(got: Any, want: Any) -> bool:
    if type(got) is not type(want):
        return False
    if isinstance(want, Tensor):
        return got.dtype == want.dtype and torch.equal(got, want) and got.stride() == want.stride()
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(map(_same, got, want))
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(_same(got[key], want[key]) for key in want)
    return got == want


def test_a_dict_with_a_size_among_its_keys_is_refused() -> None:
    x = torch.randn(3)
    with pytest.raises(tm.UnsupportedError, match="a size among its keys"):
        symbolic(lambda x: {x.shape[0]: 1})(x)


class Keeps:
    """A program that keeps sizes in Python state."""

    def __init__(self) -> None:
        self.latest: Any = None
        self.seen: list[Any] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.latest = (x.shape[0] * 2, x)
        self.seen.append(x.shape[1] - 1)
        return x * x.shape[0]


def test_sizes_are_kept_in_python_state() -> None:
    eager, kept = Keeps(), Keeps()
    jitted = symbolic(kept)
    for shape in [(3, 4), (5, 6), (2, 9)]:
        x = torch.randn(shape)
        torch.testing.assert_close(jitted(x), eager(x))
        assert (kept.latest[0], kept.seen) == (eager.latest[0], eager.seen)
        assert kept.latest[1] is x
        assert all(type(n) is int for n in (kept.latest[0], *kept.seen))
    has_entries(jitted, 1)


def test_a_size_as_a_key_is_what_it_is() -> None:
    table: dict[Any, Any] = {}

    def program(x: Tensor) -> Tensor:
        table[x.shape[0]] = x.shape[0]
        return x + 1

    jitted = symbolic(program)
    for n in (3, 4):
        jitted(torch.randn(n))
    assert table == {3: 3, 4: 4}
    assert all(type(key) is int for key in table)


def shapes() -> list[tuple[int, int]]:
    return [(2 + n % 5, 3 + n) for n in range(20)]


class Called(nn.Module):
    """A model called with the keywords of its builder, its result the first output."""

    def __init__(self, model: nn.Module, **kwargs: Any) -> None:
        super().__init__()
        self.model = model
        self.kwargs = kwargs

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, **self.kwargs)[0]


@pytest.mark.parametrize("build", [llama, gpt2, bert])
def test_a_language_model_of_many_shapes(build: Any) -> None:
    model, _, kwargs = build()
    called = Called(model, **{} if build is bert else kwargs)
    agrees(called.eval(), *[(torch.randint(0, 128, shape),) for shape in shapes()])


def test_a_convolution_of_many_shapes() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    ).eval()
    agrees(model, *tensors(*[(2 + n % 4, 3, 6 + n, 8 + n) for n in range(20)]))


ELEMENTWISE: list[Program] = [
    lambda x: x.sin() * 2,
    lambda x: x + x.cos(),
    lambda x: torch.where(x > 0, x, x * 2),
    lambda x: x.to(torch.float64),
    lambda x: x.clone(memory_format=torch.contiguous_format),
    lambda x: x * torch.ones(()),
]
LAYOUTS: list[Program] = [
    lambda x: x,
    lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    lambda x: x.transpose(1, 3),
    lambda x: x[:, :, ::2],
    lambda x: x[:1],
    lambda x: x[:1].expand(3, *x.shape[1:]),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise_results_lie_in_memory_as_eagers_for_every_size(
    op: Program, layout: Program
) -> None:
    def program(x: Tensor) -> Any:
        made = op(x)
        return made, made.shape, made.stride()

    jitted = symbolic(program)
    for shape in [(2, 3, 4, 5), (4, 2, 6, 3), (3, 7, 2, 2)]:
        x = layout(torch.randn(shape))
        want, got = program(x), jitted(x)
        assert torch.equal(got[0], want[0])
        assert got[0].stride() == want[0].stride()
        assert got[1:] == want[1:]


def test_isinstance_is_pythons_own_while_pytorch_is_asked() -> None:
    own = builtins.isinstance
    with like_plain_numbers():
        assert builtins.isinstance is not own
        with asking_pytorch():
            assert builtins.isinstance is own
        assert builtins.isinstance is not own
    assert builtins.isinstance is own
