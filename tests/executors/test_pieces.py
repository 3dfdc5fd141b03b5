"""Pieces: which lines nvFuser gets as one region, on lines of any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tracemill as tm
from tracemill.executors.nvfuser.executor import NvFuserExecutor
from tracemill.executors.nvfuser.pieces import connected, cut, operations


def lines_of(fn: Callable[..., Any], *args: Any) -> list[tm.BoundSymbol]:
    return [bsym for bsym in tm.trace(fn, *args).bound_symbols if bsym.is_recorded]


def names(pieces: list[list[tm.BoundSymbol]]) -> list[list[str]]:
    return [[bsym.sym.name.split(".")[-1] for bsym in piece] for piece in pieces]


def test_updates_of_parameters_are_pieces_of_their_own() -> None:
    def step(first: torch.Tensor, second: torch.Tensor, rate: torch.Tensor) -> Any:
        one, other = first.sin(), second.cos()
        return one * rate, other / rate

    pieces = connected(lines_of(step, torch.ones(3), torch.ones(4), torch.ones(())))
    assert names(pieces) == [["sin", "mul"], ["cos", "div"]]


def test_lines_that_read_one_tensor_are_one_piece() -> None:
    pieces = connected(
        lines_of(lambda x, y: (x.sin(), y.exp(), x.cos()), torch.ones(3), torch.ones(3))
    )
    assert names(pieces) == [["sin", "cos"], ["exp"]]


def test_lines_that_read_a_number_made_among_them_are_one_piece() -> None:
    def step(x: torch.Tensor, y: torch.Tensor, count: torch.Tensor) -> Any:
        rate = count * 2
        return x * rate, y * rate

    assert len(connected(lines_of(step, torch.ones(3), torch.ones(4), torch.ones(())))) == 1


def test_random_draws_are_one_piece() -> None:
    def draws(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.rand_like(x) + x, y.sin(), torch.rand_like(y) + 1

    pieces = connected(lines_of(draws, torch.ones(3), torch.ones(4)))
    assert names(pieces) == [["rand_like", "add", "sin", "rand_like", "add"]]


@given(st.integers(1, 40), st.integers(1, 9))
def test_pieces_are_few_and_about_equal(length: int, most: int) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length):
            x = x.sin()
        return x

    lines = lines_of(chain, torch.ones(2))
    pieces = list(cut(lines, most))
    assert [bsym for piece in pieces for bsym in piece] == lines
    assert max(map(len, pieces)) <= most
    assert len(pieces) == -(-length // most)
    assert max(map(len, pieces)) - min(map(len, pieces)) < len(pieces) + 1


def test_a_line_of_many_operations_is_a_piece() -> None:
    lines = lines_of(lambda x: torch.nn.functional.rms_norm(x.sin(), (4,)).cos(), torch.ones(2, 4))
    assert operations(lines[1]) > 2
    assert names(list(cut(lines, 2))) == [["sin"], ["rms_norm"], ["cos"]]


def test_regions_are_of_one_operation_at_least() -> None:
    with pytest.raises(tm.OptionError, match="most_operations is 1 at least, not 0"):
        NvFuserExecutor(most_operations=0)
