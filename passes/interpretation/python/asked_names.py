"""Asked names: the attributes that a program asks for by names that it computes, as in `getattr(self, name)`.

Code does not mention such a name, so `getattr` and its kind are stood in for while code that mentions them runs. The fields
of a text that is formatted, as of `"{0.mode}".format(self)`, are told as well.
"""

from __future__ import annotations

import builtins
import functools
import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from string import Formatter
from typing import Any

from tracemill.passes.interpretation.python.watch import is_watched
from tracemill.passes.interpretation.replacements.replacement import Replacement

Tell = Callable[[Any, str], None]
"""Is told of an object and a name, before the attribute is looked for."""

_told: ContextVar[Tell | None] = ContextVar("told", default=None)


def _telling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def ask(*args: Any) -> Any:
        tell = _told.get()
        if tell is not None and len(args) > 1 and type(args[1]) is str:
            if is_watched(sys._getframe(1).f_code.co_filename):
                tell(*args[:2])
        return original(*args)

    return ask


ASKERS: dict[str, Callable[..., Any]] = {
    ask.__name__: _telling(ask) for ask in (getattr, hasattr, setattr, delattr)
}
ASKING = Replacement(lambda: ((builtins, name, ask) for name, ask in ASKERS.items()))
"""In the block, the program's `getattr` and its kind tell what they ask for."""


FORMATTING = frozenset({"format", "format_map"})
"""The methods of texts that look into what they are given."""

FIELD = Formatter.get_field.__code__
"""The code that finds what a field is about: `field_name`."""

_ATTRIBUTE = re.compile(r"\.([^.\[\]]+)")


def formatted(text: Any) -> None:
    """Tells which attributes a text asks for that the program formats; of whom, it does not say."""
    tell = _told.get()
    if tell is not None and type(text) is str:
        for name in _attributes(text):
            tell(None, name)


def field(name: str) -> None:
    """Tells which attributes a field asks for."""
    tell = _told.get()
    if tell is not None:
        for attribute in _ATTRIBUTE.findall(name):
            tell(None, attribute)


def _attributes(text: str) -> Iterator[str]:
    try:
        fields = [each[1:3] for each in Formatter().parse(text)]
    except ValueError:  # which the program is about to be told
        return
    for name, nested in fields:
        yield from _ATTRIBUTE.findall(name or "")
        yield from _attributes(nested or "")


@contextmanager
def told(tell: Tell) -> Generator[None]:
    """In the block, `tell` is told what this thread's program asks for while `getattr` is stood in for."""
    token = _told.set(tell)
    try:
        yield
    finally:
        _told.reset(token)
