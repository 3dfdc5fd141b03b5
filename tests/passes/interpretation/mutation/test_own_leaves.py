"""A program's own leaves: tensors that it makes require grad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracemill as tm

X = torch.arange(6.0).reshape(2, 3).cos()


def assigned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What speech models do to their input where its gradient is wanted by hooks."""
    hidden = x[:, None]
    hidden.requires_grad = True
    return (hidden * 2).sin() @ w


def called(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = x.clone().requires_grad_()
    assert hidden.requires_grad
    assert hidden.is_leaf
    return (hidden * w.sum()).square() + hidden.exp()


def written_to(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = (x @ w).detach().requires_grad_()
    copy = hidden.clone()
    copy.mul_(3)
    with torch.no_grad():
        hidden.add_(1)
    return copy @ w + hidden


@pytest.mark.parametrize("program", [assigned, called, written_to])
def test_gradients_end_there(program: Callable[..., Any]) -> None:
    w = torch.eye(3).mul(2).requires_grad_()
    jitted = tm.jit(program)
    want = program(X, w)
    for _ in range(2):
        got = jitted(X, w)
        assert torch.equal(got, want)
        grads = [torch.autograd.grad(y.sum(), w, retain_graph=True)[0] for y in (got, want)]
        assert torch.equal(*grads)


def test_without_grad_mode_nothing_requires_grad() -> None:
    with torch.no_grad():
        assert not tm.jit(assigned)(X, torch.eye(3)).requires_grad


def test_integers_have_eagers_error() -> None:
    with pytest.raises(RuntimeError, match="only Tensors of floating point"):
        tm.jit(lambda x: x.long().requires_grad_() + x)(X)


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "makes a tensor require grad .* returns or keeps it": lambda x: [x.clone().requires_grad_()],
    "makes a tensor require grad .* no input": lambda x: x.clone().requires_grad_() * 2,
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_somebody_outside_would_ask_for_its_gradient_is_refused(message: str) -> None:
    with pytest.raises(tm.UnsupportedError, match=message):
        tm.jit(REFUSED[message])(X)
    assert not X.requires_grad
