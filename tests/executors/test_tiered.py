"""tiered: the first call runs on torch, and the program goes over when a worker has compiled it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm
from tracemill.executors.inductor.tiered import TieredExecutor, TieredRegion
from tracemill.executors.inductor.worker_process import WORKER


def tiers(trace: tm.Trace) -> list[TieredRegion]:
    return [
        bsym.sym.impl for bsym in trace.bound_symbols if isinstance(bsym.sym.impl, TieredRegion)
    ]


def on_torch(trace: tm.Trace) -> list[bool]:
    return [region.run == region.on_torch for region in tiers(trace)]


@pytest.fixture
def tiered() -> TieredExecutor:
    executor = tm.executors.get("tiered")
    assert isinstance(executor, TieredExecutor)
    return executor


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2 + x).cos().softmax(-1)


def test_the_first_call_runs_on_torch_and_later_ones_compiled(tiered: TieredExecutor) -> None:
    jf = tm.jit(program, executors="tiered")
    x = torch.randn(5, 7)
    assert torch.equal(jf(x), program(x))
    assert tiered.wait(300)
    assert on_torch(tm.last_traces(jf)[-1]) == [False]
    torch.testing.assert_close(jf(x), program(x))


def test_the_text_is_that_of_a_region(golden: Any) -> None:
    jf = tm.jit(program, executors=["tiered"])
    jf(torch.randn(5, 7))
    golden(str(tm.last_traces(jf)[-1]), "text")


def test_forward_and_backward_go_over_together(tiered: TieredExecutor) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Softmax(-1))
    jm = tm.jit(model, executors="tiered")
    x = torch.randn(5, 6)

    def gradients(run: Any) -> list[torch.Tensor | None]:
        model.zero_grad()
        (run(x) ** 2).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    want = gradients(model)
    torch.testing.assert_close(gradients(jm), want)
    assert tiered.wait(300)
    traces = tm.last_traces(jm)[-1], tm.last_backward_traces(jm)[-1]
    assert [any(on_torch(trace)) for trace in traces] == [False, False]
    assert all(map(tiers, traces))
    torch.testing.assert_close(gradients(jm), want)


def test_a_worker_that_dies_leaves_the_program_on_torch_with_one_warning(
    tiered: TieredExecutor,
) -> None:
    jf = tm.jit(lambda x: (x * 3).sin() + 1, executors=["tiered"])
    x = torch.randn(4)
    jf(x)
    WORKER.stop()
    assert tiered.wait(60)
    with pytest.warns(UserWarning, match="stays on torch: the process ended"):
        got = jf(x)
    assert torch.equal(got, (x * 3).sin() + 1)
    assert torch.equal(jf(x), (x * 3).sin() + 1)
    assert on_torch(tm.last_traces(jf)[-1]) == [True]


def test_a_new_worker_takes_the_place_of_a_dead_one(tiered: TieredExecutor) -> None:
    WORKER.stop()
    jf = tm.jit(lambda x: (x * 5).sin() + 1, executors=["tiered"])
    x = torch.randn(4)
    jf(x)
    assert tiered.wait(300)
    assert on_torch(tm.last_traces(jf)[-1]) == [False]
    torch.testing.assert_close(jf(x), (x * 5).sin() + 1)


def test_a_program_that_the_worker_cannot_compile_stays_on_torch() -> None:
    executor = TieredExecutor(settings={"no_such_setting": 1})
    jf = tm.jit(lambda x: (x * 7).sin() + 1, executors=[executor])
    x = torch.randn(4)
    jf(x)
    assert executor.wait(300)
    with pytest.warns(UserWarning, match="no_such_setting"):
        got = jf(x)
    assert torch.equal(got, (x * 7).sin() + 1)


def test_a_discarded_program_is_freed_while_it_waits(tiered: TieredExecutor) -> None:
    jf = tm.jit(lambda x: (x * 9).sin() + 1, executors=["tiered"])
    jf(torch.randn(4))
    (region,) = map(weakref.ref, tiers(tm.last_traces(jf)[-1]))
    del jf
    gc.collect()
    assert region() is None
    assert tiered.wait(300)
