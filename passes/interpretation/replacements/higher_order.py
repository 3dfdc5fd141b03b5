"""`torch.cond` and `while_loop`: they run as Python would run them, on the values that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodWrapperType
from typing import Any, Protocol

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.errors import UnsupportedError

NEVER = (FunctionType, BuiltinFunctionType, MethodDescriptorType, MethodWrapperType)
"""Types of callables that are no such operators: to ask for the class of operators takes a microsecond."""


class Recording(AbstractContextManager[Any], Protocol):
    """What control flow needs of the interpreter."""

    def at(self) -> str:
        """The user's line, for errors."""
        ...


def run(recording: Recording, operator: Any, args: Sequence[Any]) -> Any:
    """What the operator gives; raises UnsupportedError for those that are not known."""
    with recording:
        if operator is internals.cond_operator:
            predicate, if_true, if_false, operands = args
            return (if_true if predicate else if_false)(*operands)
        if operator is internals.while_loop_operator:
            condition, body, carried, additional = args
            while condition(*carried, *additional):
                carried = tuple(body(*carried, *additional))
            return carried
    raise UnsupportedError(f"{operator} is called{recording.at()}; tracemill cannot compile that")
