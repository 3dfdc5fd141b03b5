"""Calls that write to memory which they also read, or write to twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tracemill as tm
from tracemill.compiler.errors import MutationError

OPERATIONS: Any = torch

LISTS: dict[str, Callable[[Tensor], Any]] = {
    "a tensor and its alias": lambda x: OPERATIONS._foreach_add_([x, x[:]], 1.0),
    "one row twice": lambda x: OPERATIONS._foreach_add_([x[0], x[0], x[1]], [1.0, 2.0, 3.0]),
    "each from the other": lambda x: OPERATIONS._foreach_add_([x[0], x[1]], [x[1], x[0]]),
    "copies": lambda x: OPERATIONS._foreach_copy_([x[0], x[1]], [x[1], x[0]]),
    "three lists": lambda x: OPERATIONS._foreach_addcdiv_(
        [x[0], x[1]], [x[1], x[0]], [x[2], x[0] + 1], scalars=[2, 3]
    ),
    "a number for all": lambda x: OPERATIONS._foreach_mul_([x[0], x[0]], 3.0),
    "parts": lambda x: OPERATIONS._foreach_zero_([x[2], x[3]]),
}


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("name", LISTS)
def test_lists_that_share_memory_are_written_one_tensor_after_the_other(
    name: str, cache: str
) -> None:
    program = LISTS[name]
    jitted = tm.jit(program, cache=cache)
    for _ in range(2):
        want, got = (torch.arange(1.0, 13.0).reshape(4, 3) for _ in range(2))
        program(want)
        jitted(got)
        assert torch.equal(got, want)


def test_of_a_list_only_what_gradients_flow_to_requires_them() -> None:
    def program(x: Tensor, plain: Tensor) -> None:
        OPERATIONS._foreach_add_([x, plain], 1.0)

    leaf, plain = torch.ones(3, requires_grad=True), torch.ones(3)
    x = leaf * 2
    tm.jit(program)(x, plain)
    assert x.requires_grad
    assert not plain.requires_grad
    assert torch.equal(plain, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.mm(x, x, out=x),
        lambda x: torch.mm(x, x[:], out=x.t()),
        lambda x: x.__setitem__(slice(1, None), x.view(-1)[6:10]),
    ],
)
def test_what_depends_on_the_order_of_reading_and_writing_is_refused(
    program: Callable[[Tensor], Any],
) -> None:
    x = torch.arange(16.0).reshape(4, 4)
    with pytest.raises(MutationError, match=r"at the same time at .*order in which"):
        tm.jit(program)(x)
    assert torch.equal(x, torch.arange(16.0).reshape(4, 4))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[0].copy_(x[:1].sum(0)),
        lambda x: x.mul_(x[:]),
        lambda x: x.__setitem__(slice(1, None), x[2:3]),
        lambda x: torch.add(x[0], x[1], out=x[1]),
        lambda x: torch.cumsum(x, 0, out=x),
    ],
)
def test_what_does_not_depend_on_it_runs(program: Callable[[Tensor], Any]) -> None:
    want, got = (torch.arange(16.0).reshape(4, 4) for _ in range(2))
    program(want)
    tm.jit(program)(got)
    assert torch.equal(got, want)
