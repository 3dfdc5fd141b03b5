"""Verify: each way in which a trace can be wrong is found, and shown where it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import tracemill as tm
from tracemill.compiler import prims
from tracemill.passes.verify import verify, verify_program

sin, cos, mm = tm.symbol(torch.sin), tm.symbol(torch.cos), tm.symbol(torch.mm)


def tensor(name: str, *shape: int, **options: Any) -> tm.TensorProxy:
    return tm.TensorProxy(name, shape=shape or (3,), **options)


X, T0, T1 = tensor("x"), tensor("t0"), tensor("t1")


def a_trace(lines: Sequence[tm.BoundSymbol], output: Any = None, args: Any = (X,)) -> tm.Trace:
    return tm.Trace("computation", args, lines, output)


GOOD = [sin.bind(X, output=T0), cos.bind(T0, output=T1)]


def test_a_well_formed_trace_passes() -> None:
    verify(a_trace(GOOD, T1))
    verify(a_trace([*GOOD, prims.delete([T0])], T1))


FAULTS: dict[str, tuple[tm.Trace, str]] = {
    "not defined": (a_trace(GOOD[1:], T1), "'t0' is used but not defined here, or freed already"),
    "used before": (a_trace(GOOD[::-1], T1), "'t0' is used but not defined"),
    "output not defined": (a_trace(GOOD[:1], T1), "'t1' is used but not defined"),
    "freed": (
        a_trace([GOOD[0], prims.delete([T0]), GOOD[1]], T1),
        "'t0' is used but not defined here, or freed already",
    ),
    "defined twice": (
        a_trace([GOOD[0], sin.bind(X, output=tensor("t0"))], T0),
        "'t0' is defined twice",
    ),
    "the same line twice": (a_trace([GOOD[0], GOOD[0]], T0), "'t0' is defined twice"),
    "an argument defined again": (
        a_trace([sin.bind(X, output=tensor("x"))], X),
        "'x' is defined twice",
    ),
    "another value of that name": (
        a_trace([GOOD[0], cos.bind(tensor("t0"), output=T1)], T1),
        "'t0' is used for two different values",
    ),
    "arguments of one name": (a_trace([], X, args=[X, tensor("x")]), "two arguments are named 'x'"),
    "reserved name": (
        a_trace([sin.bind(X, output=tensor("torch"))], X),
        "no value can be named 'torch'",
    ),
    "no name": (a_trace([sin.bind(X, output=tensor("t 0"))], X), "no value can be named 't 0'"),
    "shape": (
        a_trace([sin.bind(X, output=tensor("t0", 4))], X),
        '\'t0\' is recorded as "cpu f32[4]" with strides (1,), but torch.sin gives "cpu f32[3]"',
    ),
    "dtype": (
        a_trace([sin.bind(X, output=tensor("t0", dtype=torch.float64))], X),
        "'t0' is recorded as \"cpu f64[3]\"",
    ),
    "strides": (
        a_trace(
            [sin.bind(tensor("y", 2, 2), output=tensor("t0", 2, 2, stride=(1, 2)))],
            args=[tensor("y", 2, 2)],
        ),
        "'y' is used for two different values",
    ),
    "number of outputs": (
        a_trace([tm.symbol(torch.max).bind(X, 0, output=T0)], T0),
        "torch.max gives 2 outputs, not 1",
    ),
    "wrong arguments": (
        a_trace([mm.bind(X, X, output=T0)], T0),
        "torch.mm cannot take these arguments",
    ),
    "arity": (a_trace([sin.bind(X, X, output=T0)], T0), "torch.sin cannot take these arguments"),
}


@pytest.mark.parametrize(("trace", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(trace: tm.Trace, fault: str) -> None:
    with pytest.raises(tm.TraceError) as caught:
        verify(trace)
    assert str(caught.value).startswith(f"ill-formed trace: {fault}")


def test_the_error_shows_the_trace_with_the_line_marked(golden: Callable[[str, str], None]) -> None:
    wrong = a_trace(
        [
            sin.bind(X, output=T0),
            cos.bind(T0, output=tensor("t1", 4)),
            sin.bind(T0, output=tensor("t2")),
        ],
        T0,
    )
    with pytest.raises(tm.TraceError) as caught:
        verify(wrong)
    golden(str(caught.value), "marked")


def test_a_long_trace_is_shown_around_its_fault() -> None:
    values = [X, *(tensor(f"t{n}") for n in range(400))]
    lines = [sin.bind(old, output=new) for old, new in itertools.pairwise(values)]
    lines[250] = sin.bind(tensor("nowhere"), output=values[251])
    with pytest.raises(tm.TraceError) as caught:
        verify(a_trace(lines, values[-1]))
    text = str(caught.value)
    assert "t250 = torch.sin(nowhere)" in text
    assert "more lines above" in text
    assert "more lines below" in text
    assert len(text.splitlines()) < 70


def test_metadata_is_checked_against_the_arguments_as_they_are() -> None:
    """A pass that gives a recorded line other arguments has made another call of it."""
    trace = tm.trace(lambda x: torch.sum(x, 0), torch.ones(3, 4))
    (line,) = trace.bound_symbols
    wrong = trace.replace(bound_symbols=[line.from_bsym(args=(trace.args[0], 1))])
    with pytest.raises(
        tm.TraceError, match=r'recorded as "cpu f32\[4\]".*torch.sum gives "cpu f32\[3\]"'
    ):
        verify(wrong)
    swapped = tensor("y", 2, 2)
    wrong = trace.replace(args=[swapped], bound_symbols=[line.substitute({trace.args[0]: swapped})])
    with pytest.raises(tm.TraceError, match=r'torch.sum gives "cpu f32\[2\]"'):
        verify(wrong)


def test_lines_that_were_verified_are_not_asked_about_again() -> None:
    wrong = a_trace([sin.bind(X, output=tensor("t0", 4))], X)
    verify(a_trace(wrong.bound_symbols, X), previous=wrong)
    with pytest.raises(tm.TraceError):
        verify(wrong, previous=a_trace([], X))


def test_a_trace_that_cannot_be_printed_is_reported_all_the_same() -> None:
    class Unprintable(tm.Symbol):
        def lines(self, bsym: Any, writer: Any) -> list[str]:
            raise ZeroDivisionError

    wrong = a_trace([Unprintable("odd").bind(T0, output=T1)], T1)
    with pytest.raises(tm.TraceError, match="'t0' is used but not defined") as caught:
        verify(wrong)
    assert "odd(t0)" in str(caught.value)


# Programs


def a_program(saved: Any, unpacked: Any, *, output: Any = None) -> tm.Program:
    """A forward that saves values, and a backward that unpacks others."""
    collection = tm.CollectionProxy("saved_for_backward", length=len(unpacked))
    lines = [prims.UNPACK_SEQUENCE.bind(collection, output=unpacked)]
    cotangents = tm.CollectionProxy("cotangents", length=1)
    return tm.Program(
        tm.Trace("prologue", [X], output=(X,)),
        a_trace(GOOD, output if output is not None else (T1, saved)),
        tm.Trace("backward", [collection, cotangents], lines, (None,)),
    )


def test_a_program_whose_traces_fit_passes() -> None:
    verify_program(a_program((T0, X), (tensor("t0"), tensor("x"))))
    verify_program(a_program((T0,), (tensor("t0", requires_grad=True),)))


def test_the_backward_unpacks_what_the_forward_saved() -> None:
    with pytest.raises(
        tm.TraceError, match="the computation saves 2 values here, and the backward unpacks 1"
    ):
        verify_program(a_program((T0, X), (tensor("t0"),)))
    with pytest.raises(
        tm.TraceError, match=r'\'t0\' is unpacked as "cpu f32\[4\]".*saves \'t0\', "cpu f32\[3\]"'
    ):
        verify_program(a_program((T0,), (tensor("t0", 4),)))
    with pytest.raises(tm.TraceError, match=r"saves 2.5 where the backward unpacks"):
        verify_program(a_program((2.5,), (tensor("t0"),)))


def test_a_collection_inside_what_is_saved_is_unpacked_too() -> None:
    tensors = tm.CollectionProxy("C0", length=1)
    for inner, fits in ((tensor("t0"),), True), ((tensor("t0"), tensor("t1")), False):
        program = a_program(((T0,), ()), (tensors, tm.CollectionProxy("C1")))
        assert program.backward is not None
        program.backward.bound_symbols.append(prims.UNPACK_SEQUENCE.bind(tensors, output=inner))
        if fits:
            verify_program(program)
        else:
            with pytest.raises(
                tm.TraceError, match="saves 1 values here, and the backward unpacks 2"
            ):
                verify_program(program)


def test_a_forward_with_a_backward_returns_a_pair() -> None:
    with pytest.raises(tm.TraceError, match="does not return \\(outputs, saved_for_backward\\)"):
        verify_program(a_program((), (), output=T1))


def test_the_prologue_returns_what_the_computation_takes() -> None:
    program = tm.Program(tm.Trace("prologue", [X], output=(X, X)), a_trace(GOOD, T1))
    with pytest.raises(
        tm.TraceError, match="the prologue returns 2 values, and the computation takes 1"
    ):
        verify_program(program)
