"""Passed objects: arguments that count by what they hold, and the objects inside of them; each call passes others.

Nothing tells such an object but its class, what it holds, and where else it stands. So the prologue compares class and
content, and here who else holds it:

    d_first is d_layers_0 or mismatch("d.first: the same object as d.layers.0")
    distinct(d_layers_0, d_layers_1) or mismatch("d.layers.0, d.layers.1: objects of their own")
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from tracemill.compiler.state_checks import IDENTICAL, counts_by_content_inside, distinct
from tracemill.passes.interpretation.conditions import Named, StateCheck
from tracemill.passes.interpretation.places import Place
from tracemill.passes.interpretation.snapshot import views_of


def tensors_inside(argument: Any) -> Iterator[torch.Tensor]:
    """The tensors inside of an argument that counts by what it holds."""
    stack, seen = [argument], set[int]()
    while stack:
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif counts_by_content_inside(value) and id(value) not in seen:
            seen.add(id(value))
            stack.extend(held for view in views_of(value) for held in view.before.values())


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

    def checks(self, seen: Collection[int], met: Mapping[int, Any]) -> Iterator[StateCheck]:
        """The checks that objects which differ do so at each call.

        seen: the ids of all objects that the program can reach. met: objects by their ids.
        """
        own = [place for key, place in self._objects.items() if key not in self._found]
        others = [key for key in seen if key not in self._objects or key in self._found]
        yield from _distinct(own, [met[key] for key in others])

    def tensor_checks(
        self, tensors: Mapping[int, list[Place]], computed: Collection[int]
    ) -> Iterator[StateCheck]:
        """The same for tensors that the program looks at without computing with them; `computed`: those of the others."""
        own: list[Place] = []
        others: list[Any] = []
        for key, places in tensors.items():
            passed = [place for place in places if place.parent in self]
            if not passed:
                others.append(places[0].value)
            elif key not in computed:
                first = passed[0] if len(passed) == len(places) else None
                yield from (_same(place, first) for place in passed if place is not first)
                if first is not None:
                    own.append(first)
        yield from _distinct(own, others)


def _same(place: Place, first: Place | None) -> StateCheck:
    if first is None:
        return StateCheck(f"{place.hint}: the same object", place, IDENTICAL, (Named(place.value),))
    return StateCheck(f"{place.hint}: the same object as {first.hint}", place, IDENTICAL, (first,))


def _distinct(places: list[Place], others: list[Any]) -> Iterator[StateCheck]:
    """The check that objects of one class are different ones, and none of `others`."""
    kinds = [type(place.value) for place in places]
    kinds_of_others = set(map(type, others))
    places = [
        place
        for place, kind in zip(places, kinds, strict=True)
        if kind in kinds_of_others or kinds.count(kind) > 1
    ]
    if not places:
        return
    known = frozenset(id(value) for value in others if type(value) in kinds)
    values: list[Any] = [Named(distinct), *places]
    condition = f"{{1}}({', '.join(f'{{{index}}}' for index in range(2, len(places) + 2))})"
    if known:
        values.append(Named(known, "objects_as_traced"))
        condition = f"{condition[:-1]}, known={{{len(values)}}})"
    subject = ", ".join(place.hint for place in places)
    subject += ": objects of their own" if len(places) > 1 else ": an object of its own"
    yield StateCheck(subject, None, condition, tuple(values))
