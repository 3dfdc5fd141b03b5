"""What a program writes to Python's streams: once, in order, and never before it is sure that it runs."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch

import tracemill as tm
from tracemill.compiler.errors import UnsupportedError

X = torch.ones(3)


def noisy(x: torch.Tensor, end: Callable[[torch.Tensor], Any]) -> Any:
    print("first", x.sum())
    sys.stdout.write("second\n")
    sys.stdout.writelines(["third\n", "fourth\n"])
    print("error", file=sys.stderr)
    assert sys.__stderr__ is not None
    sys.stderr.flush()
    return end(x)


def fail(_x: torch.Tensor) -> Any:
    raise ValueError("a reason")


def fail_for_its_data(x: torch.Tensor) -> Any:
    if x.sum() > 2:
        raise ValueError("a reason")
    return x


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("end", [fail, fail_for_its_data])
def test_a_program_that_raises_prints_what_eager_does(
    end: Any, cache: str, capsys: pytest.CaptureFixture[str]
) -> None:
    called = tm.jit(noisy, cache=cache)
    for run in (noisy, called, called):
        with pytest.raises(ValueError, match="a reason"):
            run(X, end)
        out, err = capsys.readouterr()
        assert out == "first tensor(3.)\nsecond\nthird\nfourth\n"
        assert err == "error\n"


def test_a_program_is_printed_once_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    called = tm.jit(noisy, sharp_edges="allow")
    called(X, torch.sin)
    assert capsys.readouterr() == ("first tensor(3.)\nsecond\nthird\nfourth\n", "error\n")
    called(X, torch.sin)
    assert capsys.readouterr() == ("", "")


def test_a_refused_program_has_printed_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnsupportedError):
        tm.jit(noisy, sharp_edges="allow")(X, lambda x: x.data_ptr())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_what_a_program_prints_to_a_stream_of_its_own_is_there_at_once(cache: str) -> None:
    def program(x: torch.Tensor) -> Any:
        own, redirected = io.StringIO(), io.StringIO()
        print("sizes", x.shape[0], [x.shape[0]], file=own)
        with redirect_stdout(redirected):
            print("text")
        return x * len(own.getvalue()) * len(redirected.getvalue())

    torch.testing.assert_close(tm.jit(program, cache=cache, sharp_edges="allow")(X), program(X))


def test_a_stream_that_was_found_before_waits_for_print_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = sys.stdout

    def program(x: torch.Tensor) -> Any:
        print("text", file=stream)
        raise ValueError("a reason")

    with pytest.raises(ValueError, match="a reason"):
        tm.jit(program)(X)
    assert capsys.readouterr().out == "text\n"
