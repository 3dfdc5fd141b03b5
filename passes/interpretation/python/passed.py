"""Passed objects: arguments that count by what they hold, and the objects inside of them; each call passes others.

Nothing tells such an object but its class, what it holds, and where else it stands. So the prologue compares class and
content, and here who else holds it:

    d_first is d_layers_0 or mismatch("d.first: the same object as d.layers.0")
    d_layers_0 is not d_layers_1 or mismatch("d.layers.0, d.layers.1: objects of their own")
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch

from tracemill.compiler import tree
from tracemill.compiler.contents import counts_by_content_inside
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.state_checks import IDENTICAL, distinct
from tracemill.passes.interpretation.python.conditions import Named, StateCheck
from tracemill.passes.interpretation.python.places import Place
from tracemill.passes.interpretation.python.snapshot import views_of


def tensors_inside(argument: Any) -> Iterator[torch.Tensor]:
    """The tensors inside of an argument that counts by what it holds."""
    stack, seen = [argument], set[int]()
    while stack:
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif counts_by_content_inside(value) and id(value) not in seen:
            seen.add(id(value))
            stack.extend(_held_by(value))


def tensors_among(keys: Iterable[Any]) -> tuple[torch.Tensor, ...]:
    """The tensors among the keys of a dict or the members of a set."""
    return tuple(key for key in keys if issubclass(type(key), torch.Tensor))


def _held_by(value: Any) -> Iterator[Any]:
    return (held for view in views_of(value) for held in view.before.values())


def standing_twice(arguments: Iterable[Any]) -> frozenset[int]:
    """The ids of what stands at two places of a call's arguments, so that the program must get it as it is.

    Lists, dicts and dataclasses; tensors that are arguments, or in containers among them, and inside of an object too. So
    are dicts whose keys are tensors, which are keys by what they are.
    """
    met, twice = dict[int, Any](), dict[int, Any]()
    outside, inside = set[int](), set[int]()
    stack = [(value, outside) for value in arguments]
    while stack:
        value, tensors = stack.pop()
        if isinstance(value, torch.Tensor):
            tensors.add(id(value))
        elif id(value) in met:
            twice[id(value)] = value
        elif counts_by_content_inside(value):
            if not isinstance(value, tuple):  # which nobody can write to
                met[id(value)] = value
            if isinstance(value, dict) and tensors_among(value):
                twice[id(value)] = value
            node = tree.node_of(value)
            held = _held_by(value) if node is None else node.children
            stack.extend((each, inside if node is None else tensors) for each in held)
    inside.update(id(tensor) for value in twice.values() for tensor in tensors_inside(value))
    return frozenset(twice) | (outside & inside)


_REPLACEABLE = frozenset((list, dict, set, deque))
"""What a check of the program's own state takes another one of for, if it holds the same."""


class StandsElsewhere(Exception):
    """Raised where the program got a copy of a list or dict, or compares a tensor's stand-in, that it finds by itself as well.

    ids: of those.
    """

    def __init__(self, ids: frozenset[int]) -> None:
        super().__init__("an argument that the program finds by itself as well")
        self.ids = ids


SPELLED_OUT = 3
"""Up to so many objects are compared pair by pair, which is faster than a call."""


class Passed:
    """The passed objects that a walk meets.

    arguments: the places of those that are arguments.
    """

    def __init__(self) -> None:
        self.arguments: set[Place] = set()
        self._objects: dict[int, Place] = {}
        self._found: set[int] = set()

    def __contains__(self, place: Place | None) -> bool:
        """Whether a passed object stands at a place."""
        return place is not None and id(place.value) in self._objects

    def is_passed(self, value: Any) -> bool:
        """Whether what a passed object holds is passed too."""
        return isinstance(value, torch.Tensor) or counts_by_content_inside(value)

    def meet(self, place: Place) -> None:
        """Takes an object in that is met for the first time."""
        if self._is_inside(place):
            self._objects[id(place.value)] = place

    def again(self, place: Place) -> Iterator[StateCheck]:
        """The check that an object, met before at another place, is the same one at each call."""
        first = self._objects.get(id(place.value))
        if self._is_inside(place):
            yield _same(place, first)
        elif first is not None and id(place.value) not in self._found:
            self._found.add(id(place.value))  # the program finds it by itself as well
            yield _same(first, None)

    def _is_inside(self, place: Place) -> bool:
        if place.parent is None:
            return place in self.arguments
        return place.parent in self and counts_by_content_inside(place.value)

    def checks(
        self, seen: Mapping[int, Place], containers: Iterable[Place], written: Collection[int]
    ) -> Iterator[StateCheck]:
        """The check that objects which differ do so at each call.

        seen: the places of all objects that the program can reach, by id. containers: what the program gets in place of
        lists and the like. written: the ids of what it writes to.
        """
        passed = {key: place for key, place in self._objects.items() if key not in self._found}
        passed |= {id(place.value): place for place in containers}
        own = {key: place for key, place in seen.items() if key not in passed}
        kinds = Counter(type(place.value) for place in passed.values())
        written_kinds = {type(passed[key].value) for key in written if key in passed}
        replaceable = [
            place
            for key, place in own.items()
            if type(place.value) in kinds.keys() & _REPLACEABLE
            and (key in written or type(place.value) in written_kinds)
        ]
        kept = [place.value for place in own.values() if type(place.value) in kinds]
        kinds.update(map(type, {id(value): value for value in kept}.values()))
        alike = [place for place in passed.values() if kinds[type(place.value)] > 1]
        if alike:
            names = {id(place.value) for place in replaceable}
            others = [value for value in kept if id(value) not in names]
            yield _distinct([*alike, *replaceable], others)

    def tensor_checks(
        self,
        tensors: Mapping[int, list[Place]],
        lifted: Mapping[int, tuple[TensorProxy, torch.Tensor]],
        *,
        compared: bool,
    ) -> Iterator[StateCheck]:
        """The checks that tensors which the program looks at without computing with them are the same or differ.

        lifted: those that it computes with, which are checked to differ from each other. compared: whether the program
        tells which tensors are one; if not, none need to differ, and those of passed objects alone to be the same.
        """
        apart: list[Place] = []
        for key, (first, *others) in tensors.items():
            if key not in lifted:
                apart.append(first)
                both = (place for place in others if compared or place.parent in self)
                yield from (_same(place, first) for place in both)
        if compared and apart:
            kinds = Counter(type(place.value) for place in apart)
            given = [proxy for proxy, tensor in lifted.values() if type(tensor) in kinds]
            kinds.update(type(tensor) for _, tensor in lifted.values())
            alike = [place for place in apart if kinds[type(place.value)] > 1]
            if alike:
                yield _distinct([*alike, *given], ())


def _same(place: Place, first: Place | None) -> StateCheck:
    if first is None:
        return StateCheck(f"{place.hint}: the same object", place, IDENTICAL, (Named(place.value),))
    return StateCheck(f"{place.hint}: the same object as {first.hint}", place, IDENTICAL, (first,))


def _distinct(values: Sequence[Any], others: Sequence[Any]) -> StateCheck:
    """The check that what stands at places, or has proxies, is different, and none of `others`."""
    places = [value.hint for value in values if isinstance(value, Place)]
    subject = ", ".join(places) + (": objects of their own" if places[1:] else ": its own object")
    if len(values) <= SPELLED_OUT and not others:
        pairs = combinations((f"{{{index}}}" for index in range(1, len(values) + 1)), 2)
        condition = " and ".join(f"{one} is not {other}" for one, other in pairs)
        return StateCheck(subject, None, condition, tuple(values))
    arguments = [f"{{{index}}}" for index in range(2, len(values) + 2)]
    if others:
        arguments.append(f"known={{{len(values) + 2}}}")
    known = Named(frozenset(map(id, others)), "objects_as_traced")
    condition = f"{{1}}({', '.join(arguments)})"
    return StateCheck(subject, None, condition, (Named(distinct), *values, known))
