"""Attributes of modules and classes that are others while a program is interpreted."""

from __future__ import annotations

import builtins
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tracemill.compiler.errors import TracemillError
from tracemill.passes.interpretation.stand_in import interpretation, refusal

_INHERITED = object()
_replaced: Counter[tuple[int, str]] = Counter()


def is_replaced(owner: Any, name: str) -> bool:
    """Whether an attribute is another one than usual, since some thread interprets."""
    return _replaced.get((id(owner), name), 0) > 0


def standing_in(original: Callable[..., Any], handler: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, and `handler` in a thread that interprets."""

    @functools.wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        recording = interpretation.get()
        if recording is None:
            return original(*args, **kwargs)
        try:
            return handler(recording, *args, **kwargs)
        except TracemillError as error:
            refusal(error)
            raise

    return stand_in


@functools.cache
def _keep_for_ourselves(name: str) -> None:
    """Gives tracemill's modules a name of Python's own before it is replaced: their calls serve no program."""
    for path, module in list(sys.modules.items()):
        if path.startswith("tracemill."):
            vars(module).setdefault(name, getattr(builtins, name))


class Replacement:
    """Replaces attributes of the process for as long as any thread is inside the block.

    attributes: what is replaced, as (owner, name, value), asked for when the first thread comes in. The values ask by
    themselves which thread they serve. The last thread out puts back what was there.
    """

    def __init__(self, attributes: Callable[[], Iterable[tuple[Any, str, Any]]]) -> None:
        self._attributes = attributes
        self._lock = threading.Lock()
        self._inside = 0
        self._originals: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                for owner, name, value in self._attributes():
                    if owner is builtins:
                        _keep_for_ourselves(name)
                    self._originals.append((owner, name, vars(owner).get(name, _INHERITED)))
                    setattr(owner, name, value)
                    _replaced[id(owner), name] += 1
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            while self._inside == 0 and self._originals:
                owner, name, value = self._originals.pop()
                _replaced[id(owner), name] -= 1
                if value is _INHERITED:
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)
