"""Whole models run as in eager, bit for bit, and what is printed of them is what ran."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
import torch

import tracemill as tm
from tests.models import BUILDERS, Built, tensors_in
from tests.programs import computation_inputs, last_texts, run_text


@pytest.fixture(params=BUILDERS)
def built(request: pytest.FixtureRequest) -> Iterator[Built]:
    with torch.no_grad():
        yield BUILDERS[request.param]()


def assert_same(got: object, want: object) -> None:
    """The same tensors, bit for bit, in a result of the same type."""
    assert type(got) is type(want)
    assert_same_tensors(tensors_in(got), tensors_in(want))


def assert_same_tensors(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_first_and_second_call_equal_eager(built: Built) -> None:
    model, args, kwargs = built
    want = model(*args, **kwargs)
    jitted = tm.jit(model)

    assert_same(jitted(*args, **kwargs), want)
    assert (tm.cache_info(jitted).hits, tm.cache_info(jitted).misses) == (0, 1)

    assert_same(jitted(*args, **kwargs), want)
    assert (tm.cache_info(jitted).hits, tm.cache_info(jitted).misses) == (1, 1)


def test_changed_weights_are_seen_without_a_new_trace(built: Built) -> None:
    model, args, kwargs = built
    jitted = tm.jit(model)
    jitted(*args, **kwargs)
    for parameter in model.parameters():
        parameter.mul_(0.5)

    assert_same(jitted(*args, **kwargs), model(*args, **kwargs))
    assert tm.cache_info(jitted).misses == 1


@pytest.mark.parametrize("stage", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("printer", ["minimal", "default", "verbose"])
def test_the_printed_computation_runs_by_itself(built: Built, stage: int, printer: str) -> None:
    model, args, kwargs = built
    jitted = tm.jit(model)
    result = jitted(*args, **kwargs)
    trace = tm.last_traces(jitted)[stage]
    inputs = computation_inputs(jitted, *args, **kwargs)
    assert len(inputs) == len(trace.args)

    got = run_text(trace.text(printer), inputs)

    assert_same_tensors(tensors_in(got), tensors_in(result))


def test_every_stage_prints_as_python_with_every_printer(built: Built) -> None:
    model, args, kwargs = built
    jitted = tm.jit(model)
    jitted(*args, **kwargs)

    for text in last_texts(jitted):
        ast.parse(text)


@pytest.mark.parametrize("builder", BUILDERS)
def test_printing_is_deterministic(builder: str) -> None:
    """Two modules built alike print the same: no addresses, no times, no order of sets."""

    def texts() -> list[str]:
        model, args, kwargs = BUILDERS[builder]()
        jitted = tm.jit(model)
        with torch.no_grad():
            jitted(*args, **kwargs)
        return last_texts(jitted)

    assert texts() == texts()
