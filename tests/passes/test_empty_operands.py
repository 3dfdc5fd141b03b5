"""Joins with empty tensors, as a key-value cache makes them at first: against eager, also in who shares memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracemill as tm

NOTHING = torch.tensor([])


def lines(jitted: Any) -> list[str]:
    return [bsym.sym.name for bsym in tm.last_traces(jitted)[-1].bound_symbols if bsym.is_recorded]


def like_eager(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A call that gives eager's values, layouts and gradients; the jitted function."""
    jitted = tm.jit(fn, **options)
    for _ in range(2):
        want, got = fn(*args), jitted(*args)
        assert (got.dtype, got.stride(), got.requires_grad) == (
            want.dtype,
            want.stride(),
            want.requires_grad,
        )
        assert torch.equal(got, want)
        inputs = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
        if want.requires_grad:
            for mine, theirs in zip(
                torch.autograd.grad(got.sin().sum(), inputs),
                torch.autograd.grad(want.sin().sum(), inputs),
                strict=True,
            ):
                assert torch.equal(mine, theirs)
    return jitted


def test_a_value_that_nobody_else_has_is_not_copied(golden: Any) -> None:
    def step(x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        return torch.cat([past, x.sin()], dim=-2) * 2

    jitted = like_eager(step, torch.randn(2, 3), torch.ones(0))
    assert lines(jitted) == ["torch.Tensor.sin", "torch.Tensor.mul"]
    golden(tm.last_traces(jitted)[-1].text(), "cache")


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of an argument": lambda x: torch.cat([NOTHING, x]),
    "of a view": lambda x: torch.cat([x.sin().t(), NOTHING]),
    "of what is read again": lambda x: torch.cat([y := x.sin(), NOTHING]) * y,
    "of one operand": lambda x: torch.cat([x], 1),
    "of one with dimensions": lambda x: torch.cat([x, torch.ones(3, 0)], dim=-1),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_copies(name: str, cache: str, requires_grad: bool) -> None:
    x = torch.randn(3, 4, requires_grad=requires_grad)
    jitted = like_eager(COPIES[name], x, cache=cache)
    assert "torch.clone" in lines(jitted)
    assert not {"torch.cat", "torch.tensor"}.intersection(lines(jitted))


KEPT: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "another dtype": (
        lambda x: torch.cat([torch.ones(0, dtype=torch.float64), x]),
        (torch.randn(2, 3),),
    ),
    "all are empty": (lambda x: torch.cat([x, x]), (torch.ones(0),)),
    "another dimension is empty": (lambda x: torch.cat([x, x], 1), (torch.ones(0, 3),)),
    "channels last": (
        lambda x: torch.cat([torch.ones(0), x]),
        (torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),),
    ),
    "a gradient for what is empty": (
        lambda x, y: torch.cat([y, x.sin()]),
        (torch.randn(2, requires_grad=True), torch.ones(0, requires_grad=True)),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_results_are_laid_out_as_eagers(name: str) -> None:
    fn, args = KEPT[name]
    like_eager(fn, *args)


def test_what_is_joined_besides_stays_joined() -> None:
    jitted = like_eager(lambda x: torch.cat([x, NOTHING, x.sin()], 1), torch.randn(2, 3))
    assert lines(jitted) == ["torch.Tensor.sin", "torch.cat"]
    assert len(tm.last_traces(jitted)[-1].bound_symbols[1].inputs) == 2


def test_a_copy_of_a_copy_is_no_copy() -> None:
    jitted = like_eager(
        lambda x: torch.cat([torch.cat([NOTHING, x.sin()]), NOTHING]) * 2, torch.randn(2, 3)
    )
    assert lines(jitted) == ["torch.Tensor.sin", "torch.Tensor.mul"]


def test_a_copy_is_the_callers_own() -> None:
    jitted = tm.jit(lambda x: (y := x.sin(), torch.cat([NOTHING, y]), torch.cat([x])))
    x = torch.randn(3)
    sine, copy, same = jitted(x)
    assert len({value.data_ptr() for value in (x, sine, copy, same)}) == 4


def test_what_is_written_to_afterwards_is_no_copy() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.sin()
        joined = torch.cat([NOTHING, y])
        y.add_(1)
        joined.mul_(2)
        return y, joined

    x = torch.randn(3)
    for got, want in zip(tm.jit(fn)(x), fn(x), strict=True):
        assert torch.equal(got, want)


def test_sizes_that_may_become_empty_are_no_reason() -> None:
    jitted = tm.jit(lambda x, y: torch.cat([x, y]), cache="symbolic values")
    for length in (3, 4, 0, 2):
        x, y = torch.randn(length, 2), torch.randn(5, 2)
        assert torch.equal(jitted(x, y), torch.cat([x, y]))


def test_a_cache_that_begins_empty_parts_no_region() -> None:
    class Everything(tm.FusionExecutor):
        name = "everything"

        def can_fuse(self, bsym: tm.BoundSymbol) -> bool:
            return all(
                0 not in value.shape
                for value in (*bsym.inputs, *bsym.outputs)
                if isinstance(value, tm.TensorProxy)
            )

        def fuse(self, region: Any) -> tm.BoundSymbol:
            return region.bind(region.trace.callable("minimal"))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        keys, values = (
            torch.cat([NOTHING, k.cos()], -2),
            torch.cat([NOTHING, v.transpose(0, 1)], -2),
        )
        return (q * 2) @ keys.transpose(-1, -2) @ values, keys, values

    q, k = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    jitted = tm.jit(attend, executors=[Everything()])
    args = q, k, torch.randn(3, 2, 4)
    for got, want in zip(jitted(*args), attend(*args), strict=True):
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
    assert lines(jitted) == []
