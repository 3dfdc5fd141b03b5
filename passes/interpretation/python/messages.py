"""Messages: warnings and log records of a program, which its epilogue gives at each call.

def epilogue():
  warn_again("a small batch", UserWarning, "model.py", 12, "model", registry)
  log_again(logger, record, (3,))
"""

from __future__ import annotations

import copy
import logging
import sys
import time
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from tracemill.passes.interpretation.location import is_own
from tracemill.passes.interpretation.python.watch import is_watched
from tracemill.passes.interpretation.replacements.replacement import Replacement, standing_in

Message = tuple[Any, tuple[Any, ...]]
"""A function that gives a message, and its arguments."""

_messages: ContextVar[list[Message] | None] = ContextVar("messages", default=None)


def warn_again(
    message: Any,
    category: type[Warning],
    file: str,
    line: int,
    module: str,
    registry: dict[Any, Any],
) -> None:
    """Gives a warning as `warnings.warn` did at a line of the program."""
    warnings.warn_explicit(message, category, file, line, module, registry)


def log_again(logger: logging.Logger, record: logging.LogRecord, args: Any) -> None:
    """Hands a log record to its logger, made now and with these arguments."""
    made = copy.copy(record)
    made.args, made.created = args, time.time()
    made.msecs = (made.created - int(made.created)) * 1000
    logger.handle(made)


def _caller(frame: FrameType | None, levels: int) -> FrameType | None:
    """The frame that many levels up, tracemill's own left out."""
    while frame is not None:
        if not is_own(frame.f_code.co_filename):
            levels -= 1
            if levels < 1:
                return frame
        frame = frame.f_back
    return None


def _warn(
    _recording: Any,
    message: Any,
    category: Any = None,
    stacklevel: int = 1,
    *rest: Any,
    **more: Any,
) -> None:
    messages, caller = _messages.get(), sys._getframe(2)
    frame = _caller(caller, stacklevel)
    if messages is None or frame is None or not is_watched(caller.f_code.co_filename):
        return _WARN(message, category, stacklevel + 2, *rest, **more)
    if isinstance(message, Warning):
        category = type(message)
    place = frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "<string>")
    with warnings.catch_warnings(record=True):  # which raises where the filters say so
        warnings.warn_explicit(message, category or UserWarning, *place, {})
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    messages.append((warn_again, (message, category or UserWarning, *place, registry)))
    return None


def _handle(_recording: Any, logger: logging.Logger, record: logging.LogRecord) -> None:
    messages = _messages.get()
    if messages is None or not is_watched(record.pathname):
        return _HANDLE(logger, record)
    args, record.args = record.args, None
    messages.append((log_again, (logger, record, args)))
    return None


_WARN: Any = warnings.warn
_HANDLE: Any = logging.Logger.handle


def _replaced() -> Iterable[tuple[Any, str, Any]]:
    yield warnings, "warn", standing_in(_WARN, _warn)
    yield logging.Logger, "handle", standing_in(_HANDLE, _handle)


_KEPT = Replacement(_replaced)


@contextmanager
def kept(messages: list[Message]) -> Generator[None]:
    """In the block, the warnings and log records of this thread's program are kept in `messages` in place of given."""
    token = _messages.set(messages)
    try:
        with _KEPT:
            yield
    finally:
        _messages.reset(token)
