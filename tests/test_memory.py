"""Nothing grows without bound: not with calls, not with functions that are discarded, not with changing state."""

from __future__ import annotations

import gc
import linecache
import resource
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import tracemill as tm
from tracemill.compiler.derivative import DERIVATIVES
from tracemill.compiler.oracle import ORACLE

KIB = 1024


class Net(nn.Module):
    """Writes to a buffer, counts its calls, drops out, and has a branch: every part of a program."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = nn.functional.dropout(self.norm(self.first(x)), 0.1)
        return y.relu() if (x.sum() > 0) else y


def inference(called: Callable[..., Any], x: torch.Tensor) -> None:
    with torch.no_grad():
        called(x)


def training(called: Callable[..., Any], x: torch.Tensor) -> None:
    called(x).sum().backward()


STEPS = [inference, training]


class Use(NamedTuple):
    """What is in use, garbage collected: blocks of Python's memory, objects, and texts for tracebacks."""

    blocks: int
    objects: int
    texts: int

    @classmethod
    def now(cls) -> Use:
        gc.collect()
        texts = sum(name.startswith("<tracemill") for name in linecache.cache)
        return cls(sys.getallocatedblocks(), len(gc.get_objects()), texts)

    def assert_no_more(self, before: Use, blocks: int) -> None:
        """Blocks vary by some hundreds, as tables grow and shrink; objects and texts do not."""
        assert self.blocks - before.blocks < blocks
        assert self.objects - before.objects < 50
        assert self.texts <= before.texts


def most_resident() -> int:
    """The most memory that the process ever had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("step", STEPS)
def test_ten_thousand_calls(step: Callable[..., None]) -> None:
    jitted, x = tm.jit(Net()), torch.ones(2, 4)
    for _ in range(500):
        step(jitted, x)
    before, resident = Use.now(), most_resident()
    for _ in range(10_000):
        step(jitted, x)
    Use.now().assert_no_more(before, blocks=1_000)
    assert most_resident() - resident < 4 * KIB
    assert tm.cache_info(jitted).misses == 1


def one_function(step: Callable[..., None]) -> weakref.ref[Any]:
    factor = 2.0
    net = Net()
    jitted = tm.jit(lambda x: net(x) * factor)
    for _ in range(2):
        step(jitted, torch.ones(2, 4))
    return weakref.ref(net)


@pytest.mark.parametrize("step", STEPS)
def test_a_hundred_discarded_functions(step: Callable[..., None]) -> None:
    for _ in range(5):
        one_function(step)
    before, asked = Use.now(), (ORACLE.asked, DERIVATIVES.asked)
    made = [one_function(step) for _ in range(100)]
    gc.collect()
    assert not any(net() is not None for net in made)
    assert (ORACLE.asked, DERIVATIVES.asked) == asked, "what PyTorch said is remembered"
    del made
    Use.now().assert_no_more(before, blocks=1_000)


@pytest.mark.filterwarnings("ignore:.*is compiled again")
def test_state_that_is_another_at_each_call() -> None:
    class Counter:
        calls = 0

    def program(x: torch.Tensor) -> torch.Tensor:
        Counter.calls += 1
        return x * 2 if Counter.calls else x  # the same operations, which are remembered

    jitted, x = tm.jit(program, entries=8, paths=1_000), torch.ones(2)
    for _ in range(40):
        jitted(x)
    before = Use.now()
    for _ in range(100):
        jitted(x)
    assert tm.cache_info(jitted).entries == 8
    Use.now().assert_no_more(before, blocks=1_000)
