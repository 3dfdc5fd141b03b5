"""Contents: which objects are told apart by what they hold, and not by which object they are."""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

EQUAL = (int, bool, str, bytes, range, torch.Size, torch.device, slice)
"""Classes whose values are constants that Python's == tells apart."""

_CONSTANTS = (*EQUAL, float, complex, type(None), type(Ellipsis), torch.dtype, enum.Enum)
_IDENTITIES = (
    types.FunctionType,
    types.MethodType,
    types.ModuleType,
    types.BuiltinFunctionType,
)
_CONTAINERS = (list, dict, tuple, set, frozenset, deque)
_BUILT_IN = (*_CONTAINERS, OrderedDict, defaultdict)


def counts_by_content(value: Any) -> bool:
    """Whether an argument is an object of a Python class, told apart by its class and attributes, not by identity."""
    kind = type(value)
    if isinstance(value, (enum.Enum, torch.nn.Module, type, *_IDENTITIES)):
        return False
    return all(map(_is_plain_class, kind.__mro__[:-1])) and (
        isinstance(getattr(value, "__dict__", None), dict) or hasattr(kind, "__slots__")
    )


@functools.cache
def _is_plain_class(cls: type) -> bool:
    root = cls.__module__.partition(".")[0]
    holds_nothing = cls.__module__ in ("abc", "collections.abc", "typing")
    return (
        holds_nothing
        or cls is types.SimpleNamespace
        or not (
            (root in sys.stdlib_module_names and root != "__main__")
            or root in ("torch", "numpy", "tracemill")
        )
    )


def counts_by_content_inside(value: Any) -> bool:
    """Whether what stands inside of an argument is told apart by what it holds: another object may stand there at each call.

    So it is for containers too, those left out that hold constants alone and cannot change: they are constants.
    """
    kind = type(value)
    if not issubclass(kind, _CONTAINERS):
        return counts_by_content(value)
    if kind in (tuple, frozenset):
        return not all(map(_is_constant, value))
    return all(cls in _BUILT_IN or _is_plain_class(cls) for cls in kind.__mro__[:-1])


def _is_constant(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_constant, value))
    return isinstance(value, _CONSTANTS)
