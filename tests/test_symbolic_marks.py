"""Which sizes and numbers differ from call to call: marks by the habits of torch.export, ranges, numbers inside arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import tracemill as tm

pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again")
Program = Callable[..., Any]


def agrees(program: Program, marks: Any, *calls: tuple[Any, ...], entries: int = 1) -> Any:
    """The jitted program, after calls whose results are eager's and that needed so many specialisations."""
    jitted = tm.jit(program, cache=marks)
    for call in calls:
        torch.testing.assert_close(jitted(*call), program(*call), rtol=0, atol=0)
    assert tm.cache_info(jitted).entries == entries
    return jitted


def pairs(*sizes: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(n, 3), torch.randn(m, 3)) for n, m in sizes]


def products(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.t()).sum(1)


def test_only_what_is_marked_differs(golden: Any) -> None:
    marks = {"x": {0: "batch"}}
    jitted = agrees(products, marks, *pairs((2, 4), (5, 4), (6, 4), (6, 5)), entries=2)
    golden(str(tm.last_traces(jitted)[-1]), "computation")
    golden(str(tm.last_prologue_traces(jitted)[-1]), "prologue")


@pytest.mark.parametrize("marks", [{"x": ("n", None)}, {"x": [Dim.AUTO, None]}, {"x": {-2: "n"}}])
def test_ways_to_mark_a_dimension(marks: Any) -> None:
    agrees(products, marks, *pairs((2, 4), (5, 4), (6, 4)))


@pytest.mark.parametrize("mark", [Dim.AUTO, Dim.DYNAMIC, "symbolic values"])
def test_all_sizes_of_an_argument(mark: Any) -> None:
    agrees(products, {"x": mark, "y": mark}, *pairs((2, 4), (5, 6), (6, 2)))


def test_a_range_is_one_specialisation_and_what_lies_outside_another() -> None:
    marks = {"x": {0: Dim("batch", min=3, max=8)}}
    calls = pairs((3, 4), (5, 4), (8, 4), (9, 4), (10, 4), (2, 4), (9, 4), (7, 4))
    jitted = agrees(products, marks, *calls, entries=4)
    jitted(*calls[0])
    text = str(tm.last_prologue_traces(jitted)[-1])
    assert "3 <= batch and batch <= 8" in text


def test_sizes_of_one_name_are_equal() -> None:
    marks = {"x": {0: "n"}, "y": {0: "n"}}
    jitted = agrees(lambda x, y: x + y, marks, *pairs((2, 2), (5, 5), (6, 6)))
    with pytest.raises(tm.OptionError, match="by the name 'n', yet they are 3 and 4"):
        jitted(*pairs((3, 4))[0])


def sliced(a: Tensor, index: Any) -> Tensor:
    return a[index] * 2


def test_a_number_inside_a_slice(golden: Any) -> None:
    marks = {"a": Dim.AUTO, "index": (..., slice(None, "stop", None))}
    calls = [(torch.randn(2 + n, n), (..., slice(None, k, None))) for n, k in [(9, 4), (12, 7)]]
    jitted = agrees(sliced, marks, *calls)
    golden(str(tm.last_traces(jitted)[-1]), "slice_computation")
    golden(str(tm.last_prologue_traces(jitted)[-1]), "slice_prologue")
    agrees(sliced, marks, *calls, (torch.randn(3, 8), (..., slice(None, -2, None))), entries=2)


@pytest.mark.parametrize("index", [[3, None], (3, ...), (slice(1, 3),), slice(3)])
def test_unmarked_numbers_are_constants_that_are_unpacked(index: Any) -> None:
    a = torch.randn(5, 4)
    index = tuple(index) if isinstance(index, list) else index
    trace = tm.trace(sliced, a, index)
    assert torch.equal(trace(a), sliced(a, index))


def halved(a: Tensor) -> Tensor:
    return a[..., : a.shape[-1] // 2]


def test_a_jitted_function_is_traced_under_its_marks() -> None:
    jitted = tm.jit(halved, cache={"a": {1: "n"}})
    trace = tm.trace(jitted, torch.randn(4, 6))
    assert [proxy.type_string for proxy in trace.args] == ["cpu f32[4, n]", "int"]
    other = torch.randn(4, 9)
    assert torch.equal(trace(other, 9), halved(other))
    assert tm.cache_info(jitted).entries == 0


def arithmetic(x: Tensor, n: int, scale: float, options: dict[str, Any], *more: int) -> Tensor:
    return x * scale + n * options["k"][0] - sum(more)


MARKS = {"*": "symbolic values", "n": "n", "scale": Dim.AUTO, "options": {"k": ["first", None]}}


def test_numbers_of_any_value_in_lists_and_dicts() -> None:
    calls = [
        (torch.randn(3 + abs(n)), n, scale, {"k": [k, 1]})
        for n, scale, k in [(0, 0.5, 3), (1, 0.1, -4), (-4, 1e-3, 0), (7, -2.5, 10**6)]
    ]
    agrees(arithmetic, MARKS, *calls)
    agrees(arithmetic, MARKS, *calls, (*calls[0][:3], {"k": [3, 2]}), entries=2)


def test_a_float_that_is_zero_or_not_finite_is_a_constant() -> None:
    jitted = tm.jit(lambda x, f: x * f, cache={"f": "f"})
    for f in (1.5, 0.0, -0.0, float("inf"), float("nan"), 2.5, -0.0):
        got, want = jitted(torch.ones(2), f), torch.ones(2) * f
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(torch.signbit(got), torch.signbit(want))


def test_numbers_in_training() -> None:
    def program(x: Tensor, n: int, scale: float) -> Tensor:
        return (x.sin() * scale + n).view(-1)[: n * 2] * n

    jitted = tm.jit(program, cache={"*": "symbolic values", "n": "n", "scale": "scale"})
    for n, scale, size in [(2, 0.5, 3), (3, 0.25, 4), (4, -1.5, 8)]:
        x = torch.randn(size, size + 1, requires_grad=True)
        got, want = (
            torch.autograd.grad(f(x, n, scale).square().sum(), x) for f in (jitted, program)
        )
        torch.testing.assert_close(got, want)
    assert tm.cache_info(jitted).entries == 1
    text = str(tm.last_backward_traces(jitted)[-1])
    assert "scale" in text


@pytest.mark.parametrize(
    ("program", "entries"),
    [
        (lambda x, n, f: x * 2 if n > 3 and f < 0.75 else x, 3),
        (lambda x, n, f: [x * i for i in range(n)], 4),
        (lambda x, n, f: x * len(f"{n}{f}"), 4),
        (lambda x, n, f: x * {2: 1.0}.get(n, 2.0), 4),
        (lambda x, n, f: x * __import__("math").sqrt(f), 4),
        (lambda x, n, f: (isinstance(n, int), isinstance(f, float), x + n), 1),
        (lambda x, n, f: x * (f + 1) ** 2, 4),
        (lambda x, n, f: torch.full((n,), f) + x[0], 1),
        (lambda x, n, f: (n, n + 1, f, x), 1),
        (lambda x, n, f: x.expand(n, 3) * f, 1),
        (lambda x, n, f: torch.dropout(x, f, train=False) * bool(n), 4),
    ],
)
def test_python_on_marked_numbers(program: Program, entries: int) -> None:
    jitted = tm.jit(program, cache={"n": "n", "f": "f"})
    for n, f in [(2, 0.5), (4, 0.25), (5, 0.875), (3, 0.1)]:
        x = torch.randn(3)
        got, want = jitted(x, n, f), program(x, n, f)
        assert type(got) is type(want)
        if isinstance(want, tuple):
            assert [type(value) for value in got] == [type(value) for value in want]
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert tm.cache_info(jitted).entries == entries


class Scaled(nn.Module):
    def forward(self, x: Tensor, n: int = 2, **options: Any) -> Tensor:
        return x * n + options.get("shift", 0)


def test_parameters_of_modules_and_keywords() -> None:
    module = Scaled()
    jitted = tm.jit(module, cache={"x": {0: "batch"}, "n": "n", "shift": "shift"})
    for size, n, shift in [(2, 3, 4), (5, -1, 6), (3, 0, 1)]:
        x = torch.randn(size)
        assert torch.equal(jitted(x, n=n, shift=shift), module(x, n=n, shift=shift))
    assert tm.cache_info(jitted).entries == 1


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({"z": "n"}, "'z', which is no argument; the arguments are 'x', 'n', 'scale', 'options'"),
        ({"x": {7: "b"}}, "dimension 7 of x, which has dimensions 0 to 0"),
        ({"x": "name"}, "one name"),
        ({"x": 3}, "cache marks x by 3"),
        ({"scale": 3}, "cache marks scale by 3"),
        ({"options": {"q": "z"}}, "'q' of options, which has 'k'"),
        ({"options": "k"}, "takes a mark for each item"),
        ({"options": {"name": "n"}}, "'name' of options, which has 'k'"),
        ({"*": "everything"}, "everything"),
    ],
)
def test_wrong_marks_are_refused_with_what_is_known(marks: Any, message: str) -> None:
    with pytest.raises(tm.OptionError, match=message):
        tm.jit(arithmetic, cache=marks)(torch.randn(3), 1, 0.5, {"k": [1]})


def test_names_are_checked_before_a_call() -> None:
    with pytest.raises(tm.OptionError, match="'y', which is no argument"):
        tm.jit(sliced, cache={"y": "n"})
    with pytest.raises(tm.OptionError, match="cache is 3"):
        tm.jit(sliced, cache=3)  # type: ignore[arg-type]
    with pytest.raises(tm.OptionError, match="a bool"):
        tm.jit(sliced, cache={"index": "n"})(torch.randn(3), True)
