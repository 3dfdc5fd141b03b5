"""Warnings and log records of a program: given at each call, as in eager."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tracemill as tm


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[Any, ...]] = []

    def emit(self, record: logging.LogRecord) -> None:
        where = record.funcName, record.lineno
        self.records.append((record.levelname, record.getMessage(), *where))


@pytest.fixture
def logger() -> logging.Logger:
    made = logging.Logger("of_a_program", logging.INFO)
    made.addHandler(Kept())
    return made


def records(logger: logging.Logger) -> list[tuple[Any, ...]]:
    (handler,) = logger.handlers
    assert isinstance(handler, Kept)
    found, handler.records = handler.records, []
    return found


def warned(called: Callable[..., Any], *args: Any, how: Any = "always") -> list[Any]:
    """What two calls warn of: the texts, the classes and the lines."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(how)
        for _ in range(2):
            called(*args)
    return [(str(w.message), w.category, w.filename, w.lineno) for w in caught]


def helper() -> None:
    warnings.warn("of the caller", RuntimeWarning, stacklevel=2)


def program(x: Tensor) -> Tensor:
    warnings.warn(f"of shape {tuple(x.shape)}", FutureWarning, stacklevel=1)
    warnings.warn(UserWarning("an object"), stacklevel=1)
    helper()
    return x * 2


@pytest.mark.parametrize("how", ["always", "default", "ignore"])
def test_warnings_are_given_at_each_call(how: str) -> None:
    def program_of(jit: Callable[[Any], Any]) -> list[Any]:
        globals().pop("__warningregistry__", None)
        called = jit(program)
        return [*warned(called, torch.ones(2), how=how), *warned(called, torch.ones(3), how=how)]

    assert program_of(tm.jit) == program_of(lambda function: function)


def test_a_warning_that_is_an_error_is_raised() -> None:
    called = tm.jit(program)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(FutureWarning, match="of shape"):
                called(torch.ones(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            called(torch.ones(2))


def test_records_are_logged_at_each_call(logger: logging.Logger) -> None:
    def program(x: Tensor) -> Tensor:
        logger.info("a sum of %s, %d dimensions", x.sum(), x.dim())
        logger.debug("details")
        return x * 2

    called = tm.jit(program)
    for value in (1.0, 1.0, 2.0):
        x = torch.full((2,), value)
        program(x)
        want = records(logger)
        called(x)
        assert records(logger) == want
    assert tm.cache_info(called).misses == 1


def test_another_level_is_seen(logger: logging.Logger) -> None:
    def program(x: Tensor) -> Tensor:
        logger.debug("details")
        return x * 2 if logger.isEnabledFor(logging.DEBUG) else x

    called = tm.jit(program)
    for level in (logging.INFO, logging.DEBUG, logging.ERROR):
        logger.setLevel(level)
        want = program(torch.ones(2)), records(logger)
        got = called(torch.ones(2)), records(logger)
        assert torch.equal(got[0], want[0])
        assert got[1] == want[1]


def test_a_message_is_a_line_of_the_epilogue() -> None:
    def program(x: Tensor) -> Tensor:
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x + 1

    called = tm.jit(program)
    with pytest.warns(UserWarning, match="careful"):
        called(torch.ones(2))
    text = tm.last_epilogue_traces(called)[-1].text("minimal")
    assert 'warn_again("careful", ' in text


def test_nothing_is_kept_outside_of_a_trace(logger: logging.Logger) -> None:
    before = warnings.warn, logging.Logger.handle
    tm.jit(lambda x: x + 1)(torch.ones(2))
    assert (warnings.warn, logging.Logger.handle) == before
