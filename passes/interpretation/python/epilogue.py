"""The epilogue: the trace that writes to Python state, and what it needs from the prologue and the computation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tracemill.compiler import prims
from tracemill.compiler.names import Names
from tracemill.compiler.proxy import AnyProxy, Proxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace
from tracemill.compiler.values import leaves, proxies
from tracemill.compiler.write import MAKE, write
from tracemill.passes.interpretation.python.conditions import Named
from tracemill.passes.interpretation.python.new_objects import NewObject
from tracemill.passes.interpretation.python.places import Place, own_name
from tracemill.passes.interpretation.python.writes import Write


def places_of(writes: Sequence[Write]) -> list[Place]:
    """The places that the epilogue needs, each once."""
    found: dict[Place, None] = {}
    for each in writes:
        found[each.owner] = None
        found.update(dict.fromkeys(_places(each.values)))
    return list(found)


def _places(value: Any) -> Iterator[Place]:
    for leaf in leaves_of(value):
        if isinstance(leaf, Place):
            yield leaf


def leaves_of(value: Any) -> Iterator[Any]:
    """The leaves of a stored value; places and named objects are leaves."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves_of(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves_of(item)
    elif isinstance(value, (Place, Named)):
        yield value
    else:
        yield from leaves(value)


class EpilogueBuilder:
    """Writes the lines on proxies.

    reached: the proxies of places. bound: the objects that are named by the text itself, by their proxies. made: the new
    objects that the epilogue makes.
    """

    def __init__(
        self,
        reached: dict[Place, Proxy],
        bound: dict[Proxy, Any],
        made: Iterable[NewObject],
        names: Names,
    ) -> None:
        self._reached = reached
        self._bound = bound
        self._known: dict[int, Proxy] = {id(value): proxy for proxy, value in bound.items()}
        self._made: dict[Proxy, NewObject] = {new.proxy: new for new in made}
        self._names = names
        self._lines: list[BoundSymbol] = []
        self._arguments: dict[Proxy, None] = {}
        self._there: set[Proxy] = set()

    def build(self, writes: Sequence[Write]) -> Trace:
        """The epilogue's trace; its arguments are what the computation hands on."""
        for each in writes:
            owner = self._proxy(self._reached[each.owner])
            values = [self._value(value) for value in each.values]
            self._lines.append(write(each.template, owner, *values))
        return Trace("epilogue", list(self._arguments), self._lines, None, no_grad=False)

    def _proxy(self, proxy: Proxy) -> Proxy:
        if proxy in self._made:
            new = self._made.pop(proxy)
            self._there.add(proxy)
            self._lines.append(MAKE.bind(new.template, *map(self._value, new.values), output=proxy))
        elif proxy not in self._bound and proxy not in self._there:
            self._arguments[proxy] = None
        elif proxy not in self._there:
            self._there.add(proxy)
            self._lines.append(prims.unpack(proxy, self._bound[proxy]))
        return proxy

    def _value(self, value: Any) -> Any:
        if isinstance(value, tuple) and hasattr(type(value), "_make"):
            kind: Any = type(value)
            return kind._make(map(self._value, value))
        if isinstance(value, (tuple, list)):
            return type(value)(map(self._value, value))
        if isinstance(value, dict):
            return {key: self._value(item) for key, item in value.items()}
        if isinstance(value, Place):
            return self._proxy(self._reached[value])
        if isinstance(value, Named):
            return self._name(value)
        for proxy in proxies(value):
            self._proxy(proxy)
        return value

    def _name(self, value: Named) -> Proxy:
        known = self._known.get(id(value.value))
        if known is None:
            wanted = value.hint or own_name(value.value)
            if not isinstance(value.value, type):
                wanted = wanted.lower()
            known = AnyProxy(self._names.claim(wanted), python_type=type(value.value))
            self._known[id(value.value)] = known
            self._bound[known] = value.value
        return self._proxy(known)
