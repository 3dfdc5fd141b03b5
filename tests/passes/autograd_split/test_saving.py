"""Minimal saving and rematerialisation: what is kept between forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import tracemill as tm
from tests.perf.saved_bytes import blocks, saved_by_eager, saved_by_tracemill


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def saved(program: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """The types of what the forward saves besides its inputs."""
    jitted = tm.jit(program, **options)
    jitted(*args)
    trace = tm.last_traces(jitted)[-1]
    tensors, _ = trace.output[1]
    return [proxy.type_string for proxy in tensors if proxy not in trace.args]


def test_views_are_made_again_from_their_base() -> None:
    assert saved(lambda x: x.softmax(0).t().reshape(6) * x.view(6), leaf(2, 3)) == ["cpu f32[2, 3]"]


def test_inputs_are_saved_as_they_are() -> None:
    x = leaf(3)
    assert saved(lambda x: x.sin().exp().neg(), x) == []


def test_a_long_chain_runs_again_as_a_whole() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(1_100):  # more than Python recurses
            x = x.cos()
        return x

    x = leaf(3)
    (expected,) = torch.autograd.grad(program(x).sum(), x)
    (found,) = torch.autograd.grad(tm.jit(program)(x).sum(), x)
    assert torch.equal(found, expected)
    assert saved(program, x) == []


def test_masks_are_kept_as_bool() -> None:
    assert saved(lambda x: F.dropout(x.softmax(-1), 0.4), leaf(3, 4)) == [
        "cpu f32[3, 4]",
        "cpu b8[3, 4]",
    ]


def test_elementwise_operations_run_again_and_others_do_not() -> None:
    program = lambda x, w: (x @ w).sin().exp().sin()  # noqa: E731
    x, w = leaf(3, 3), leaf(3, 3)
    assert saved(program, x, w) == ["cpu f32[3, 3]"]
    kept = saved(program, x, w, disable_passes=("rematerialisation",))
    assert kept == ["cpu f32[3, 3]"] * 2


def test_the_report_says_how_many_bytes() -> None:
    jitted = tm.jit(lambda x, w: (x @ w).sin().exp().sin())
    jitted(leaf(3, 3), leaf(3, 3))
    facts = {entry.name: entry.facts for entry in tm.last_report(jitted)}
    assert facts["rematerialisation"] == {"bytes before": 72, "bytes after": 36}
    sizes = [entry.saved_bytes for entry in tm.last_report(jitted) if entry.saved_bytes is not None]
    assert (sizes[0], sizes[-1]) == (72, 36)


def test_long_programs_are_left_as_they_are() -> None:
    kept = saved(
        lambda x, w: (x @ w).sin().exp().sin(),
        leaf(3, 3),
        leaf(3, 3),
        disable_passes=("rematerialisation",),
        passes=(Short(),),
    )
    assert len(kept) == 2


class Short(tm.passes.get("rematerialisation").__class__):
    """The same with a limit that every program exceeds."""

    name = "short_rematerialisation"

    def __init__(self) -> None:
        super().__init__(most_lines=0)


@pytest.mark.parametrize("block", ["GPT-2 block", "Llama block"])
def test_no_more_is_saved_than_eager_saves(block: str) -> None:
    model, args, kwargs = blocks(hidden=32, length=8)[block]
    eager = saved_by_eager(model, args, kwargs)
    without, with_rematerialisation = saved_by_tracemill(model, args, kwargs)
    assert without <= eager
    assert with_rematerialisation < without


def test_what_a_line_hands_through_is_not_made_by_it_again() -> None:
    """Of two tensors that are broadcast, the larger one is itself: a backward that makes the other again needs it."""

    def program(x: torch.Tensor, w: torch.Tensor, scale: float) -> torch.Tensor:
        mean, deviation = torch.broadcast_tensors(x @ w, torch.tensor(scale))
        return ((x - mean) / deviation**2).square().sum()

    x, w = leaf(3, 3), leaf(3, 3)
    want = torch.autograd.grad(program(x, w, 2.0), (x, w))
    got = torch.autograd.grad(tm.jit(program)(x, w, 2.0), (x, w))
    assert all(map(torch.equal, got, want))


_UNARY = (torch.sin, torch.exp, torch.tanh, torch.t, torch.relu, lambda x: x.softmax(-1))
_BINARY = (torch.add, torch.mul, torch.matmul, torch.sub)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_random_programs_have_eagers_gradients(steps: list[tuple[int, int, int]]) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        values = [x, y]
        for operation, first, second in steps:
            one, other = values[first % len(values)], values[second % len(values)]
            if operation < len(_UNARY):
                values.append(_UNARY[operation](one))
            else:
                values.append(_BINARY[operation - len(_UNARY)](one, other).tanh())
        return torch.stack(values[1:]).mean(0)

    torch.manual_seed(0)
    x, y = leaf(2, 2), leaf(2, 2)
    want: Any = torch.autograd.grad(program(x, y).sum(), (x, y), allow_unused=True)
    got: Any = torch.autograd.grad(tm.jit(program)(x, y).sum(), (x, y), allow_unused=True)
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_line_that_gives_back_its_argument_does_not_make_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        same, scale = torch.broadcast_tensors(x, torch.tensor(2.0))
        return (same - scale).pow(2) / scale

    x = leaf(2, 3)
    (want,) = torch.autograd.grad(program(x).sum(), x)
    (got,) = torch.autograd.grad(tm.jit(program)(x).sum(), x)
    assert torch.equal(got, want)
