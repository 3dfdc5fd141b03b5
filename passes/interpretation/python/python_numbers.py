"""Symbolic numbers in the user's Python: `isinstance`, formatting, hashing and attributes answer as for an int.

PyTorch's SymInt is no int. While a program is traced under symbolic values, frames outside of torch see one all the same;
what needs the number itself gets it, with a guard.
"""

from __future__ import annotations

import builtins
import operator
import sys
from collections import abc
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch

from tracemill.compiler import tree
from tracemill.compiler.oracle import unprofiled
from tracemill.passes.interpretation.location import is_library
from tracemill.passes.interpretation.replacements.replacement import Replacement
from tracemill.passes.interpretation.stand_in import interpretation

_PLAIN: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_OPERATORS = "eq ne lt le gt ge add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow round".split()
_LACKING = [
    name
    for name, method in vars(int).items()
    if name.startswith("__") and callable(method) and not hasattr(torch.SymInt, name)
    if name not in ("__new__", "__getnewargs__")
]
_EXAMPLES: dict[type, Any] = {torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: False}


def is_symbolic(value: Any) -> bool:
    """Whether a value is a number that PyTorch follows symbolically."""
    return type(value) in _PLAIN


def plain(value: Any) -> Any:
    """The number itself, with a guard that it is this one."""
    return _PLAIN[type(value)](value)


def holds_symbolic(value: Any, seen: set[int] | None = None) -> bool:
    """Whether a symbolic number is anywhere in a structure or in an object's attributes."""
    seen = set() if seen is None else seen
    if is_symbolic(value):
        return True
    if id(value) in seen or isinstance(value, (type, torch.Tensor, torch.nn.Module)):
        return False
    seen.add(id(value))
    if isinstance(value, torch.Size):
        return any(map(is_symbolic, value))
    node = tree.node_of(value)
    if node is not None:
        return any(holds_symbolic(item, seen) for item in (*node.entries, *node.children))
    if isinstance(value, (set, frozenset)):
        return any(holds_symbolic(item, seen) for item in value)
    return any(holds_symbolic(item, seen) for item in getattr(value, "__dict__", {}).values())


SPOKEN_FOR: set[CodeType] = set()
"""Our own code that asks on the program's behalf, such as what stands for `print`."""


def _asked_by_user() -> bool:
    if interpretation.get() is None:
        return False
    code = sys._getframe(2).f_code
    return not is_library(code.co_filename) or code in SPOKEN_FOR


_isinstance = builtins.isinstance


def _is_instance(value: Any, kinds: Any, /) -> bool:
    if type(value) in _EXAMPLES and _asked_by_user():
        return _isinstance(_EXAMPLES[type(value)], kinds) or _isinstance(value, kinds)
    return _isinstance(value, kinds)


def _text(kind: type, name: str) -> Any:
    original = getattr(kind, name)

    def text(self: Any, *args: Any) -> Any:
        if _asked_by_user():
            return getattr(plain(self), name)(*args)
        return original(self, *args)

    return text


def _plainly(kind: type, name: str) -> Any:
    """An operator whose result is exact: integers stay symbolic, truths and floats are Python's own."""
    original = getattr(kind, name)
    word = name.strip("_")
    is_reflected = word not in vars(operator) and word != "round"
    on_numbers = round if word == "round" else getattr(operator, word[1:] if is_reflected else word)

    def operate(self: Any, *args: Any) -> Any:
        with unprofiled():
            result = original(self, *args)
            if type(result) is torch.SymInt or not is_symbolic(result) or not _asked_by_user():
                return result
            if type(result) is torch.SymBool:
                return bool(result)
            numbers = [plain(arg) if is_symbolic(arg) else arg for arg in (self, *args)]
            return on_numbers(*(reversed(numbers) if is_reflected else numbers))

    return operate


def _as_plain(name: str) -> Any:
    """A method of ints that PyTorch's class lacks."""

    def method(self: Any, *args: Any) -> Any:
        return getattr(plain(self), name)(
            *(plain(arg) if is_symbolic(arg) else arg for arg in args)
        )

    return method


def _missing(self: Any, name: str) -> Any:
    if name.startswith("__") or not _asked_by_user():
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
    return getattr(plain(self), name)


SPOKEN_FOR.add(_is_instance.__code__)
_REPLACED: tuple[tuple[Any, str, Any], ...] = (
    *(
        (kind, name, _text(kind, name))
        for kind in _PLAIN
        for name in ("__str__", "__repr__", "__format__", "__hash__")
    ),
    *(
        (kind, f"__{name}__", _plainly(kind, f"__{name}__"))
        for kind in (torch.SymInt, torch.SymFloat)
        for name in _OPERATORS
        if hasattr(kind, f"__{name}__")
    ),
    *((torch.SymInt, name, _as_plain(name)) for name in _LACKING),
    *((kind, "__getattr__", _missing) for kind in _PLAIN),
)
_NUMBERS = Replacement(lambda: _REPLACED)
_INSTANCES = Replacement(lambda: ((builtins, "isinstance", _is_instance),))


@contextmanager
def like_plain_numbers() -> abc.Generator[None]:
    """In the block symbolic numbers look like plain ones to the user's code in this thread."""
    with _NUMBERS, _INSTANCES:
        yield


@contextmanager
def asking_pytorch() -> abc.Generator[None]:
    """In the block, inside the other one, `isinstance` is Python's: PyTorch calls it thousands of times for an answer."""
    _INSTANCES.__exit__()
    try:
        yield
    finally:
        _INSTANCES.__enter__()
