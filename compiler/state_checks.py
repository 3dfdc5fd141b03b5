"""Checks of Python state, a table at a time: what a prologue's text calls for dictionaries, sequences and modules.

Python gives each state of a dictionary a version number, unique in the process. So a table is compared once, and then,
as long as nobody writes to it, by that number alone.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from types import MethodType
from typing import Any

import torch

from tracemill.compiler.contents import EQUAL
from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.torch_internals import dict_version

_SEQUENCES = (tuple, list, deque)


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()
"""Stands for what is not there."""


class TensorLike:
    """Stands for a tensor that the program looked at without computing with it: any of the same metadata will do."""

    __slots__ = ("kind", "meta")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.kind = type(tensor)
        self.meta = TensorMeta.of(tensor)

    def __repr__(self) -> str:
        return f'a tensor "{self.meta.type_string}"'


class OfClass:
    """Stands for an object inside of an argument: any of this class will do, and what it holds has checks of its own."""

    __slots__ = ("kind",)

    def __init__(self, kind: type) -> None:
        self.kind = kind


def same(found: Any, expected: Any) -> bool:
    """Whether a value is as expected: the same object, or an equal constant, or a container of such.

    Stricter than ==, which holds 1, True and 1.0 for one, and 0.0 and -0.0; never calls an `__eq__` of the user's.
    """
    if found is expected:
        return True
    kind = type(found)
    if type(expected) is TensorLike:
        return kind is expected.kind and TensorMeta.of(found) == expected.meta
    if kind is not type(expected):
        return type(expected) is OfClass and kind is expected.kind
    if kind is float:
        return found.hex() == expected.hex()
    if kind is complex:
        return same((found.real, found.imag), (expected.real, expected.imag))
    if kind in EQUAL:
        return found == expected
    return _same_parts(found, expected, kind)


def _same_parts(found: Any, expected: Any, kind: type) -> bool:
    if issubclass(kind, enum.Enum):
        return False  # members are compared by identity
    if kind in _SEQUENCES:
        return len(found) == len(expected) and all(map(same, found, expected))
    if kind is dict:
        return (
            len(found) == len(expected)
            and all(map(same, found, expected))
            and all(map(same, found.values(), expected.values()))
        )
    if kind in (set, frozenset):
        return found == expected and {type(item) for item in found} == {
            type(item) for item in expected
        }
    if kind is MethodType:
        return found.__self__ is expected.__self__ and found.__func__ is expected.__func__
    if kind is functools.partial:
        return found.func is expected.func and same(
            (found.args, found.keywords), (expected.args, expected.keywords)
        )
    return False


AS_TRACED = "{1}({0}) == {2}.version or {2}.check({0})"
"""The condition that the table at a place is as a TableCheck, the second value, has it; the first is `dict_version`."""

IDENTICAL = "{0} is {1}"
SAME = "{0} is {1} or {2}({0}, {1})"
CONSTANT = "{0}.__class__ is {1} and {0} == {2}"
FLOAT = "{0}.__class__ is {1} and {0}.hex() == {2}"
AS_LISTED = "{1}.check({0})"
LENGTH = "len({0}) == {1}"
WITHOUT = "{0}.keys().isdisjoint({1})"
"""The conditions of what a table holds: of an object, of constants, of a container's items by an ItemsCheck, of the
table's length and of names that it lacks."""


def distinct(*objects: Any, known: frozenset[int] = frozenset()) -> bool:
    """Whether objects are all different, and their ids are not among the known ones."""
    ids = set(map(id, objects))
    return len(ids) == len(objects) and ids.isdisjoint(known)


class TableCheck:
    """Checks a dictionary: the attributes of an object, the entries of a dict.

    expected: the values that count, by key. watched: keys that must stay absent where they are not expected; None: all,
    and the keys keep their order. version: the dictionary's version when it was last found to be as expected.
    """

    __slots__ = ("expected", "kind", "version", "watched")

    def __init__(
        self, table: dict[Any, Any], expected: dict[Any, Any], watched: frozenset[Any] | None
    ) -> None:
        self.kind = type(table)
        self.expected = expected
        self.watched = watched
        self.version = _version(table) if self._fits(table) else -1

    def check(self, table: Any) -> bool:
        """Whether the table is as expected; if so, its version is remembered."""
        if type(table) is not self.kind:
            return False
        version = _version(table)
        if not self._fits(table):
            return False
        self.version = version
        return True

    def _fits(self, table: dict[Any, Any]) -> bool:
        expected, watched = self.expected, self.watched
        if watched is None:
            keys: Any = OrderedDict.keys if isinstance(table, OrderedDict) else dict.keys
            if len(table) != len(expected) or not all(map(same, keys(table), expected)):
                return False
        elif any(key in watched and key not in expected for key in dict.keys(table)):
            return False
        return all(same(dict.get(table, key, ABSENT), value) for key, value in expected.items())

    def why(self, table: Any) -> str:
        """The first key that differs; empty when none does."""
        if type(table) is not self.kind:
            return "its type"
        for key, value in self.expected.items():
            if not same(dict.get(table, key, ABSENT), value):
                return f"{key!r}"
        return "" if self._fits(table) else "its keys"

    def __tracemill_note__(self) -> str:
        return f"expects {_listed(self.expected) or 'no more than it has'}"


def _version(table: dict[Any, Any]) -> int:
    """The version of a table that has entries; -1 of an empty one, which from Python 3.12 on can be filled unnoticed."""
    return dict_version(table) if table else -1


class ItemsCheck:
    """Checks the type, the length and the items of a list, deque or set, in the order in which they are met."""

    __slots__ = ("expected", "kind")

    def __init__(self, kind: type, expected: Sequence[Any]) -> None:
        self.kind = kind
        self.expected = tuple(expected)

    def check(self, items: Any) -> bool:
        """Whether the items are as expected."""
        expected = self.expected
        if type(items) is not self.kind or len(items) != len(expected):
            return False
        return all(map(operator.is_, items, expected)) or all(map(same, items, expected))

    def __tracemill_note__(self) -> str:
        return f"expects a {self.kind.__name__} of {len(self.expected)} items"


_FORWARD = operator.attrgetter("forward")


class ModulesCheck:
    """Checks of many modules at once: their classes and these' `forward`, no hooks, how many parameters and buffers each has.

    tables: the modules' tables of parameters and buffers. hooks: those of hooks, which must stay empty.
    missing: (table, name) of parameters and buffers that are None.
    """

    __slots__ = (
        "_forwards",
        "_kinds",
        "_lengths",
        "_missing",
        "_names",
        "classes",
        "empty",
        "modules",
        "tables",
    )

    def __init__(
        self,
        modules: Sequence[torch.nn.Module],
        tables: Sequence[dict[str, Any]],
        hooks: Sequence[Mapping[Any, Any]],
        missing: Sequence[tuple[dict[str, Any], str]],
    ) -> None:
        self.modules = tuple(modules)
        self._kinds = [type(module) for module in modules]
        self.tables = tuple(table for table in tables if table)
        self._lengths = [len(table) for table in self.tables]
        self.empty = (*hooks, *(table for table in tables if not table))
        self._missing = tuple(table for table, _ in missing)
        self._names = tuple(name for _, name in missing)
        self.classes = tuple(dict.fromkeys(self._kinds))
        self._forwards = list(map(_FORWARD, self.classes))

    def check(self) -> bool:
        """Whether all are as they were."""
        return (
            not any(self.empty)
            and list(map(type, self.modules)) == self._kinds
            and list(map(_FORWARD, self.classes)) == self._forwards
            and list(map(len, self.tables)) == self._lengths
            and all(map(operator.is_, map(dict.get, self._missing, self._names), repeat(None)))
        )

    def __tracemill_note__(self) -> str:
        return (
            f"expects of {len(self.modules)} modules: the same classes with the same forward, no hooks, as many "
            f"parameters and buffers, {len(self._names)} of them None"
        )


class OnceCheck:
    """Passes once: for what is another at the next call and does not tell so, such as a generator."""

    __slots__ = ("_passed",)

    def __init__(self) -> None:
        self._passed = False

    def check(self) -> bool:
        """Whether this is the first time."""
        passed, self._passed = self._passed, True
        return not passed

    def __tracemill_note__(self) -> str:
        return "passes once: it does not tell that it is another at the next call"


_CODE = operator.attrgetter("__code__")
_DEFAULTS = operator.attrgetter("__defaults__")
_KEYWORD_DEFAULTS = operator.attrgetter("__kwdefaults__")


class FunctionsCheck:
    """Checks of many functions at once: their code, and their defaults.

    functions: those that the program called. signatures: the ones whose defaults count; where there are none, the calls
    gave all arguments, and would not look at others.
    """

    __slots__ = (
        "_codes",
        "_defaults",
        "_keyword_defaults",
        "functions",
        "with_defaults",
        "with_keywords",
    )

    def __init__(
        self, functions: Sequence[types.FunctionType], signatures: Sequence[types.FunctionType]
    ) -> None:
        self.functions = tuple(functions)
        self._codes = list(map(_CODE, functions))
        self.with_defaults = tuple(f for f in signatures if f.__defaults__)
        self._defaults = list(map(_DEFAULTS, self.with_defaults))
        self.with_keywords = tuple(f for f in signatures if f.__kwdefaults__)
        self._keyword_defaults = list(map(_KEYWORD_DEFAULTS, self.with_keywords))

    def check(self) -> bool:
        """Whether all are as they were."""
        return (
            list(map(_CODE, self.functions)) == self._codes
            and _all_same(map(_DEFAULTS, self.with_defaults), self._defaults)
            and _all_same(map(_KEYWORD_DEFAULTS, self.with_keywords), self._keyword_defaults)
        )

    def __tracemill_note__(self) -> str:
        return f"expects the code and the defaults of {len(self.functions)} functions"


def _all_same(found: Iterable[Any], expected: Iterable[Any]) -> bool:
    found = list(found)
    return all(map(operator.is_, found, expected)) or all(map(same, found, expected))


class ArrayCheck:
    """Checks the content of a numpy array."""

    __slots__ = ("_expected",)

    def __init__(self, array: Any) -> None:
        self._expected = self._facts(array)

    @staticmethod
    def _facts(array: Any) -> tuple[Any, ...]:
        return type(array), array.dtype, array.shape, array.strides, array.tobytes()

    def check(self, array: Any) -> bool:
        """Whether type, dtype, shape and bytes are as they were."""
        return type(array) is self._expected[0] and self._facts(array) == self._expected

    def __tracemill_note__(self) -> str:
        return (
            f"expects the {self._expected[1]} numbers of a numpy array of shape {self._expected[2]}"
        )


def _listed(values: Mapping[Any, Any]) -> str:
    shown = [
        f"{_short(key) if isinstance(key, torch.Tensor) else key} {_short(value)}"
        for key, value in values.items()
        if not (isinstance(value, dict) and str(key).startswith("_"))
    ]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def _short(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        text = repr(value)
        return text if len(text) < 40 else f"{text[:36]}..."
    if type(value) is OfClass:
        return f"a {value.kind.__name__}"
    if isinstance(value, torch.Tensor):
        value = TensorLike(value)
    return repr(value) if type(value) is TensorLike else f"a {type(value).__name__}"


def held(values: Iterable[Any]) -> list[Any]:
    """Values as a check holds them: a tensor by its metadata alone."""
    return [TensorLike(value) if isinstance(value, torch.Tensor) else value for value in values]
