"""Places: where a tensor that the program met is found again at each call.

A walk from the program (its module tree, globals, closure, defaults and attributes) and its opaque arguments finds each
tensor by identity, and remembers the way to it.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from tracemill.passes.interpretation.location import is_library

_ATOMS = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device)
_LIMIT = 200_000


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


def names_in(code: CodeType) -> Iterator[str]:
    """The global and attribute names that a code object mentions, nested functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def find(roots: Iterable[Place], wanted: set[int]) -> dict[int, list[Place]]:
    """The places of the objects whose ids are `wanted`: every one in module trees, else the first one found."""
    found: dict[int, list[Place]] = {}
    queue = deque(roots)
    later: deque[Place] = deque()
    seen: set[int] = set()
    while queue or later:
        place = queue.popleft() if queue else later.popleft()
        value = place.value
        if id(value) in wanted:
            found.setdefault(id(value), []).append(place)
            continue
        if isinstance(value, (*_ATOMS, torch.Tensor)) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            queue.extend(_module_children(place))
            later.append(Place(_Rest(value), place.parent, place.steps, place.hint))
        elif len(seen) < _LIMIT and len(found) < len(wanted):
            later.extend(_children(place))
    return found


class _Rest:
    """The attributes of a module besides its tables, looked at after all tables."""

    __slots__ = ("module",)

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module


def _module_children(place: Place) -> Iterator[Place]:
    module = place.value
    for table in ("_parameters", "_buffers", "_modules"):
        for name, value in module.__dict__[table].items():
            if value is not None:
                yield place.child(value, (f".{table}", (name,)), name)


def _children(place: Place) -> Iterator[Place]:
    value = place.value
    if isinstance(value, _Rest):
        tables = ("_parameters", "_buffers", "_modules")
        yield from (
            child for child in _object(place, value.module) if child.steps[0][1:] not in tables
        )
    elif isinstance(value, FunctionType):
        yield from _function(place, value)
    elif isinstance(value, MethodType):
        yield place.child(value.__self__, (".__self__",), "self")
        yield place.child(value.__func__, (".__func__",), "")
    elif isinstance(value, functools.partial):
        yield place.child(value.func, (".func",), "")
        yield from (
            place.child(item, (".args", (i,)), f"args.{i}") for i, item in enumerate(value.args)
        )
        yield from (
            place.child(item, (".keywords", (name,)), name) for name, item in value.keywords.items()
        )
    elif isinstance(value, (list, tuple)):
        yield from (place.child(item, ((i,),), str(i)) for i, item in enumerate(value))
    elif isinstance(value, dict):
        yield from (
            place.child(item, ((key,),), str(key))
            for key, item in list(value.items())
            if isinstance(key, (str, int))
        )
    elif isinstance(value, type):
        yield from _class(place, value)
    elif isinstance(value, ModuleType):
        return
    else:
        yield from _object(place, value)


def _function(place: Place, function: FunctionType) -> Iterator[Place]:
    code = function.__code__
    for index, (name, cell) in enumerate(
        zip(code.co_freevars, function.__closure__ or (), strict=True)
    ):
        try:
            yield place.child(
                cell.cell_contents, (".__closure__", (index,), ".cell_contents"), name
            )
        except ValueError:  # the cell is still empty
            continue
    for index, value in enumerate(function.__defaults__ or ()):
        yield place.child(value, (".__defaults__", (index,)), f"default.{index}")
    for name, value in (function.__kwdefaults__ or {}).items():
        yield place.child(value, (".__kwdefaults__", (name,)), name)
    if is_library(code.co_filename):
        return
    names = list(dict.fromkeys(names_in(code)))
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        steps = (".__globals__", (name,))
        if not isinstance(value, ModuleType):
            yield Place(value, place, steps, name)
        elif not is_library(getattr(value, "__file__", None) or "<frozen"):
            yield from _module_globals(place, value, steps, name, names)


def _module_globals(
    place: Place, module: ModuleType, steps: tuple[Any, ...], name: str, names: list[str]
) -> Iterator[Place]:
    """What code can reach as `module.name`: only names that it mentions."""
    for attribute in names:
        if attribute in module.__dict__:
            yield Place(
                module.__dict__[attribute], place, (*steps, f".{attribute}"), f"{name}.{attribute}"
            )


def _class(place: Place, cls: type) -> Iterator[Place]:
    module = sys.modules.get(cls.__module__)
    if module is None or is_library(getattr(module, "__file__", None) or "<frozen"):
        return
    for name, value in list(cls.__dict__.items()):
        if name.startswith("__") and not isinstance(value, FunctionType):
            continue
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        hint = "" if isinstance(value, FunctionType) else name
        yield Place(value, place, (".__dict__", (name,)), hint)


def _object(place: Place, value: Any) -> Iterator[Place]:
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        for name, item in list(attributes.items()):
            if isinstance(name, str):
                yield place.child(
                    item, (f".{name}",) if name.isidentifier() else (".__dict__", (name,)), name
                )
    for index, cls in enumerate(type(value).__mro__[:-1]):
        yield Place(cls, place, (".__class__", ".__mro__", (index,)), "")
