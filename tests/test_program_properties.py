"""Random programs as text, of everything at once: values, effects, state, sharing of memory and gradients are eager's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracemill as tm
from tests import random_programs
from tracemill.compiler.errors import UnsupportedError


def choices(names: Sequence[str]) -> st.SearchStrategy[list[random_programs.Choice]]:
    number = st.integers(0, 30)
    return st.lists(st.tuples(st.sampled_from(names), number, number, number), max_size=9)


def check_as_text(
    chosen: list[random_programs.Choice], returned: list[int], kind: str, grad: bool, cache: str
) -> None:
    """Three calls: the second with other numbers, and other sizes under symbolic values, the third as the second."""
    text = random_programs.text_of(chosen, returned, kind, grad=grad)
    (program, state), (other, others_state) = (random_programs.made_of(text) for _ in range(2))
    jitted = tm.jit(other, cache=cache)
    rows = 7 if cache == "symbolic values" else 4
    for start, count in ((0.0, 4), (1.5, rows), (1.5, 4)):
        for_eager, for_jit = (
            random_programs.inputs_of(kind, start, count, grad=grad) for _ in range(2)
        )
        before = [tensor.detach().clone() for tensor in for_jit[:3]]
        want = random_programs.outcome(program, state, for_eager, grad=grad)
        got = random_programs.outcome(jitted, others_state, for_jit, grad=grad)
        if isinstance(got.error, UnsupportedError):  # refused, and so before any effect
            assert all(map(torch.equal, before, [tensor.detach() for tensor in for_jit[:3]]))
            assert "<random program" in str(got.error), got.error
            return
        assert random_programs.differences(want, got) is None, text
        if want.error is not None:
            return
    want, got = map(random_programs.after_writing, (want, got))
    assert random_programs.differences(want, got) is None, text


ANYTHING = (
    choices(sorted(random_programs.TEMPLATES)),
    st.lists(st.integers(0, 30), max_size=4),
    st.sampled_from(random_programs.KINDS),
    st.booleans(),
    st.sampled_from(["constant values", "symbolic values"]),
)


@pytest.mark.filterwarnings("ignore")
@given(*ANYTHING)
@settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
def test_programs_as_text(
    chosen: list[random_programs.Choice], returned: list[int], kind: str, grad: bool, cache: str
) -> None:
    check_as_text(chosen, returned, kind, grad, cache)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@given(*ANYTHING)
@settings(
    max_examples=500, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
def test_many_programs_as_text(
    chosen: list[random_programs.Choice], returned: list[int], kind: str, grad: bool, cache: str
) -> None:
    check_as_text(chosen, returned, kind, grad, cache)
