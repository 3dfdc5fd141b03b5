"""What a backward is given: cotangents in the layout that it was recorded for, or as they are where that does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracemill as tm
from tracemill.compiler.torch_internals import TorchDispatchMode


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def _elementwise(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t() * x.t().sin()


def _viewed(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1)


def _product(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.arange(6.0).reshape(3, 2)


def _handed_on(x: torch.Tensor) -> torch.Tensor:
    return x + 1


PROGRAMS = (_elementwise, _transposed, _viewed, _product, _handed_on)


def _step(fn: Callable[..., Any], weigh: Callable[[Any], Any]) -> tuple[torch.Tensor, list[str]]:
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    weigh(fn(x)).backward()  # compiled
    x.grad = None
    loss = weigh(fn(x))
    with _Operations() as seen:
        loss.backward()
    assert x.grad is not None
    return x.grad, seen.names


@pytest.mark.parametrize("weigh", [torch.sum, torch.mean, lambda out: (out * out).sum()])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_gradients_of_sums_are_eagers(fn: Callable[..., Any], weigh: Callable[[Any], Any]) -> None:
    expected, _ = _step(fn, weigh)
    found, _ = _step(tm.jit(fn), weigh)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


def test_an_expanded_number_is_not_copied_for_operations_element_by_element() -> None:
    _, names = _step(tm.jit(_elementwise), torch.sum)
    assert not any("clone" in name or "copy" in name for name in names)


def test_it_is_copied_where_the_layout_counts() -> None:
    _, names = _step(tm.jit(_product), torch.sum)
    assert any("clone" in name for name in names)
