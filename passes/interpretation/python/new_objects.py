"""New objects: what a program makes and stores, made anew at each call: empty first, and then filled by the epilogue.

    def prologue():                        def epilogue(layer, t0, module):
      layer = bare(Layer)                    layer.keys = t0
      return (layer,)                        module.layers.append(layer)

So one that the program also returns, or that stands at two places, is one object at each call, and may hold itself. It
is made by the prologue where the program returns it, else by the epilogue. Lists, dicts and sets that stand at one place
only are written there.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from tracemill.compiler.contents import counts_by_content_inside
from tracemill.compiler.proxy import AnyProxy
from tracemill.compiler.state_checks import ABSENT
from tracemill.compiler.write import bare
from tracemill.passes.interpretation.python import views
from tracemill.passes.interpretation.python.atoms import is_atom
from tracemill.passes.interpretation.python.conditions import Named
from tracemill.passes.interpretation.python.places import Place
from tracemill.passes.interpretation.python.snapshot import views_of
from tracemill.passes.interpretation.python.views import View
from tracemill.passes.interpretation.python.writes import is_literal

_LITERAL = (list, dict, set)
_FILLED = (views.Attributes, views.Slots, views.Entries, views.Items, views.Members)


@dataclass(frozen=True, eq=False)
class NewObject:
    """An object that the program made: `proxy` stands for that of each call.

    template, values: the expression that makes an empty one. is_returned: whether the program returns it.
    """

    place: Place
    proxy: AnyProxy
    template: str
    values: tuple[Any, ...]
    is_returned: bool

    @property
    def value(self) -> Any:
        """The object as the program left it."""
        return self.place.value

    def filling(self) -> Iterator[tuple[View, dict[Any, Any]]]:
        """What it holds, as changes of an object that held nothing."""
        for view in views_of(self.value):
            if isinstance(view, _FILLED):
                view.after, view.before = view.before, {}
                held = {key: value for key, value in view.after.items() if value is not ABSENT}
                if held:
                    yield view, held


def new_objects(
    stored: Iterable[Mapping[Any, Any]], returned: Any, met: Mapping[int, Any]
) -> list[NewObject]:
    """The objects among what a program stored that are made by themselves, those that others hold first.

    stored: what it stored, by key. met: what it found, by id.
    """
    found = _Found(met)
    for values in stored:
        for key, value in values.items():
            found.store(key)
            found.store(value)
    if found.stored:
        found.give(returned)
    made: list[NewObject] = []
    for key, value in found.stored.items():
        if found.is_by_itself(value):
            maker = _maker(value)
            if maker is not None:
                name = type(value).__name__.lower()
                place = Place(value, None, (), name)
                proxy = AnyProxy(name, python_type=type(value))
                made.append(NewObject(place, proxy, *maker, key in found.returned))
    return made


class _Found:
    """What can be reached from what was stored: `stored`, those that others hold first; `twice`, at more than one place."""

    def __init__(self, met: Mapping[int, Any]) -> None:
        self._met = met
        self._seen: set[int] = set()
        self.stored: dict[int, Any] = {}
        self.twice: set[int] = set()
        self.returned: set[int] = set()

    def is_by_itself(self, value: Any) -> bool:
        """Whether an object has a line of its own."""
        if id(value) in self.twice or id(value) in self.returned or type(value) not in _LITERAL:
            return True
        return type(value) is not list and not all(map(is_literal, value))

    def store(self, value: Any) -> None:
        if self._is_known(value):
            return
        if not isinstance(value, tuple):
            if id(value) in self._seen:
                self.twice.add(id(value))
                return
            self._seen.add(id(value))
        for part in _parts(value):
            self.store(part)
        if not isinstance(value, tuple):
            self.stored[id(value)] = value

    def give(self, value: Any) -> None:
        """Takes in what was returned."""
        stack, seen = [value], set[int]()
        while stack:
            value = stack.pop()
            if self._is_known(value) or id(value) in seen:
                continue
            seen.add(id(value))
            if id(value) in self.stored:
                self.returned.add(id(value))
            else:
                stack.extend(_parts(value))

    def _is_known(self, value: Any) -> bool:
        return (
            is_atom(value)
            or value is ABSENT
            or isinstance(value, (type, torch.Tensor))
            or id(value) in self._met
        )


def _parts(value: Any) -> Iterator[Any]:
    """What an object holds."""
    for view in views_of(value):
        if isinstance(view, _FILLED):
            if isinstance(view, views.Entries):
                yield from view.before
            yield from view.before.values()


def _maker(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """The expression that makes an empty object of a kind, as a template and its values; None where there is none."""
    kind = type(value)
    if kind in _LITERAL:
        return {list: "[]", dict: "{{}}", set: "set()"}[kind], ()
    if kind is deque:
        return "{}((), {})", (Named(deque), value.maxlen)
    if kind is defaultdict:
        factory = value.default_factory
        return "{}({})", (Named(defaultdict), factory and Named(factory))
    if kind in (numpy.ndarray, bytearray):
        return "{}.copy()", (Named(value.copy(), "kept"),)
    if isinstance(value, (tuple, frozenset, deque, defaultdict)):
        return None
    if kind is Counter or counts_by_content_inside(value):
        return "{}({})", (Named(bare), Named(kind))
    return None
