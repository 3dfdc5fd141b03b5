"""Programs that raise: the error is eager's, and so are the effects that come before it."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tracemill as tm


class OwnError(Exception):
    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


def followed(called: Callable[..., Any], calls: int) -> list[Any]:
    """What each call gives, or raises."""
    found: list[Any] = []
    for _ in range(calls):
        try:
            found.append(called(torch.ones(2)).tolist())
        except OwnError as error:
            found.append((str(error), error.number, type(error.__cause__)))
    return found


@pytest.mark.filterwarnings("ignore:.*is compiled again")
def test_state_and_tensors_are_what_eager_leaves() -> None:
    def scenario(jit: Callable[[Any], Any]) -> Any:
        counts, total = [0], torch.zeros(2)

        def program(x: Tensor) -> Tensor:
            counts[0] += 1
            total.add_(x)
            if counts[0] % 2 == 0:
                try:
                    raise KeyError("inner")
                except KeyError as error:
                    raise OwnError("as asked", counts[0]) from error
            return x * counts[0]

        return followed(jit(program), 4), counts, total.tolist()

    assert scenario(tm.jit) == scenario(lambda program: program)


def test_random_numbers_go_on_where_eager_is() -> None:
    def program(x: Tensor) -> Tensor:
        torch.rand(3)
        raise OwnError("after a draw", 1)

    states: list[Tensor] = []
    for called in (program, tm.jit(program)):
        torch.manual_seed(0)
        followed(called, 2)
        states.append(torch.rand(1))
    assert torch.equal(*states)


def test_pytorchs_own_error_is_eagers() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).relu()

    x, y = torch.ones(2, 3), torch.ones(4, 5)
    with pytest.raises(RuntimeError) as want:
        program(x, y)
    with pytest.raises(RuntimeError) as got:
        tm.jit(program)(x, y)
    assert str(got.value) == str(want.value)


def test_an_error_of_the_trace_alone_is_said_and_the_call_is_eagers() -> None:
    log: list[int] = []

    def program(x: Tensor) -> Tensor:
        log.append(1)
        if torch.compiler.is_compiling():
            raise OwnError("not to be compiled", 1)
        return x * 2

    with pytest.warns(UserWarning, match=r"raises OwnError when it is traced.*not to be compiled"):
        assert torch.equal(tm.jit(program)(torch.ones(2)), torch.full((2,), 2.0))
    assert log == [1]


def test_a_refusal_comes_before_any_effect() -> None:
    log: list[int] = []

    def program(x: Tensor) -> int:
        log.append(1)
        return x.data_ptr()

    with pytest.raises(tm.UnsupportedError, match="the address of a tensor"):
        tm.jit(program)(torch.ones(2))
    assert log == []


@pytest.mark.parametrize("caught", [Exception, NotImplementedError, BaseException])
def test_a_refusal_that_the_program_catches_is_raised_at_its_end(
    caught: type[BaseException],
) -> None:
    log: list[int] = []

    def program(x: Tensor) -> Tensor:
        try:
            x.data_ptr()
        except caught:
            log.append(1)
            return x * 100
        return x * 2

    with pytest.raises(tm.UnsupportedError, match=r"the address of a tensor.*x\.data_ptr\(\)"):
        tm.jit(program)(torch.ones(2))
    assert log == []


def test_a_refusal_outlives_the_error_that_the_program_makes_of_it() -> None:
    def program(x: Tensor) -> int:
        try:
            return x._version
        except Exception as error:
            raise OwnError("no version", 1) from error

    with pytest.raises(tm.UnsupportedError, match="version counter"):
        tm.jit(program)(torch.ones(2))


def test_a_sharp_edge_that_is_refused_cannot_be_caught() -> None:
    def program(x: Tensor) -> Tensor:
        try:
            print("once")
        except Exception:
            return x * 100
        return x * 2

    with pytest.raises(tm.SharpEdgeError, match="print"):
        tm.jit(program, sharp_edges="error")(torch.ones(2))


def test_an_error_of_pytorchs_own_is_the_programs_to_catch() -> None:
    def program(x: Tensor) -> Tensor:
        try:
            return x @ torch.ones(7, 7)
        except RuntimeError:
            return x * 3

    assert torch.equal(tm.jit(program)(torch.ones(2, 2)), torch.full((2, 2), 3.0))


def test_what_a_program_prints_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: Tensor, fails: bool) -> Tensor:
        print("the sum is", x.sum(), end="!\n")
        print("to the other stream", file=sys.stderr)
        text = io.StringIO()
        print("inside", file=text)
        with contextlib.redirect_stdout(text):
            print("inside too")
        print(repr(text.getvalue()))
        if fails:
            raise OwnError("after a print", 1)
        return x

    called = tm.jit(program, sharp_edges="allow")
    for fails in (True, False):
        with contextlib.suppress(OwnError):
            program(torch.ones(2), fails)
        want = capsys.readouterr()
        with contextlib.suppress(OwnError):
            called(torch.ones(2), fails)
        assert capsys.readouterr() == want


def test_a_program_that_is_refused_has_printed_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: Tensor) -> int:
        print("before")
        return x.data_ptr()

    with pytest.raises(tm.UnsupportedError):
        tm.jit(program, sharp_edges="allow")(torch.ones(2))
    assert capsys.readouterr().out == ""
