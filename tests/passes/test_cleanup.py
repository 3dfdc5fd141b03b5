"""Renaming, dead-code elimination, common subexpressions, freeing values: texts before and after."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tracemill as tm


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def steps(fn: Callable[..., Any], *args: Any) -> dict[str, str]:
    """The text after each pass, of what the computation does."""
    jf = tm.jit(fn)
    jf(*args)
    return {trace.constructed_by: body(trace) for trace in tm.last_traces(jf)}


def body(trace: tm.Trace) -> str:
    return trace.text("minimal").split("\n\n", 1)[1]


def test_renaming_numbers_each_kind_and_keeps_the_names_of_the_signature() -> None:
    def program(t0: torch.Tensor, v3: torch.Tensor) -> Any:
        return torch.max(t0 + v3, 0).values

    text = steps(program, torch.ones(2), torch.ones(2))["proxy_renaming"]
    assert text == (
        "def computation(t0, v3):\n"
        "  t1 = torch.Tensor.add(t0, v3)\n"
        "  t2, t3, = torch.max(t1, 0)\n"
        "  return t2\n"
    )


def test_dce_removes_what_nobody_needs_and_the_inputs_that_are_then_unused() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.sin(y)
        x.to(x.dtype)
        return torch.cos(x)

    jf = tm.jit(program)
    jf(torch.ones(2), torch.ones(2))
    texts = {trace.constructed_by: body(trace) for trace in tm.last_traces(jf)}
    assert texts["dce"] == "def computation(x):\n  t1 = torch.cos(x)\n  return t1\n"
    assert body(tm.last_prologue_traces(jf)[-1]).splitlines()[-1] == "  return (x,)"


def test_dce_keeps_random_draws_and_writes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch.rand(2)
        scratch = torch.zeros(2)
        scratch.add_(x)
        return scratch + torch.rand(2)

    torch.manual_seed(3)
    want = program(torch.ones(2))
    torch.manual_seed(3)
    jf = tm.jit(program)
    assert torch.equal(jf(torch.ones(2)), want)
    assert body(tm.last_traces(jf)[-1]).count("torch.rand") == 2


def test_cse_computes_equal_calls_once() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + torch.sin(x) * torch.sin(x)

    assert steps(program, torch.ones(2))["cse"] == (
        "def computation(x):\n"
        "  t0 = torch.sin(x)\n"
        "  t3 = torch.Tensor.mul(t0, t0)\n"
        "  t4 = torch.Tensor.add(t0, t3)\n"
        "  return t4\n"
    )


KEPT_APART: dict[str, Callable[[torch.Tensor], Any]] = {
    "random draws": lambda x: torch.rand_like(x) - torch.rand_like(x),
    "1 and True": lambda x: (x.int() + 1).float() + (x.int() + True).float(),
    "int and float": lambda x: [x.int() * 2 + 0, x.int() * 2.0 + 0],
    "zeros of both signs": lambda x: 1 / (x * 0 + 0.0) - 1 / (x * 0 * -0.0),
    "tensors that the caller gets": lambda x: [torch.sin(x), torch.sin(x)],
    "what is written to": lambda x: torch.zeros(2).add_(x) + torch.zeros(2),
}


@pytest.mark.parametrize("program", KEPT_APART.values(), ids=KEPT_APART)
def test_cse_keeps_apart_what_is_not_the_same(program: Callable[[torch.Tensor], Any]) -> None:
    jf = tm.jit(program)
    for _ in range(2):
        torch.manual_seed(1)
        want = program(torch.ones(2))
        torch.manual_seed(1)
        torch.testing.assert_close(jf(torch.ones(2)), want, rtol=0, atol=0, equal_nan=True)


def test_two_tensors_that_the_caller_gets_stay_two() -> None:
    first, second = tm.jit(KEPT_APART["tensors that the caller gets"])(torch.ones(2))
    assert first.data_ptr() != second.data_ptr()


def test_values_are_freed_after_their_last_use() -> None:
    text = steps(lambda x: torch.cos(torch.sin(x)) + 1, torch.ones(2))["delete_last_used"]
    assert text == (
        "def computation(x):\n"
        "  t0 = torch.sin(x)\n"
        "  t1 = torch.cos(t0)\n"
        "  del t0\n"
        "  t2 = torch.Tensor.add(t1, 1)\n"
        "  del t1\n"
        "  return t2\n"
    )


def test_a_freed_value_is_gone_before_the_next_line_runs() -> None:
    alive: list[bool] = []
    first: list[weakref.ref[torch.Tensor]] = []
    mine = tm.OperatorExecutor("mine")

    def remember(x: torch.Tensor) -> torch.Tensor:
        made = torch.sin(x)
        first.append(weakref.ref(made))
        return made

    def look(x: torch.Tensor) -> torch.Tensor:
        alive.append(first[-1]() is not None)
        return torch.exp(x)

    mine.register(torch.sin, remember)
    mine.register(torch.exp, look)
    jf = tm.jit(lambda x: torch.exp(torch.cos(torch.sin(x))), executors=[mine])
    got = jf(torch.ones(2))
    assert alive == [False]
    assert math.isclose(got[0].item(), math.exp(math.cos(math.sin(1))), rel_tol=1e-6)


def test_an_operator_executor_claims_what_its_checker_allows() -> None:
    mine = tm.OperatorExecutor("mine")
    mine.register(torch.Tensor.mul, lambda x, y: x + x, checker=lambda x, y: y == 2)
    jf = tm.jit(lambda x: x * 2 + x * 3, executors=[mine])
    assert torch.equal(jf(torch.ones(2)), torch.full((2,), 5.0))
    text = body(tm.last_traces(jf)[-1])
    assert "t0 = mine_mul(x, 2)" in text
    assert "t1 = torch.Tensor.mul(x, 3)" in text
