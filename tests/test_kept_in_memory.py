"""What a jitted function keeps in memory: traces as long as they are wanted, and no copy of anybody's weights."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm
from tests.models import llama
from tests.perf.memory import size_of_traces


def program(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.sin() * y, y.exp()


def trained(**options: Any) -> Any:
    fast = tm.jit(program, **options)
    for out in fast(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)):
        out.sum().backward(retain_graph=True)
    return fast


def test_all_traces_are_kept_unless_they_are_not_wanted() -> None:
    whole, last = trained(), trained(keep_traces=False)
    for traces in (
        tm.last_traces,
        tm.last_prologue_traces,
        tm.last_backward_traces,
    ):
        assert len(traces(whole)) > 1
        (kept,) = traces(last)
        assert str(kept) == str(traces(whole)[-1])


def test_the_report_stays_whole() -> None:
    def rows(fast: Any) -> list[tuple[Any, ...]]:
        return [
            (row.name, row.symbols_before, row.symbols_after, row.saved_bytes, row.facts)
            for row in tm.last_report(fast)
        ]

    assert rows(trained(keep_traces=False)) == rows(trained())


def test_traces_that_are_not_kept_are_freed() -> None:
    seen: list[weakref.ref[tm.Trace]] = []

    class Seeing(tm.Pass):
        name = "seeing"
        stage = "interpretation"

        def apply(self, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
            made = trace.replace()
            seen.append(weakref.ref(made))
            return made

    fast = tm.jit(lambda x: x + 1, passes=[Seeing()], keep_traces=False)
    fast(torch.ones(2))
    gc.collect()
    assert seen
    assert all(ref() is None for ref in seen)


def test_a_failure_keeps_the_traces_that_were_finished() -> None:
    class Failing(tm.Pass):
        name = "failing"
        stage = "executor_fusion"

        def apply(self, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
            raise ZeroDivisionError

    fast = tm.jit(lambda x: x + 1, passes=[Failing()], keep_traces=False)
    with pytest.raises(tm.PassError):
        fast(torch.ones(2))
    assert len(tm.last_traces(fast)) > 1


def bytes_of_tensors() -> int:
    """The memory of all tensors that Python knows of, each storage once."""
    gc.collect()
    storages = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        if type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided  # others that a test left have no one storage
    }
    return sum(storages.values())


@pytest.mark.parametrize("layers", [2, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("grad", [False, True])
def test_a_traced_model_holds_no_copy_of_a_weight(layers: int, grad: bool) -> None:
    model, args, kwargs = llama(layers=layers)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    with torch.set_grad_enabled(grad):
        tm.jit(nn.Linear(2, 2))(torch.ones(1, 2))  # what is made once in a process
        before = bytes_of_tensors()
        fast = tm.jit(model)
        fast(*args, **kwargs)
    assert bytes_of_tensors() - before < weights / 100


def test_a_weight_that_is_replaced_is_freed() -> None:
    model = nn.Linear(3, 3)
    fast = tm.jit(model)
    fast(torch.ones(1, 3))
    fast(torch.ones(1, 3))
    old = weakref.ref(model.weight)
    model.weight = nn.Parameter(torch.ones(3, 3))
    assert old() is None
    torch.testing.assert_close(fast(torch.ones(1, 3)), model(torch.ones(1, 3)))


@pytest.mark.slow
def test_the_traces_of_a_large_model_are_small() -> None:
    assert not tracemalloc.is_tracing()
    assert size_of_traces(layers=64, hidden=128) < 5e6


def test_a_compilation_leaves_no_cycles_to_the_collector() -> None:
    x, y = torch.ones(3), torch.ones(3)
    tm.jit(program)(x, y)  # PyTorch leaves some where it is asked for the first time
    gc.collect()
    gc.disable()
    try:
        tm.jit(program)(x, y)
        assert gc.collect() == 0
    finally:
        gc.enable()
