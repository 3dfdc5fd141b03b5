"""Places: where an object that the program met is found again at each call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """An object and the way to it: `parent` followed by `steps` (".name", or an index in a one-element tuple).

    hint: the name that people know it by, such as `layers.0.weight`.
    """

    value: Any
    parent: Place | None
    steps: tuple[Any, ...]
    hint: str

    def child(self, value: Any, steps: tuple[Any, ...], name: str) -> Place:
        """The place of something reached from here."""
        return Place(value, self, steps, f"{self.hint}.{name}" if self.hint else name)


def place_of(value: Any, places: Mapping[int, Place]) -> Place:
    """The place of an object among those known by id; one of its own where no way to it was found."""
    return places.get(id(value)) or Place(value, None, (), own_name(value))


def names_in(code: CodeType) -> Iterator[str]:
    """The global and attribute names that a code object mentions, nested functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def own_name(value: Any) -> str:
    """What a function, class or module is called, else its class's name; a `__getattr__` of the user's is not asked."""
    try:
        name = object.__getattribute__(value, "__name__")
    except AttributeError:
        name = ""
    return name if type(name) is str and name else type(value).__name__
