"""The prologue of calls between which nobody writes to the tables that it reads.

Most lines of a prologue look at dictionaries: the attributes of modules, their tables of modules, parameters and
buffers, the globals of Python modules. What such lines say and fetch stays the same while nobody writes to one of
these. So after a call that met

    dict_version(fc.__dict__) == fc_as_traced.version or fc_as_traced.check(fc.__dict__) or mismatch("fc: its attributes")
    fc_weight = fc._parameters["weight"]
    fc_bias = fc._parameters["bias"]

the next ones run

    tables.check() or mismatch("tables that were written to")
    found = tables.found
    fc_weight, fc_bias, = found

and a call after a write runs all lines again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from types import CellType, FunctionType, MappingProxyType, ModuleType
from typing import Any

from tracemill.compiler import prims
from tracemill.compiler.guards import ARGUMENT, CHECK, CHECK_PLACE, check
from tracemill.compiler.names import Names
from tracemill.compiler.proxy import AnyProxy, Proxy
from tracemill.compiler.state_checks import (
    AS_LISTED,
    AS_TRACED,
    CONSTANT,
    FLOAT,
    IDENTICAL,
    LENGTH,
    SAME,
    WITHOUT,
    FunctionsCheck,
    ItemsCheck,
    ModulesCheck,
)
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.tables import Facet, Tables, items_of
from tracemill.compiler.trace import Trace

WORTH = 8
"""Lines from which on one check in their place is cheaper."""

_OF_VALUES = frozenset((IDENTICAL, SAME, CONSTANT, FLOAT))
_OF_TABLES = frozenset((AS_TRACED, LENGTH, WITHOUT))

Facets = dict[tuple[int, Facet], tuple[Any, Facet]]
"""Facets of objects, by identity."""


def by_identity(facets: Iterable[tuple[Any, Facet]]) -> Facets:
    """The facets, each once."""
    return {(id(value), facet): (value, facet) for value, facet in facets}


def while_unwritten(prologue: Trace, written: Facets) -> tuple[Trace, Tables] | None:
    """The prologue for as long as nobody writes to its tables, and their check; None where it saves nothing.

    Holds for calls from now on if the prologue is met once more after this, so that no write came in between. written:
    what is written to often; the lines that look there stay.
    """
    reading = _Reading(written)
    names = Names(prologue.names)
    kept: list[BoundSymbol] = []
    first = None
    for bsym in prologue.bound_symbols:
        if not reading.takes(bsym):
            kept.append(bsym)
            kept.extend(_identity(bsym, reading, names))
        elif first is None:
            first = len(kept)
    if first is None or len(prologue.bound_symbols) - len(kept) < WORTH:
        return None
    needed = {*prologue.outputs, *(value for bsym in kept for value in bsym.inputs)}
    fetched = [proxy for proxy in reading.fetched if proxy in needed]
    found = [reading.fetched[proxy] for proxy in fetched]
    tables = Tables(reading.facets.values(), reading.empty, found)
    if not all(map(reading.finds_again, fetched)):
        return None  # another thread wrote since
    lines = [*kept[:first], *_lines(tables, fetched, names), *kept[first:]]
    needed.update(value for bsym in lines for value in bsym.inputs)
    used = [bsym for bsym in lines if not _names_object(bsym) or bsym.output in needed]
    return prologue.replace(bound_symbols=used), tables


def _lines(tables: Tables, fetched: Sequence[Proxy], names: Names) -> list[BoundSymbol]:
    known = AnyProxy(names.claim("tables"), python_type=Tables)
    fits = check("tables that were written to", "{}.check()", known)
    lines = [prims.unpack(known, tables), fits]
    if fetched:
        found = AnyProxy(names.claim("found"), python_type=tuple)
        unpacked = prims.UNPACK_SEQUENCE.bind(found, output=list(fetched))
        lines += [prims.unpack(found, known, ".found"), unpacked]
    return lines


def _identity(bsym: BoundSymbol, reading: _Reading, names: Names) -> Iterator[BoundSymbol]:
    """The check that a line that stays, since it looks into what is written to often, finds the same object."""
    if bsym.sym is prims.UNPACK and bsym.output in reading.found:
        value = reading.found[bsym.output]
        known = AnyProxy(names.claim(f"the_{bsym.output.name}"), python_type=type(value))
        yield prims.unpack(known, value)
        yield check(f"{bsym.output.name}: the same object", ARGUMENT, bsym.output, known)


def _names_object(bsym: BoundSymbol) -> bool:
    """Whether the bound symbol is no line, but gives an object a name."""
    return bsym.sym is prims.UNPACK and not isinstance(bsym.args[0], Proxy) and len(bsym.args) == 1


class _Elsewhere(Exception):
    """What a line looks at does not stand in tables alone, or in one that is written to often."""


class _Reading:
    """Reads a prologue's lines for those that depend on nothing but tables and the objects that the text names.

    fetched: the values that such lines give. facets, empty: what they depend on, as `Tables` has it.
    found: the values of lines that stay because they look into what is written to often.
    """

    def __init__(self, written: Facets) -> None:
        self.fetched: dict[Proxy, Any] = {}
        self.found: dict[Proxy, Any] = {}
        self.facets: Facets = {}
        self.empty: list[Any] = []
        self._written = written
        self._named: dict[Any, Any] = {}
        self._identities: dict[Any, Any] = {}
        self._places: dict[Proxy, tuple[Any, Any]] = {}

    def finds_again(self, output: Proxy) -> bool:
        """Whether a line would give the same object now."""
        place = self._places.get(output)
        return place is None or self._found(*place)[0] is self.fetched[output]

    def takes(self, bsym: BoundSymbol) -> bool:
        """Whether the line may stay away while nobody writes to the tables."""
        try:
            if _names_object(bsym):
                self._named[bsym.output] = bsym.args[0]
            elif bsym.sym is prims.UNPACK:
                self._unpacked(bsym.output, *bsym.args)
                return True
            elif bsym.sym is CHECK_PLACE:
                self._checked(*bsym.args[1:])
                return True
            elif bsym.sym is CHECK and bsym.args[1] == ARGUMENT:
                _, _, argument, value = bsym.args
                if not isinstance(value, Proxy):
                    self._identities[argument, ()] = value
        except (_Elsewhere, LookupError, AttributeError, ValueError):
            pass  # the last three where another thread writes meanwhile
        return False

    def _unpacked(self, output: Proxy, base: Any, *steps: Any) -> None:
        place = base, steps
        if place in self._identities:
            self.fetched[output] = self._identities[place]
            return
        value, facets = self._found(base, steps)
        self._places[output] = place
        try:
            self._depend(facets)
        except _Elsewhere:
            self.found[output] = value
            raise
        self.fetched[output] = value

    def _checked(self, condition: str, base: Any, steps: Any, *values: Any) -> None:
        expected = values[0]
        if isinstance(expected, Proxy):
            expected = self._object(expected)
        if base is None:
            self._all(expected)
        elif condition in _OF_TABLES:
            self._follow(base, steps, whole=True)
        elif condition == AS_LISTED and isinstance(expected, ItemsCheck):
            self._depend([(self._follow(base, steps), Facet.LIST)])
        elif condition in _OF_VALUES:
            self._compared(condition, base, tuple(steps), expected)
        else:
            raise _Elsewhere

    def _all(self, check: Any) -> None:
        """A line that checks all modules, or all functions."""
        if isinstance(check, ModulesCheck):
            self._depend((table, Facet.ITEMS) for table in check.tables)
            for module in check.modules:
                if (id(module), Facet.ATTRIBUTES) not in self.facets:
                    self._depend([(module, Facet.CLASS)])
            for cls in check.classes:
                self._depend(_of_method(cls, "forward"))
            self.empty.extend(check.empty)
        elif isinstance(check, FunctionsCheck):
            self._depend((function, Facet.CODE) for function in check.functions)
            self._depend((function, Facet.DEFAULTS) for function in check.with_defaults)
            self._depend((function, Facet.KEYWORDS) for function in check.with_keywords)
        else:
            raise _Elsewhere

    def _compared(self, condition: str, base: Any, steps: tuple[Any, ...], expected: Any) -> None:
        """A line that compares one value; one that stays tells what object it found, for the lines after it."""
        try:
            value = self._follow(base, steps)
        except _Elsewhere:
            if condition == IDENTICAL:
                self._identities[base, steps] = expected
            raise
        if condition == SAME and value is not expected:
            raise _Elsewhere  # it may hold what changes

    def _follow(self, base: Any, steps: Sequence[Any], *, whole: bool = False) -> Any:
        """What the steps lead to through tables alone, on which the line then depends.

        whole: whether the line looks at all of a table that they lead to. Raises _Elsewhere.
        """
        value, facets = self._found(base, steps)
        attributes = bool(facets) and steps[-1] == ".__dict__" and facets[-1][1] is Facet.ATTRIBUTES
        if whole and not attributes:
            facets.append((_items(value), Facet.ITEMS))
        self._depend(facets)
        return value

    def _found(self, base: Any, steps: Iterable[Any]) -> tuple[Any, list[tuple[Any, Facet]]]:
        facets: list[tuple[Any, Facet]] = []
        value = self._object(base)
        for step in steps:
            value = _step(value, step, facets)
        return value, facets

    def _object(self, base: Any) -> Any:
        if (base, ()) in self._identities:
            return self._identities[base, ()]
        for objects in (self.fetched, self.found, self._named):
            if base in objects:
                return objects[base]
        raise _Elsewhere

    def _depend(self, facets: Iterable[tuple[Any, Facet]]) -> None:
        wanted = by_identity(facets)
        if not self._written.keys().isdisjoint(wanted):
            raise _Elsewhere
        self.facets.update(wanted)


def _step(value: Any, step: Any, facets: list[tuple[Any, Facet]]) -> Any:
    """What a step leads to; `facets` gets what that depends on. Raises _Elsewhere."""
    if isinstance(step, tuple):
        if type(value) is not tuple:
            facets.append((_items(value), Facet.ITEMS))
        return value[step[0]]
    name = step[1:]
    if name == "__class__" and value.__class__ is type(value):
        facets.append((value, Facet.CLASS))
        return type(value)
    if isinstance(value, type) and name in ("__dict__", "__mro__"):
        if name == "__mro__":
            facets.append((value, Facet.BASES))
        return getattr(value, name)
    if type(value) is FunctionType and name == "__closure__":
        return value.__closure__
    if type(value) is CellType and name == "cell_contents":
        facets.append((value, Facet.CELL))
        return value.cell_contents
    return _attribute(value, name, facets)


def _of_method(cls: type, name: str) -> Iterator[tuple[Any, Facet]]:
    """What a class's method depends on: the classes up to the one that has it."""
    yield cls, Facet.BASES
    for owner in cls.__mro__:
        yield items_of(vars(owner)), Facet.ITEMS
        if name in vars(owner):
            return


def _attribute(value: Any, name: str, facets: list[tuple[Any, Facet]]) -> Any:
    kind = type(value)
    try:
        table = object.__getattribute__(value, "__dict__")
    except AttributeError:
        raise _Elsewhere from None
    if type(table) is not dict or (kind.__getattribute__ not in _PLAIN and name != "__dict__"):
        raise _Elsewhere
    if kind.__getattribute__ is not ModuleType.__getattribute__:
        facets.append((value, Facet.ATTRIBUTES))
    elif name != "__dict__":
        facets.append((table, Facet.ITEMS))
    if name == "__dict__":
        return table
    if name not in table or hasattr(getattr(kind, name, None), "__set__"):
        raise _Elsewhere  # of its class
    return table[name]


_PLAIN = (object.__getattribute__, FunctionType.__getattribute__, ModuleType.__getattribute__)


def _items(value: Any) -> Any:
    """The dictionary that a look at the items of `value` is one into; raises _Elsewhere."""
    if type(value) is MappingProxyType:
        return items_of(value)
    if type(value) in (dict, OrderedDict):
        return value
    raise _Elsewhere
