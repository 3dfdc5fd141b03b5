"""Functions of TorchScript inside of programs: recorded operation by operation, gradients included."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracemill as tm


def _script(function: Callable[..., Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)


@_script
def gate(x: torch.Tensor, by: float = 2.0):
    return torch.sigmoid(x) * by


@_script
def unit(x: torch.Tensor, narrow: bool = True):
    y = x
    for _ in range(2):
        if narrow:
            y = y * gate(x, by=0.5)
        else:
            y = y + 1
    return y, [y.sum(), y.mean()]


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_a_function_that_has_run_before_carries_gradients(cache: str) -> None:
    """TorchScript differentiates a function by itself once it has run twice."""
    linear = torch.nn.Linear(3, 3)
    twin = copy.deepcopy(linear)

    def program(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        y, (total, _) = unit(layer(x))
        return y.sum() + total + gate(layer(x)).sum()

    jitted = tm.jit(program, cache=cache)
    for rows in (2, 2, 3, 2):
        x = torch.randn(rows, 3)
        got, want = jitted(linear, x), program(twin, x)
        for value in (got, want):
            value.backward()

        torch.testing.assert_close(got, want)
        assert linear.weight.grad is not None
        torch.testing.assert_close(linear.weight.grad, twin.weight.grad)


def test_arguments_by_name_and_defaults() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [gate(x), gate(x, 3.0), gate(by=4.0, x=x), *unit(x, narrow=False)[1]]

    x = torch.randn(3)

    assert all(map(torch.equal, tm.jit(program)(x), program(x)))


@pytest.mark.parametrize("wrong", [lambda x: gate(x, bye=1.0), lambda x: gate()])
def test_wrong_arguments_raise_as_in_eager(wrong: Callable[..., Any]) -> None:
    x = torch.randn(3)
    with pytest.raises(RuntimeError) as want:
        wrong(x)

    with pytest.raises(RuntimeError) as got:
        tm.jit(wrong)(x)

    assert str(got.value) == str(want.value)
