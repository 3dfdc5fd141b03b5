"""Tables: one check sees every write to any of them."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, SimpleNamespace
from typing import Any

import pytest

from tracemill.compiler.tables import Facet, Tables, items_of


class _Base:
    pass


class _Thing(_Base):
    def __init__(self) -> None:
        self.size = 3


class _Other(_Base):
    pass


def _swap_table(thing: Any) -> None:
    thing.__dict__ = {"size": 3}


def _same_again(thing: Any) -> None:
    thing.size = 4
    thing.size = 3


def _function() -> Any:
    def made(a: int = 2, *, b: int = 3) -> int:
        return a + b

    return made


_code = (lambda a, *, b: a).__code__

WRITES: dict[str, tuple[Callable[[], Any], Facet, Callable[[Any], object]]] = {
    "attribute": (_Thing, Facet.ATTRIBUTES, lambda thing: setattr(thing, "size", 4)),
    "new attribute": (_Thing, Facet.ATTRIBUTES, lambda thing: setattr(thing, "other", 4)),
    "attribute back": (_Thing, Facet.ATTRIBUTES, _same_again),
    "other table": (_Thing, Facet.ATTRIBUTES, _swap_table),
    "class": (_Thing, Facet.ATTRIBUTES, lambda thing: setattr(thing, "__class__", _Other)),
    "class alone": (_Thing, Facet.CLASS, lambda thing: setattr(thing, "__class__", _Other)),
    "item": (lambda: {"a": 1}, Facet.ITEMS, lambda table: table.update(a=2)),
    "deleted": (lambda: {"a": 1}, Facet.ITEMS, lambda table: table.clear()),
    "appended": (lambda: [1, 2], Facet.LIST, lambda items: items.append(3)),
    "equal": (lambda: [1, 2], Facet.LIST, lambda items: items.__setitem__(0, True)),
    "member": (lambda: {"a"}, Facet.LIST, lambda members: members.add("b")),
    "code": (_function, Facet.CODE, lambda function: setattr(function, "__code__", _code)),
    "defaults": (
        _function,
        Facet.DEFAULTS,
        lambda function: setattr(function, "__defaults__", (1,)),
    ),
    "keywords' defaults": (
        _function,
        Facet.KEYWORDS,
        lambda function: setattr(function, "__kwdefaults__", {"b": 1}),
    ),
    "no defaults": (
        lambda: lambda a: a,
        Facet.DEFAULTS,
        lambda function: setattr(function, "__defaults__", (1,)),
    ),
    "closure": (
        lambda: CellType(3),
        Facet.CELL,
        lambda cell: setattr(cell, "cell_contents", 4),
    ),
    "emptied closure": (
        lambda: CellType(3),
        Facet.CELL,
        lambda cell: delattr(cell, "cell_contents"),
    ),
    "bases": (
        lambda: type("Made", (_Thing,), {}),
        Facet.BASES,
        lambda cls: setattr(cls, "__bases__", (_Other,)),
    ),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_seen(write: str) -> None:
    make, facet, change = WRITES[write]
    value = make()
    tables = Tables([({}, Facet.ITEMS), (value, facet)])
    assert tables.check()
    assert not tables.written()
    change(value)
    assert not tables.check()
    assert tables.written() == [(value, facet)]


def test_what_is_not_watched_may_change() -> None:
    thing = SimpleNamespace(size=3, items=[])
    tables = Tables([(thing, Facet.ATTRIBUTES)])
    thing.items.append(1)
    assert tables.check()
    Tables([(thing, Facet.CLASS)])
    thing.size = 4
    assert not tables.check()


def test_empty_tables_stay_empty() -> None:
    hooks: dict[int, str] = {}
    tables = Tables([], empty=[hooks])
    assert tables.check()
    hooks[0] = "hook"
    assert not tables.check()


def test_a_class_is_watched_through_its_dictionary() -> None:
    made: Any = type("Made", (), {"size": 3})
    tables = Tables([(items_of(made.__dict__), Facet.ITEMS)])
    made.size = 4
    assert not tables.check()
