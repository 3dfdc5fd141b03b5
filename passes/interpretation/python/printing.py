"""Printing: what a program writes to Python's streams while it is traced is held back until it is compiled.

A program that is refused has printed nothing, and one that raises prints when it runs in eager.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, Protocol

from tracemill.passes.interpretation.python.python_numbers import SPOKEN_FOR
from tracemill.passes.interpretation.replacements.replacement import Replacement
from tracemill.passes.interpretation.stand_in import TracedTensor, interpretation


class Paper(Protocol):
    """Takes what a program writes.

    printed: writes it, each a part, in order.
    """

    printed: list[Callable[[], object]]

    def written(self, name: str, frame: FrameType) -> bool:
        """Whether a function of that name that `frame` calls writes for the program."""
        ...


paper: ContextVar[Paper | None] = ContextVar("paper", default=None)
"""What takes the writing of the program that this thread traces."""

silent: ContextVar[bool] = ContextVar("silent", default=False)
"""Whether what this thread writes at the moment is of a call that nobody made."""

_PRINT: Any = print


class _Stream:
    """Stands for one of Python's streams; in a thread that traces, the text waits."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if silent.get():
            return len(text)
        taking, caller = paper.get(), sys._getframe(1)
        if taking is not None and (
            caller.f_code in STANDING_IN
            or taking.written(f"{type(self._stream).__name__}.write", caller)
        ):
            taking.printed.append(functools.partial(self._stream.write, text))
            return len(text)
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _print(*values: Any, **options: Any) -> None:
    """Stands for `print` while a program is traced: tensors are printed with what they hold at that call."""
    recording: Any = interpretation.get()
    if silent.get():
        return
    file = options.get("file")
    for stream in _streams():
        if type(stream) is _Stream and stream._stream is file:
            options["file"] = stream
    _PRINT(*(recording.shown(v) if type(v) is TracedTensor else v for v in values), **options)


_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


def _streams() -> Iterator[Any]:
    return (getattr(sys, name, None) for name in _STREAMS)


def _replaced() -> Iterator[tuple[Any, str, Any]]:
    yield builtins, "print", _print
    found = {id(stream): _Stream(stream) for stream in _streams() if stream is not None}
    for name, stream in zip(_STREAMS, _streams(), strict=True):
        if stream is not None:
            yield sys, name, found[id(stream)]


STANDING_IN = frozenset((_print.__code__, _Stream.writelines.__code__))
"""The code that stands between a program and what it calls."""

SPOKEN_FOR.add(_print.__code__)
PRINTING = Replacement(_replaced)
"""`print` and Python's streams are stood in for."""
