"""Redundant views: what leads back to a value is that value, and what the caller gets is a tensor of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tracemill as tm


def text(fn: Callable[..., Any], *args: Any, **options: Any) -> str:
    """What the computation does in the end."""
    jitted = tm.jit(fn, **options)
    jitted(*args)
    return tm.last_traces(jitted)[-1].text("minimal").split("\n\n", 1)[1]


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_the_backward_of_a_linear_layer_transposes_once(cache: str) -> None:
    jitted = tm.jit(lambda x, w: x @ w.t(), cache=cache)
    x, w = torch.randn(5, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    jitted(x, w).sum().backward()
    assert tm.last_backward_traces(jitted)[-1].text("minimal").split("cotangents, C0, C1\n")[1] == (
        "  t3 = torch.t(t2)\n"
        "  t4 = torch.mm(t3, x)\n"
        "  del t3, x\n"
        "  t7 = torch.mm(t2, w)\n"
        "  del t2, w\n"
        "  return (t7, t4)\n"
    )


def test_views_that_lead_back_are_dropped() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        back = x.t().t().unsqueeze(0).expand(1, 2, 3).squeeze(0)[:, :]
        return back.sin() + back.view(6).view(2, 3)

    assert text(program, torch.ones(2, 3)) == (
        "def computation(x):\n"
        "  t6 = torch.Tensor.sin(x)\n"
        "  t9 = torch.Tensor.add(t6, x)\n"
        "  del t6\n"
        "  return t9\n"
    )


def test_what_the_caller_gets_is_a_tensor_of_its_own() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t().t(), x.view(2, 3)

    x = torch.ones(2, 3)
    for found in tm.jit(program)(x):
        assert found is not x
        assert found.data_ptr() == x.data_ptr()


def test_views_that_begin_elsewhere_are_others() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        one, other = x.split(2)
        return one.t().t() - other.t().t() @ other.expand(2, 2).mT

    x = torch.randn(4, 2, requires_grad=True)
    expected = program(x)
    found = tm.jit(program)(x)
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(out.sum(), x)[0] for out in (found, expected)))


def test_other_readings_of_the_memory_are_others() -> None:
    def program(x: torch.Tensor) -> Any:
        real = torch.view_as_real(x)
        return (
            x.conj() * x.conj().conj(),
            real * torch.view_as_real(torch.view_as_complex(real)),
            x.mH * 2,
        )

    x = torch.randn(2, 2, dtype=torch.complex64)
    for found, expected in zip(tm.jit(program)(x), program(x), strict=True):
        assert torch.equal(found, expected)


def test_a_gradient_is_not_what_was_saved() -> None:
    x, y = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    (gradient,) = torch.autograd.grad(tm.jit(lambda x, y: (x.t() * y.t()).sum())(x, y), x)
    assert torch.equal(gradient, y)
    assert gradient.data_ptr() != y.data_ptr()


STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(-1, 0),
    "flip sizes": lambda x: x.view(x.shape[::-1]) if x.is_contiguous() else x,
    "first": lambda x: x[:2, :2],
    "last": lambda x: x[-2:, -2:],
    "whole": lambda x: x[:],
    "expand": lambda x: x.expand(*x.shape),
    "there and back": lambda x: x.unsqueeze(1).squeeze(1),
    "half": lambda x: x.chunk(2)[-1],
    "conj": lambda x: x.conj(),
    "compute": lambda x: x * 2,
}


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=8),
    cache=st.sampled_from(["constant values", "symbolic values"]),
)
def test_random_views_are_eagers(steps: list[str], cache: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value, found = x, [y]
        for step in steps:
            value = STEPS[step](value)
            found.append(value.sin().sum() * y + value[0, 0])
        return (*found[1:], value)

    jitted = tm.jit(program, cache=cache)
    for size in (4, 6):
        y = torch.randn(())
        x = torch.randn(size, size, requires_grad=True)
        results = [called(x, y) for called in (program, jitted)]
        gradients = [torch.autograd.grad([*map(torch.sum, result)], x)[0] for result in results]
        for expected, found in zip(*results, strict=True):
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
        assert results[1][-1].data_ptr() - x.data_ptr() == results[0][
            -1
        ].data_ptr() - x.data_ptr() or ("compute" in steps)
        torch.testing.assert_close(*gradients)
