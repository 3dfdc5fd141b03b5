"""script: each trace as a file that runs by itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm


def program(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy((x[:, ::2] @ w).sin(), labels)


@pytest.fixture
def trained() -> Callable[..., torch.Tensor]:
    jitted = tm.jit(program)
    x, w = torch.randn(3, 8, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    jitted(x.t().contiguous().t(), w, torch.tensor([0, 1, 4]))
    return jitted


def run(text: str, folder: Path, *given: str) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(text)
    return subprocess.run([sys.executable, str(path), *given], capture_output=True, text=True)


@pytest.mark.parametrize("role", ["computation", "backward"])
def test_it_runs_by_itself(trained: Callable[..., torch.Tensor], role: str, tmp_path: Path) -> None:
    traces = tm.last_traces if role == "computation" else tm.last_backward_traces
    done = run(traces(trained)[-1].text("script"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tensor(" in done.stdout


def test_text(trained: Callable[..., torch.Tensor], golden: Callable[[str, str], None]) -> None:
    golden(tm.last_backward_traces(trained)[-1].text("script"), "backward")


@pytest.mark.parametrize("role", ["computation", "backward"])
def test_it_asks_for_sizes_that_differ(
    role: str, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    jitted = tm.jit(lambda x, n: (x.t().sin() * n).view(-1, 1), cache={"x": ("i", "j"), "n": "n"})
    jitted(torch.randn(3, 4).t().requires_grad_(), 0.5)
    traces = tm.last_traces if role == "computation" else tm.last_backward_traces
    text = traces(jitted)[-1].text("script")
    golden(text, f"symbolic_{role}")
    printed = [run(text, tmp_path, *given) for given in ((), ("5",), ("5", "6", "2.0"))]
    assert [done.stderr for done in printed] == ["", "", ""]
    numbers = [done.stdout.count(".") for done in printed]
    assert numbers == sorted(set(numbers))  # more elements each time


def test_inputs_have_the_recorded_metadata(trained: Callable[..., torch.Tensor]) -> None:
    trace = tm.last_traces(trained)[-1]
    namespace: dict[str, object] = {"__name__": "a module"}
    exec(trace.text("script"), namespace)
    made = namespace["example_inputs"]()  # type: ignore[operator]
    for proxy, tensor in zip(trace.args, made, strict=True):
        assert isinstance(proxy, tm.TensorProxy)
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (
            proxy.shape,
            tuple(proxy.stride),
            proxy.dtype,
        )


def test_what_a_prologue_needs_is_said(
    trained: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    done = run(tm.last_prologue_traces(trained)[-1].text("script"), tmp_path)
    assert done.returncode == 1
    assert "this program runs where it was traced; it needs" in done.stderr


def test_what_an_executor_replaced_stands_as_it_was(tmp_path: Path) -> None:
    mine = tm.OperatorExecutor("mine")
    mine.register(torch.sin, lambda x: x.sin())
    with torch.no_grad():
        jitted = tm.jit(lambda x: torch.sin(x) * 2, executors=[mine])
        jitted(torch.ones(3))
    text = tm.last_traces(jitted)[-1].text("script")
    assert "# mine.sin does this:\n  t0 = torch.sin(x)" in text
    done = run(text, tmp_path)
    assert done.returncode == 0, done.stderr


def test_it_is_a_printer_like_any_other() -> None:
    x = torch.randn(3, requires_grad=True)
    jitted = tm.jit(lambda x: x.sin(), printer="script")
    (got,) = torch.autograd.grad(jitted(x).sum(), x)
    assert torch.equal(got, x.cos().detach())
