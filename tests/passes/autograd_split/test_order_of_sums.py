"""Gradients are summed in eager's order, to the last bit: what arrived already, then each use within a call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm

T = torch.Tensor

USES: dict[str, Callable[[T], T]] = {
    "squared and scaled": lambda y: y * y + y * 3,
    "squared and used before": lambda y: (y * y).sin() + y.exp(),
    "by a call of two uses": lambda y: torch.polar(y, y).abs() + y,
    "three times in a chain": lambda y: y @ y.t() @ y + y * 0.3,
    "as query, key and value": lambda y: F.scaled_dot_product_attention(y, y, y) + y * 0.7,
    "in a composite": lambda y: F.cosine_similarity(y, y).sum() + y.tanh(),
    "joined to itself": lambda y: torch.cat([y, y])[:5] + y * 1.7,
    "twice by one call, by two others": lambda y: (y / y) + y.sin() * y.cos(),
}


@pytest.mark.parametrize("name", USES)
def test_a_value_used_more_than_once_gets_eagers_gradient_bit_for_bit(name: str) -> None:
    def program(w: T) -> T:
        return USES[name](w.sin())

    found: list[T | None] = []
    for call in (program, tm.jit(program)):
        torch.manual_seed(0)
        w = torch.randn(5, 5, requires_grad=True)
        result = call(w)
        result.backward(torch.randn(result.shape))
        found.append(w.grad)
    torch.testing.assert_close(*found, rtol=0, atol=0)
