"""User code that PyTorch is asked about: its effects are those of the program's calls, no more."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracemill as tm

LOG: list[str] = []


class Logged(torch.autograd.Function):
    """Notes each run, in a global and in an object and a list that it is handed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, counts: Any, seen: list[float]) -> torch.Tensor:
        LOG.append("forward")
        counts.forward += 1
        seen.append(random.random())
        print("forward runs")
        ctx.counts, ctx.seen = counts, seen
        return x * 2

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        LOG.append("backward")
        ctx.counts.backward += 1
        ctx.seen.append(random.random())
        print("backward runs")
        return cotangents[0] * 2, None, None


class Counts:
    def __init__(self) -> None:
        self.forward = self.backward = 0


def effects(wrap: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """What three steps and a call without gradients leave behind."""
    LOG.clear()
    random.seed(0)
    counts, seen = Counts(), [0.0]
    fn = wrap(lambda x: Logged.apply(x, counts, seen) + 1)
    found: list[Any] = []
    for step in range(4):
        x = torch.ones(2, requires_grad=step < 3)
        y = fn(x)
        if step < 3:
            y.sum().backward()
        found += [list(LOG), counts.forward, counts.backward, list(seen), x.grad]
        found.append(capsys.readouterr().out)
    return [*found, random.random()]


@pytest.mark.filterwarnings("ignore:.*is compiled again")
def test_an_autograd_function_has_its_effects_once_a_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert str(effects(tm.jit, capsys)) == str(effects(lambda fn: fn, capsys))


def test_what_it_reads_is_read_at_each_call() -> None:
    class Scaled(torch.autograd.Function):
        factor = 2.0

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * Scaled.factor

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            return cotangents[0] * Scaled.factor

    jitted = tm.jit(lambda x: Scaled.apply(x))
    for factor in (2.0, 3.0):
        Scaled.factor = factor
        x = torch.ones(2, requires_grad=True)
        y = jitted(x)
        assert torch.equal(y, x * factor)
        Scaled.factor = 5.0
        y.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full((2,), 5.0))
    assert tm.cache_info(jitted).misses == 1


@pytest.mark.parametrize("grad", [True, False])
def test_an_object_that_the_program_makes_is_not_written_to(grad: bool) -> None:
    """What is known of it is what it was while it was traced: each call makes another."""

    def program(x: torch.Tensor) -> Any:
        counts = Counts()
        return Logged.apply(x, counts, seen), counts

    x, seen = torch.ones(2, requires_grad=grad), [0.0]
    LOG.clear()

    with pytest.raises(
        tm.UnsupportedError, match=r"Counts that the program makes .* at .*Logged.apply"
    ):
        tm.jit(program)(x)

    assert (LOG, seen) == ([], [0.0])
