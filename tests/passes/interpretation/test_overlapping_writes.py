"""A write to memory that the call reads elsewhere ends as in eager: in its error, or in its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracemill as tm


def shifted(x: torch.Tensor) -> torch.Tensor:
    x[1:].add_(x[:-1])
    return x


def shifted_inside(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[1:].add_(y[:-1])
    return y


def out_over_an_argument(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x[:-1], 1, out=x[1:])


def expanded(x: torch.Tensor) -> torch.Tensor:
    y = (x * 1)[:1].expand(4)
    y.add_(1)
    return y


FORBIDDEN: list[Callable[[Any], Any]] = [shifted, shifted_inside, out_over_an_argument, expanded]


@pytest.mark.parametrize("program", FORBIDDEN)
def test_what_eager_forbids_raises_its_error_before_anything_is_written(program: Any) -> None:
    with pytest.raises(RuntimeError) as want:
        program(torch.arange(4.0))
    x = torch.arange(4.0)
    with pytest.raises(RuntimeError) as got:
        tm.jit(program)(x)
    assert str(got.value) == str(want.value)
    assert x.tolist() == [0, 1, 2, 3]


def halves(x: torch.Tensor) -> torch.Tensor:
    x[2:].mul_(x[:2] + x[:2])
    x[:2].add_(x[2:])
    return x


def itself(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(x).add_(x)


def swapped(x: torch.Tensor) -> torch.Tensor:
    y = x.view(2, 2)
    y[0].copy_(y[1])
    return y


@pytest.mark.parametrize("program", [halves, itself, swapped])
def test_what_eager_allows_gives_its_values(program: Any) -> None:
    jf = tm.jit(program)
    for _ in range(2):
        want, got = torch.arange(4.0), torch.arange(4.0)
        assert torch.equal(jf(got), program(want))
        assert torch.equal(got, want)
