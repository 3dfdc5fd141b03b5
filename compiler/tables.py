"""Tables that nobody writes to: one check for many dictionaries, by their versions."""

from __future__ import annotations

import enum
import gc
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import is_
from typing import Any

from tracemill.compiler.torch_internals import (
    GUARD_REASONS,
    GuardManager,
    GuardManagerType,
    RootGuardManager,
    dict_version,
)

_DIRECT = GuardManagerType.GUARD_MANAGER


class Facet(enum.Enum):
    """What of an object must stay.

    CLASS: its class. ATTRIBUTES: its class and attributes. ITEMS: a dictionary's items. LIST: the objects in a list or
    set. BASES: a class's bases. CELL: what is in the cell of a closure. CODE, DEFAULTS, KEYWORDS: a function's code, and
    its parameters' defaults.
    """

    CLASS = enum.auto()
    ATTRIBUTES = enum.auto()
    ITEMS = enum.auto()
    LIST = enum.auto()
    BASES = enum.auto()
    CELL = enum.auto()
    CODE = enum.auto()
    DEFAULTS = enum.auto()
    KEYWORDS = enum.auto()


class Tables:
    """Checks that nobody has written to any of many tables since this was made.

    facets: what must stay, as (object, Facet). empty: tables that must stay empty. found: what the program reads there.
    """

    __slots__ = (
        "_empty",
        "_facets",
        "_facts",
        "_held",
        "_items",
        "_lengths",
        "_lists",
        "_unwritten",
        "found",
    )

    def __init__(
        self,
        facets: Iterable[tuple[Any, Facet]],
        empty: Sequence[Any] = (),
        found: Sequence[Any] = (),
    ) -> None:
        # One kind after the other: the processor then foresees what is next.
        self._facets = tuple(sorted(facets, key=_kind))
        self._facts = [_fact(*each) for each in self._facets]
        lists = [value for value, facet in self._facets if facet is Facet.LIST]
        held = [*lists, *(_entries(*each) for each in self._facets)]
        self._empty = (*empty, *(each for each in held if each is not None and not each))
        self.found = tuple(found)
        self._lists = tuple(filter(None, lists))
        self._lengths = list(map(len, self._lists))
        self._items = list(chain.from_iterable(self._lists))
        guarded = [each for each in self._facets if each[1] is not Facet.LIST]
        self._held = tuple(value for value, _ in guarded)
        root: Any = RootGuardManager()
        for index, (value, facet) in enumerate(guarded):
            _guard(root.tuple_getitem_manager(index, "", value, _DIRECT), value, facet)
        self._unwritten: Callable[[Any], bool] = root.check

    def check(self) -> bool:
        """Whether all are as they were."""
        try:
            return (
                self._unwritten(self._held)
                and not any(self._empty)
                and list(map(len, self._lists)) == self._lengths
                and all(map(is_, chain.from_iterable(self._lists), self._items))
            )
        except ValueError:  # of a cell that was emptied
            return False

    def written(self) -> list[tuple[Any, Facet]]:
        """The facets that changed."""
        known = zip(self._facets, self._facts, strict=True)
        return [each for each, fact in known if _fact(*each) != fact]

    def __tracemill_note__(self) -> str:
        return (
            f"expects {len(self._facets)} tables and lists that nobody wrote to and "
            f"{len(self._empty)} empty ones"
        )


def _guard(guard: Any, value: Any, facet: Facet) -> None:
    """Adds Dynamo's guard of a facet: 10 to 20 ns a check."""
    if facet in _PARTS:
        held = getattr(value, _PARTS[facet])
        if facet in _ACCESSORS and held is not None:
            guard = _ACCESSORS[facet](guard, "", held, _DIRECT)
        else:
            guard = guard.getattr_manager(_PARTS[facet], "", held, _DIRECT)
        guard.add_id_match_guard(id(held), *GUARD_REASONS)
    elif facet is Facet.ITEMS:
        guard.add_dict_version_guard(value, *GUARD_REASONS)
    else:
        guard.add_type_match_guard(id(type(value)), *GUARD_REASONS)
    if facet is Facet.ATTRIBUTES:
        guard = guard.get_generic_dict_manager("", vars(value), _DIRECT)
        guard.add_dict_version_guard(vars(value), *GUARD_REASONS)


_PARTS = {
    Facet.BASES: "__mro__",
    Facet.CELL: "cell_contents",
    Facet.CODE: "__code__",
    Facet.DEFAULTS: "__defaults__",
    Facet.KEYWORDS: "__kwdefaults__",
}
"""The attributes of facets that are one object each."""

_ACCESSORS: dict[Facet, Any] = {
    Facet.BASES: GuardManager.type_mro_manager,
    Facet.CODE: GuardManager.code_manager,
    Facet.DEFAULTS: GuardManager.func_defaults_manager,
    Facet.KEYWORDS: GuardManager.func_kwdefaults_manager,
}
"""Those of which Dynamo reads the attribute where it lies, for half of what a look-up of its name takes."""


def _kind(facet: tuple[Any, Facet]) -> int:
    return facet[1].value


def _fact(value: Any, facet: Facet) -> Any:
    """What a facet's guard compares."""
    if facet in _PARTS:
        try:
            return id(getattr(value, _PARTS[facet]))
        except ValueError:
            return None
    if facet is Facet.LIST:
        return list(map(id, value))
    entries = _entries(value, facet)
    version = None if entries is None else (dict_version(entries), bool(entries))
    return version if facet is Facet.ITEMS else (type(value), version)


def _entries(value: Any, facet: Facet) -> dict[Any, Any] | None:
    """The dictionary whose version a facet goes by; from Python 3.12 on an empty one can be filled and keep its version."""
    if facet is Facet.ITEMS:
        return value
    return vars(value) if facet is Facet.ATTRIBUTES else None


def items_of(namespace: Any) -> dict[Any, Any]:
    """The dictionary behind a class's `__dict__`, which Python shows as a read-only view."""
    (table,) = gc.get_referents(namespace)
    return table
