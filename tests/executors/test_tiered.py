"""tiered: the first call runs on torch, and the program goes over when a worker has compiled it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm
from tracemill.executors.inductor import tiered as tiered_module
from tracemill.executors.inductor import worker_process
from tracemill.executors.inductor.tiered import TieredExecutor, TieredRegion
from tracemill.executors.inductor.worker_process import WORKER, WorkerProcess


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


def test_the_worker_has_the_programs_default_dtype(tiered: TieredExecutor) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * torch.linspace(0, 1, 4)).cos() + torch.ones(4)

    x = torch.randn(4)
    torch.set_default_dtype(torch.float64)
    try:
        jf = tm.jit(fn, executors=["tiered"])
        assert torch.equal(jf(x), fn(x))
        assert tiered.wait(300)
        assert on_torch(tm.last_traces(jf)[-1]) == [False]
        torch.testing.assert_close(jf(x), fn(x))
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_backward_that_is_made_later_goes_over_too(
    tiered: TieredExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[TieredRegion] = []
    init = TieredRegion.__init__

    def noted(self: TieredRegion, *args: Any) -> None:
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(TieredRegion, "__init__", noted)
    jf = tm.jit(lambda x: ((x.sin() * 2).cos(), (x.exp() * 3).tanh()), executors=["tiered"])
    x = torch.randn(4, requires_grad=True)

    def gradient(count: int) -> torch.Tensor:
        return torch.autograd.grad([out.sum() for out in jf(x)[:count]], x)[0]

    want = {2: gradient(2)}
    at_first = len(made)
    want[1] = gradient(1)
    assert len(made) > at_first
    assert tiered.wait(300)
    assert all(region.run == region.compiled for region in made)
    for count, value in want.items():
        torch.testing.assert_close(gradient(count), value)


def test_two_threads_call_first(tiered: TieredExecutor) -> None:
    jf = tm.jit(lambda x: (x * 11).sin() + 1, executors=["tiered"])
    x = torch.randn(4)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(jf(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(result, (x * 11).sin() + 1) for result in results)
    assert len(results) == 4
    assert tiered.wait(300)
    assert on_torch(tm.last_traces(jf)[-1]) == [False]


@contextmanager
def worker(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Generator[WorkerProcess]:
    """A worker of one's own in place of that of the process."""
    own = WorkerProcess(**options)
    monkeypatch.setattr(tiered_module, "WORKER", own)
    yield own
    own.stop()
    assert own.wait(60)


def stays_on_torch(reason: str, own: WorkerProcess) -> None:
    jf = tm.jit(lambda x: (x * 13).sin() + 1, executors=["tiered"])
    x = torch.randn(4)
    assert torch.equal(jf(x), (x * 13).sin() + 1)
    assert own.wait(60)
    with pytest.warns(UserWarning, match=reason):
        assert torch.equal(jf(x), (x * 13).sin() + 1)


def test_a_worker_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with worker(monkeypatch) as own:
        stays_on_torch("the process could not be started: .*nowhere", own)


def test_a_worker_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_COMMAND", "import no_such_module")
    with worker(monkeypatch) as own:
        stays_on_torch("ended with code 1: ModuleNotFoundError: .*no_such_module", own)


def test_modules_of_the_current_folder_are_not_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiered: TieredExecutor
) -> None:
    (tmp_path / "queue.py").write_text("raise RuntimeError('not that one')")
    monkeypatch.chdir(tmp_path)
    with worker(monkeypatch) as own:
        jf = tm.jit(lambda x: (x * 15).sin() + 1, executors=["tiered"])
        jf(torch.randn(4))
        assert own.wait(300)
        assert on_torch(tm.last_traces(jf)[-1]) == [False]


def test_nobody_waits_for_a_worker_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_COMMAND", "import time; time.sleep(1000)")
    results: list[dict[str, Any]] = []
    with worker(monkeypatch) as own:
        for _ in range(10):  # more than a pipe holds
            own.submit({"text": "x" * 100_000}, results.append)
        assert not own.wait(0.1)
    assert len(results) == 10
    assert all("the process ended" in result["error"] for result in results)


def test_a_worker_that_has_nothing_to_do_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[dict[str, Any]] = []
    with worker(monkeypatch, idle_seconds=0.1) as own:
        before = set(threading.enumerate())
        own.submit({}, results.append)
        serving = set(threading.enumerate()) - before
        assert own.wait(120)
        for thread in serving:
            thread.join(60)
            assert not thread.is_alive()
        own.submit({}, results.append)
        assert own.wait(120)
    assert [result["error"] for result in results] == ["KeyError: 'text'"] * 2


def output_of(script: str) -> str:
    """What a script writes, in a process that must end well."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch, tracemill as tm\n" + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_a_program_ends_while_the_worker_compiles() -> None:
    assert not output_of("tm.jit(lambda x: (x * 17).sin() + 1, executors='tiered')(torch.ones(3))")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_copy_of_the_process_stays_on_torch_and_has_a_worker_of_its_own() -> None:
    script = """
import os, warnings
x = torch.ones(3)
waiting = tm.jit(lambda x: (x * 19).sin() + 1, executors="tiered")
waiting(x)
warnings.filterwarnings("ignore", message=".*multi-threaded")
pid = os.fork()
if not pid:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert torch.equal(waiting(x), (x * 19).sin() + 1)
    assert "is a copy of the one that asked" in str(told[0].message), told
    other = tm.jit(lambda x: (x * 21).sin() + 1, executors="tiered")
    other(x)
    assert tm.executors.get("tiered").wait(100)
    torch.testing.assert_close(other(x), (x * 21).sin() + 1)
    print("copy", flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert tm.executors.get("tiered").wait(100)
torch.testing.assert_close(waiting(x), (x * 19).sin() + 1)
"""
    # Libraries' own hooks of os.fork may have a word with a thread that locks files just then.
    assert output_of(script).splitlines()[-1] == "copy"
