"""Fetch: the prologue's lines that reach the program's own tensors and check the state that it read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tracemill.compiler import prims
from tracemill.compiler.guards import CHECK_PLACE, check
from tracemill.compiler.names import Names
from tracemill.compiler.proxy import AnyProxy, FloatProxy, Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.write import MAKE
from tracemill.passes.interpretation.python.conditions import Named, Namespace, StateCheck
from tracemill.passes.interpretation.python.new_objects import NewObject
from tracemill.passes.interpretation.python.places import Place, own_name
from tracemill.passes.interpretation.python.tables import State

_WRITTEN = (str, int, bool, type(None))


@dataclass
class Fetched:
    """The program's own tensors: the lines that fetch them, and which ones are constants without a place.

    reached: the proxies of the places that the epilogue needs.
    """

    lines: list[BoundSymbol] = field(default_factory=list)
    constants: list[TensorProxy] = field(default_factory=list)
    reached: dict[Place, Proxy] = field(default_factory=dict)


class Fetcher:
    """Emits a line for each check and each tensor, and one for each object that two of them are reached through.

    roots: the proxies of places that the prologue has already; other roots are bound by name when they are needed.
    returned: those of places that the program returns as they are.
    """

    def __init__(
        self,
        roots: dict[Place, Proxy],
        names: Names,
        returned: dict[Place, Proxy],
        *,
        checked: bool,
    ) -> None:
        self._names = names
        self._returned = returned
        self._checked = checked
        self._emitted: dict[Place, Proxy] = dict(roots)
        self._bound: dict[int, Proxy] = {}
        self._objects: dict[Proxy, Any] = {}
        self._uses: dict[Place, int] = {}
        self._numbers: set[int] = set()

    def fetch(
        self,
        lifted: Sequence[tuple[TensorProxy, torch.Tensor]],
        state: State,
        wanted: Sequence[Place] = (),
    ) -> Fetched:
        """The lines for `lifted`, each named after its place, after those for the checks of `state`.

        wanted: places to be reached besides.
        """
        self._numbers = state.numbers
        checks = state.checks if self._checked else []
        found = {id(tensor): state.tensors.get(id(tensor), []) for _, tensor in lifted}
        if not self._checked:
            found = {key: places[:1] for key, places in found.items()}
        for place in (place for places in found.values() for place in places):
            self._count(place.parent)
        last = state.last if self._checked else []
        for each in (*checks, *last):
            self._count(each.owner)
            for value in each.values:
                if isinstance(value, Place):
                    self._uses[value] = 2  # so that it gets a name
                    self._count(value.parent)
        for place in (*self._returned, *wanted):
            self._uses[place] = 2  # so that it gets a name
            self._count(place.parent)
        fetched = Fetched()
        for each in checks:
            fetched.lines.extend(self._check(each))
        for proxy, tensor in lifted:
            self._tensor(proxy, tensor, found[id(tensor)], fetched)
        for each in last:
            fetched.lines.extend(self._check(each))
        for place in self._returned:
            self._base(place, fetched.lines)
        for place in wanted:
            fetched.reached[place] = self._base(place, fetched.lines)[0]
        return fetched

    def bound(self) -> dict[Proxy, Any]:
        """The objects that the text names, by their proxies."""
        return self._objects

    def made(self, objects: Iterable[NewObject]) -> list[BoundSymbol]:
        """The lines that make new objects."""
        lines: list[BoundSymbol] = []
        for new in objects:
            values = [self._named(value, lines) for value in new.values]
            lines.append(MAKE.bind(new.template, *values, output=new.proxy))
        return lines

    def _tensor(
        self, proxy: TensorProxy, tensor: torch.Tensor, places: list[Place], fetched: Fetched
    ) -> None:
        if not places:
            proxy._name = self._names.claim("constant")
            fetched.constants.append(proxy)
            fetched.lines.append(prims.unpack(proxy, tensor))
            return
        first, *others = places
        if id(tensor) in self._numbers:
            number = FloatProxy(self._names.claim(first.hint), value=tensor.item())
            fetched.lines.extend(self._line(number, first))
            proxy._name = self._names.claim(first.hint)
            fetched.lines.append(prims.AS_TENSOR.bind(number, output=proxy))
            return
        proxy._name = self._names.claim(first.hint)
        fetched.lines.extend(self._line(proxy, first))
        self._emitted[first] = proxy
        for other in others:
            again = TensorProxy(self._names.claim(other.hint), meta=proxy.meta)
            fetched.lines.extend(self._line(again, other))
            subject = f"{other.hint}: shared with {first.hint}"
            fetched.lines.append(check(subject, "{} is {}", again, proxy))

    def _check(self, wanted: StateCheck) -> list[BoundSymbol]:
        lines: list[BoundSymbol] = []
        base, steps = None, ()
        if wanted.owner is not None:
            base, steps = self._base(wanted.owner, lines)
            if any(not isinstance(step, str) and type(step[0]) not in _WRITTEN for step in steps):
                base, steps = self._name_it(wanted.owner, base, steps, lines), ()
        values = [self._named(value, lines) for value in wanted.values]
        place = base, (*steps, *wanted.steps)
        lines.append(
            CHECK_PLACE.bind(wanted.subject, wanted.condition, *place, *values, output=None)
        )
        return lines

    def _named(self, value: Any, lines: list[BoundSymbol]) -> Any:
        """What a check is given: an object by a name that the text binds, what stands at a place by that one's name."""
        if isinstance(value, Place):
            return self._base(value, lines)[0]
        return self._bind(value.value, lines, value.hint) if isinstance(value, Named) else value

    def _bind(self, value: Any, lines: list[BoundSymbol], hint: str = "") -> Any:
        if value is None or isinstance(value, (bool, torch.dtype)):
            return value
        known = self._bound.get(id(value))
        if known is None:
            name = hint or own_name(value).rpartition(".")[2]
            if name == type(value).__name__:
                name = f"the_{name.lower()}"
            known = AnyProxy(self._names.claim(name), python_type=type(value))
            self._bound[id(value)] = known
            self._objects[known] = value
            lines.append(prims.unpack(known, value))
        return known

    def _count(self, place: Place | None) -> None:
        while place is not None:
            self._uses[place] = self._uses.get(place, 0) + 1
            if self._uses[place] > 1:
                break
            place = place.parent

    def _line(self, proxy: Proxy, place: Place) -> list[BoundSymbol]:
        lines: list[BoundSymbol] = []
        if place.parent is None:
            return [prims.unpack(proxy, place.value)]
        base, steps = self._base(place.parent, lines)
        lines.append(prims.unpack(proxy, base, *steps, *place.steps))
        return lines

    def _base(self, place: Place | None, lines: list[BoundSymbol]) -> tuple[Proxy, tuple[Any, ...]]:
        """What to reach `place` from: a name that is there, and the steps from it."""
        assert place is not None
        known = self._emitted.get(place)
        if known is not None:
            return known, ()
        if place.parent is None:
            value = place.value.object if isinstance(place.value, Namespace) else place.value
            if place in self._returned:
                return self._name_it(place, value, (), lines), ()
            known = self._emitted[place] = self._bind(value, lines, place.hint)
            return known, ()
        base, steps = self._base(place.parent, lines)
        if self._uses.get(place, 0) < 2:
            return base, (*steps, *place.steps)
        return self._name_it(place, base, (*steps, *place.steps), lines), ()

    def _name_it(
        self, place: Place, base: Any, steps: tuple[Any, ...], lines: list[BoundSymbol]
    ) -> Proxy:
        name = self._names.claim(place.hint or "owner")
        proxy = self._returned.get(place) or AnyProxy(name, python_type=type(place.value))
        proxy._name = name
        lines.append(prims.unpack(proxy, base, *steps))
        self._emitted[place] = proxy
        return proxy
