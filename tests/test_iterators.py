"""Iterators that were there before the call go on by one call's worth at each call, whoever holds them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tracemill as tm

pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again")

count: Iterator[int] = iter(())


def numbers() -> Iterator[int]:
    yield from range(1, 100)


class Holder:
    def __init__(self, iterator: Iterator[int]) -> None:
        self.iterator = iterator


ITERATORS: dict[str, Callable[[], Iterator[int]]] = {
    "a generator": numbers,
    "itertools.count": lambda: itertools.count(1),
    "itertools.cycle": lambda: itertools.cycle([1, 2, 3]),
    "a list's iterator": lambda: iter([1, 2, 3, 4, 5, 6, 7]),
    "map": lambda: map(int, itertools.count(1)),
    "zip": lambda: (a for a, _ in zip(itertools.count(1), itertools.count(1), strict=False)),
}


def in_a_global(iterator: Iterator[int]) -> Callable[..., Any]:
    global count
    count = iterator
    return lambda x: x * next(count)


def in_a_closure(iterator: Iterator[int]) -> Callable[..., Any]:
    return lambda x: x * sum(itertools.islice(iterator, 2))


def in_an_attribute(iterator: Iterator[int]) -> Callable[..., Any]:
    holder = Holder(iterator)
    return lambda x: x * next(holder.iterator)


@pytest.mark.parametrize("held", [in_a_global, in_a_closure, in_an_attribute])
@pytest.mark.parametrize("name", ITERATORS)
def test_each_call_takes_the_next(name: str, held: Callable[..., Any]) -> None:
    x = torch.ones(2)
    program = held(ITERATORS[name]())
    wanted = [program(x) for _ in range(3)]
    jitted = tm.jit(held(ITERATORS[name]()))
    assert all(torch.equal(jitted(x), want) for want in wanted)


@pytest.mark.parametrize("name", ITERATORS)
def test_one_may_be_an_argument(name: str) -> None:
    jitted = tm.jit(lambda x, iterator: x * next(iterator))
    mine, eagers = ITERATORS[name](), ITERATORS[name]()
    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(jitted(x, mine), x * next(eagers))
    assert torch.equal(jitted(x, iter([7])), x * 7)


def test_one_that_the_program_makes_is_its_own() -> None:
    jitted = tm.jit(lambda x: x * sum(numbers()))
    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(jitted(x), x * sum(numbers()))
    assert tm.cache_info(jitted).misses == 1
