"""Inputs that a program makes require grad: the caller's tensor does afterwards, and gradients come to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree
import pytest
import torch

import tracemill as tm

W = torch.arange(1.0, 4.0).requires_grad_()
Program = Callable[[Any], Any]


def forces(batch: dict[str, torch.Tensor]) -> Any:
    batch["x"].requires_grad_()
    energy = (batch["x"] * W).sin().sum()
    return energy, torch.autograd.grad(energy, batch["x"], create_graph=True)


def read_before(batch: dict[str, torch.Tensor]) -> Any:
    x = batch["x"]
    before = x * 2
    x.requires_grad = True
    return (before * x * W).sum(), x.requires_grad


def returned(batch: dict[str, torch.Tensor]) -> Any:
    return batch["x"].requires_grad_(), batch["x"] * 2


def run(program: Program, values: torch.Tensor) -> list[Any]:
    """The results, the gradients of what requires grad, and what the caller's tensor is afterwards."""
    x = values.clone()
    results = optree.tree_leaves(program({"x": x}))
    outs = [out for out in results if isinstance(out, torch.Tensor) and out.requires_grad]
    found = torch.autograd.grad([out.sum() for out in outs], [x, W], allow_unused=True)
    return [*results, *found, x.requires_grad, x.is_leaf, results[0] is x]


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("program", [forces, read_before, returned])
def test_the_callers_tensor_requires_grad_as_in_eager(program: Program, cache: str) -> None:
    jitted = tm.jit(program, cache=cache)
    for _ in range(3):
        values = torch.randn(3)
        torch.testing.assert_close(run(jitted, values), run(program, values), rtol=0, atol=0)
    assert tm.cache_info(jitted).misses == 1


def test_text(golden: Callable[[str, str], None]) -> None:
    jitted = tm.jit(read_before)
    jitted({"x": torch.ones(3)})
    golden(str(tm.last_prologue_traces(jitted)[-1]), "prologue")
    golden(str(tm.last_traces(jitted)[0]), "computation")


def on_a_path(x: torch.Tensor) -> torch.Tensor:
    return x.requires_grad_() * 2 if x.sum() > 0 else x


def written_to(x: torch.Tensor) -> torch.Tensor:
    x.requires_grad_()
    with torch.no_grad():
        x.add_(1)
    return x * 2


def taken_back(x: torch.Tensor) -> torch.Tensor:
    return (W.requires_grad_(False) * x).sum()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (on_a_path, "requires_grad of a tensor is changed"),
        (written_to, "and the program writes to it"),
        (taken_back, "requires_grad of a tensor is changed"),
    ],
)
def test_what_cannot_be_done_beforehand_is_refused(program: Program, message: str) -> None:
    x = torch.ones(3)
    with pytest.raises(tm.UnsupportedError, match=message):
        tm.jit(program)(x)
    assert not x.requires_grad
    assert torch.equal(x, torch.ones(3))
