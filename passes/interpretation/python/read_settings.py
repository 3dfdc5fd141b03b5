"""Read settings: PyTorch's flags that a program asked for as Python values, each with a check of what it was told.

    if torch.backends.cudnn.deterministic: ...

The settings that every prologue checks, such as grad mode, are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.settings import AUTOCAST_DEVICES
from tracemill.passes.interpretation.location import is_own
from tracemill.passes.interpretation.python.conditions import Named, StateCheck


def all_autocast_dtypes() -> list[Any]:
    """What autocast would cast to on each device type, whether it is on or off."""
    return [torch.get_autocast_dtype(device) for device in AUTOCAST_DEVICES]


def float32_precisions() -> list[str]:
    """The precision of float32 for each backend and operation."""
    return [internals.get_float32_precision(*of) for of in internals.FLOAT32_PRECISIONS]


_PLAIN: dict[Callable[..., Any], Callable[[], Any]] = {
    reader: reader for reader in internals.setting_readers()
}
_OF_ARGUMENTS: dict[Callable[..., Any], Callable[[], Any]] = {
    torch.get_autocast_dtype: all_autocast_dtypes,
    internals.get_float32_precision: float32_precisions,
}
_IN_C = _PLAIN | _OF_ARGUMENTS
"""The functions that tell a setting, each with one that tells all that it may be asked for."""

_IN_PYTHON: dict[CodeType, Callable[[], Any]] = {
    reader.__code__: reader for reader in internals.python_setting_readers()
}
READERS = frozenset(reader.__name__ for reader in _IN_C)
"""The names of the functions in C."""


def told(question: Callable[[], Any]) -> Any:
    """What a setting is; None where PyTorch does not tell, since a newer function has set it."""
    try:
        return question()
    except RuntimeError:
        return None


def _in_words(question: Callable[[], Any]) -> str:
    return question.__name__.removeprefix("_").removeprefix("get_").replace("_", " ")


class ReadSettings:
    """The settings as they are before a program is traced, and which of them it asks for."""

    def __init__(self) -> None:
        questions = (*_IN_C.values(), *_IN_PYTHON.values())
        self._before = {question: told(question) for question in questions}
        self._asked: dict[Callable[[], Any], None] = {}

    def c_call(self, function: Any, caller: CodeType) -> None:
        """A call of a function in C that has one of the names in `READERS`."""
        question = _IN_C.get(function)
        if question is not None and not is_own(caller.co_filename):
            self._asked[question] = None

    def put_back(self) -> list[str]:
        """Puts back what the program left changed; what it was, in words."""
        found: list[str] = []
        for question, before in self._before.items():
            if told(question) != before:
                found.append(_in_words(question))
                restore = internals.setting_readers().get(question)
                if restore is not None:
                    restore(*before if isinstance(before, tuple) else (before,))
        return found

    def checks(self, ran: Callable[[CodeType], bool]) -> list[StateCheck]:
        """The checks of what was asked for; `ran` says whether code in Python was executed."""
        asked = [*self._asked, *(reader for code, reader in _IN_PYTHON.items() if ran(code))]
        return [
            StateCheck(
                f"setting of PyTorch: {_in_words(question)}",
                None,
                "{1}({2}) == {3}",
                (Named(told), Named(question), self._before[question]),
            )
            for question in asked
        ]
