"""Reductions and scans against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.nvfuser.harness import FLOATS, fused_like_eager, some

Fn = Callable[..., Any]

REDUCTIONS: dict[str, Fn] = {
    "sum": lambda x: x.sum(),
    "sum of one": lambda x: x.sum(1),
    "sum of two, kept": lambda x: x.sum((0, -1), keepdim=True),
    "sum in another dtype": lambda x: x.sum(-1, dtype=torch.float32),
    "mean": lambda x: x.mean(),
    "mean of one": lambda x: x.mean(-1, keepdim=True),
    "amax": lambda x: x.amax((0, 2)),
    "amin": lambda x: x.amin(-1, keepdim=True),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "prod": lambda x: x.prod(1),
    "var": lambda x: x.var(-1),
    "var without correction": lambda x: x.var((0, 1), correction=0, keepdim=True),
    "std": lambda x: x.std(-1),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: x.norm(dim=-1),
    "vector norm": lambda x: torch.linalg.vector_norm(x, 1, dim=(0, 1)),
    "cumsum": lambda x: x.cumsum(1),
    "of a sum": lambda x: (x * x).sum(-1, keepdim=True).sqrt() + x,
}

# Their gradients look for the positions of extremes, or sort: PyTorch's own.
NO_GRADIENTS = ("prod",)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction(name: str, dtype: torch.dtype) -> None:
    fused_like_eager(
        REDUCTIONS[name], some(3, 4, 8, dtype=dtype), gradients=name not in NO_GRADIENTS
    )


def test_cumprod() -> None:
    fused_like_eager(lambda x: x.cumprod(0), some(3, 4, low=0.5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool], ids=str)
def test_sums_of_integers_are_long(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (3, 8)).to(dtype)
    fused_like_eager(lambda x: (x.sum(), x.sum(1), x.float().mean()), x)
    fused_like_eager(lambda x: x.prod(1), x)


def test_statements_about_all() -> None:
    x = torch.randint(0, 2, (3, 8))
    fused_like_eager(
        lambda x: (x.any(), x.all(1), (x > 0).any(0, keepdim=True), x.float().all((0, 1))), x
    )


def test_reductions_of_what_is_no_more_than_one_number() -> None:
    fused_like_eager(lambda x: (x.sum() + 1, x.mean(), x.amax()), some())
    fused_like_eager(lambda x: (x.sum(0) + 1, x.amax(0), x.mean(1)), some(1, 8))


def test_extremes_of_integers() -> None:
    fused_like_eager(lambda x: (x.amax(), x.amin(1)), torch.randint(-9, 9, (3, 8)))
