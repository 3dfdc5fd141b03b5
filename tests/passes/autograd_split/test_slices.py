"""Slices: where PyTorch takes a gradient apart slice by slice, one line takes all slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tracemill as tm


def stacked(*values: Tensor) -> Tensor:
    return torch.stack(values).sum(0)


def stacked_last(*values: Tensor) -> Tensor:
    return torch.stack(values, -1).cumsum(-1)


def one_without_grad(*values: Tensor) -> Tensor:
    return torch.stack([values[0].detach(), *values[1:]]).sin()


def joined(*values: Tensor) -> Tensor:
    return torch.cat(values).sin()


def joined_by_columns(*values: Tensor) -> Tensor:
    return torch.cat([values[0].detach(), values[1][:, :1], values[2]], 1).sin()


def partly_used(*values: Tensor) -> Tensor:
    return torch.cat(values)[1:].sin()


def _lines(jitted: Callable[..., Tensor]) -> list[str]:
    text = tm.last_backward_traces(jitted)[-1].text("minimal")
    return [
        line.strip() for line in text.splitlines() if any(f"{name}(" in line for name in _TAKING)
    ]


_TAKING = ("select", "unbind", "slice.Tensor", "split")


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        (stacked, ["t5, t6, t7, = torch.unbind(t4)"]),
        (stacked_last, ["t6, t7, t8, = torch.unbind(t5, -1)"]),
        (joined, ["t5, t6, t7, = torch.split(t4, 2)"]),
        (joined_by_columns, ["t7, t8, t9, = torch.split(t6, [3, 1, 3], 1)"]),
        (partly_used, ["t7, t8, t9, = torch.split(t6, 2)"]),
        (one_without_grad, ["t6, t7, t8, = torch.unbind(t5)"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_the_slices_of_a_gradient(
    program: Callable[..., Tensor], lines: list[str], cache: str
) -> None:
    jitted = tm.jit(program, cache=cache)
    values = [torch.randn(2, 3, requires_grad=True) for _ in range(3)]
    found: Any = torch.autograd.grad(jitted(*values).sum(), values, allow_unused=True)
    expected: Any = torch.autograd.grad(program(*values).sum(), values, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    if cache == "constant values" or "unbind" in lines[0]:  # symbolic bounds stay as they are
        assert _lines(jitted) == lines
