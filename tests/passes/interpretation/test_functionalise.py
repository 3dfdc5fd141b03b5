"""Functionalise: writes become new values, and the epilogue writes to inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm
from tracemill.compiler.calling import CallForm
from tracemill.compiler.meta import Storage
from tracemill.compiler.pass_base import Call, PassContext
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.shared_memory import Apart
from tracemill.compiler.trace import Program, Trace
from tracemill.passes.interpretation.acquire import Acquire
from tracemill.passes.interpretation.functionalise import Functionalise
from tracemill.passes.interpretation.mutation import overlap

Tensor = torch.Tensor


def texts(function: Callable[..., Any], *inputs: Any) -> str:
    """The computation and the epilogue that run, and the backward."""
    jitted = tm.jit(function)
    jitted(*inputs)
    traces = [
        tm.last_traces(jitted),
        tm.last_backward_traces(jitted),
        tm.last_epilogue_traces(jitted),
    ]
    return "\n".join(found[-1].text("minimal") for found in traces if found)


def a_view_of_an_input(x: Tensor, y: Tensor) -> Tensor:
    x[0].mul_(y)
    return x.sum()


def a_view_is_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    flat = x.view(-1)
    x.add_(1)
    return flat, x[0]


def assignments(x: Tensor, i: Tensor) -> None:
    x[i] = 1.0
    x[0] = 2.0
    x[x > 1] = 3.0


def inputs_that_share(x: Tensor, y: Tensor) -> None:
    x.add_(1)
    y.mul_(2)


def hidden_from_autograd(w: Tensor) -> Tensor:
    with torch.no_grad():
        w.clamp_(max=2)
    return w * w


def another_layout(x: Tensor, y: Tensor) -> Tensor:
    made = (x * 2).t()
    made.sub_(y)
    torch.maximum(made, y, out=made)
    return made


def shared() -> tuple[Tensor, Tensor]:
    base = torch.arange(6.0)
    return base[:4], base[2:]


GOLDEN: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "view": lambda: (a_view_of_an_input, (torch.ones(3, 3), torch.ones(3))),
    "returned": lambda: (a_view_is_returned, (torch.ones(2, 2),)),
    "assignments": lambda: (assignments, (torch.ones(4), torch.tensor([1, 2]))),
    "shared": lambda: (inputs_that_share, shared()),
    "batch_norm": lambda: (nn.BatchNorm1d(3), (torch.ones(2, 3),)),
    "hidden": lambda: (hidden_from_autograd, (torch.ones(3, requires_grad=True),)),
    "layout": lambda: (another_layout, (torch.ones(2, 3), torch.ones(3, 2))),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    function, inputs = GOLDEN[name]()
    golden(texts(function, *inputs), name)


def test_a_program_that_writes_to_nothing_is_left_as_it_is() -> None:
    form = CallForm(lambda x: torch.nn.functional.dropout(x.view(-1), 0.5))
    context = PassContext(Call(form, form.bind(torch.ones(2, 2))))
    acquired = Acquire().apply(Program(Trace("prologue"), Trace("computation")), context)

    assert Functionalise().apply(acquired, context) is acquired


def test_only_what_touches_written_memory_is_replayed() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        z = torch.softmax(y, -1)
        x.add_(1)
        return z

    form = CallForm(function)
    context = PassContext(Call(form, form.bind(torch.ones(2), torch.ones(2))))
    before = Acquire().apply(Program(Trace("prologue"), Trace("computation")), context)
    after = Functionalise().apply(before, context)

    assert after.computation.bound_symbols[0] is before.computation.bound_symbols[0]
    assert not any(bsym.mutates for bsym in after.computation.bound_symbols)


def test_the_computation_runs_without_the_epilogue_and_writes_to_no_input() -> None:
    jitted = tm.jit(a_view_of_an_input)
    jitted(torch.ones(2, 2), torch.ones(2))
    x = torch.ones(2, 2)

    result, written = tm.last_traces(jitted)[-1].callable()(x, torch.full((2,), 3.0))

    assert torch.equal(x, torch.ones(2, 2))
    assert result.item() == 8.0
    tm.last_epilogue_traces(jitted)[-1].callable()(*written)
    assert torch.equal(x, torch.tensor([[3.0, 3.0], [1.0, 1.0]]))


# Which tensors share memory


def proxy(storage: Storage, start: int, length: int, stride: int = 1) -> TensorProxy:
    return TensorProxy(
        "x", shape=(length,), stride=(stride,), storage=storage, storage_offset=start
    )


def test_tensors_that_overlap_are_one_group() -> None:
    one, other = Storage(400), Storage(400)
    first, second, third = proxy(one, 0, 4), proxy(one, 3, 4), proxy(one, 6, 2)
    apart, elsewhere = proxy(one, 8, 2), proxy(other, 0, 100)

    found = list(overlap.groups([third, elsewhere, apart, first, second]))

    assert found == [[first, second, third], [apart], [elsewhere]]


def test_a_group_covers_what_its_tensors_reach_over() -> None:
    storage = Storage(400)
    every_second = proxy(storage, 2, 3, 2)

    assert overlap.extent([every_second, proxy(storage, 4, 2)]) == (2, 7)
    assert overlap.covers(proxy(storage, 2, 5), 2, 7)
    assert not overlap.covers(every_second, 2, 7)


def test_apart() -> None:
    base = torch.zeros(10)
    written, other = base[2:4], base[6:8]
    length = 2 * base.element_size()
    apart = Apart([(0, length)], [length])

    assert apart.check(written, other)
    assert apart.check(written, base[4:6])
    assert not apart.check(written, base[3:5])
    assert not apart.check(written, base[1:3])
    assert not apart.check(base[0:2], base[0:2])
    assert Apart([], [length, length]).check(base[:2], base[1:3]), "none of them is written to"
    assert Apart([(0, 0)], [length]).check(torch.zeros(0), other)


def test_apart_sees_a_written_tensor_between_others_that_overlap() -> None:
    base = torch.zeros(10)
    size = base.element_size()
    apart = Apart([(0, size)], [10 * size, size])

    assert not apart.check(base[4:5], base, base[:1])
    assert not apart.check(base[9:], base, base[:1])
