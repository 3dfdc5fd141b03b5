"""Snapshot: the Python state that a program can reach, as it is before the program reads it.

Each object has views: its attributes, entries, items, cells. A view keeps what it held, says afterwards what is
different, and puts it back. Objects are met from the program, its arguments, and the globals that the executed code
mentions, those before that code runs; so what a call makes is never among them, other than as what it wrote.
"""

from __future__ import annotations

import enum
import functools
import random
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch

from tracemill.compiler.state_checks import ABSENT
from tracemill.passes.interpretation.views import (
    Attributes,
    Cells,
    ClassNames,
    Content,
    Defaults,
    Entries,
    Items,
    Members,
    Names,
    NumpyRandomState,
    RandomState,
    Slots,
    Variable,
    View,
    slots_of,
)
from tracemill.passes.interpretation.watch import global_names, is_watched, mentioned

_ATOMS = (
    int, float, bool, str, bytes, complex, type(None), type(Ellipsis), range, slice, torch.dtype, torch.device,
    torch.Size, torch.layout, torch.memory_format, BuiltinFunctionType, enum.Enum, torch.Tensor, torch.Generator,
)  # fmt: skip
_OPAQUE = ("torch._", "torch.jit", "torch.fx", "tracemill.", "typing", "logging", "abc", "inspect")
_LIMIT = 1_000_000


@functools.lru_cache(maxsize=4096)
def _is_atomic(kind: type) -> bool:
    return issubclass(kind, _ATOMS)


def is_atom(value: Any) -> bool:
    """Whether nothing of the user's is reached through a value; known by its class, as `isinstance` would be slow."""
    return _is_atomic(type(value))


@functools.lru_cache(maxsize=4096)
def is_users_class(cls: type) -> bool:
    """Whether a class is the user's, not torch's, Python's or tracemill's."""
    module = sys.modules.get(cls.__module__)
    if cls.__module__ == "__main__" or module is None:
        return True
    file = getattr(module, "__file__", None)
    return file is not None and is_watched(file)


def is_users_module(module: ModuleType) -> bool:
    """Whether a module is the user's."""
    file = getattr(module, "__file__", None)
    return module.__name__ == "__main__" or (file is not None and is_watched(file))


def views_of(value: Any) -> Iterator[View]:
    """The views of an object."""
    kind = type(value)
    if isinstance(value, dict):
        yield Entries(value)
    elif isinstance(value, (list, tuple, deque)):
        yield Items(value)
    elif isinstance(value, (set, frozenset)):
        yield Members(value)
    elif kind is FunctionType:
        if value.__closure__:
            yield Cells(value)
        yield Defaults(value)
    elif kind is ContextVar:
        yield Variable(value)
    elif isinstance(value, random.Random) and kind is not random.SystemRandom:
        yield RandomState(value)
    elif isinstance(value, (numpy.random.Generator, numpy.random.RandomState)):
        yield NumpyRandomState(value)
    elif isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        yield Content(value)
    if isinstance(getattr(value, "__dict__", None), dict) and not _is_opaque(kind):
        yield Attributes(value)
    if slots_of(kind) and is_users_class(kind):
        yield Slots(value)


def _is_opaque(kind: type) -> bool:
    """Whether the attributes of a class's objects are none of the user's business."""
    return kind.__module__.startswith(_OPAQUE) or issubclass(kind, (ModuleType, type))


LINKS: dict[type, tuple[str, ...]] = {
    MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    property: ("fget", "fset"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    functools.cached_property: ("func",),
}
"""The attributes of objects that only hold others."""


def _called_unnamed(cls: type) -> list[str]:
    """The names of a class's methods that are called by code which does not mention them: `__add__`, a module's `forward`."""
    return [
        name
        for name, value in cls.__dict__.items()
        if isinstance(value, (FunctionType, staticmethod, classmethod))
        and (name == "forward" or name.startswith("__"))
    ]


class Snapshot:
    """The views of every object met so far.

    views: of objects, by the object's id. globals, classes: the namespaces of the user's own modules and classes, by
    the id of the dictionary and of the class. met: every object, by id.
    """

    def __init__(self) -> None:
        self.views: dict[int, list[View]] = {}
        self.globals: dict[int, Names] = {}
        self.classes: dict[int, ClassNames] = {}
        self.met: dict[int, Any] = {}
        self._names: set[str] = set()
        self._modules: list[ModuleType] = []

    def visit(self, *values: Any) -> None:
        """Takes in what can be reached from `values` and is not known yet."""
        stack = list(values)
        while stack:
            value = stack.pop()
            if is_atom(value) or id(value) in self.met or value is ABSENT:
                continue
            if len(self.met) >= _LIMIT:
                return
            self.met[id(value)] = value
            stack.extend(self._look_at(value))

    def _look_at(self, value: Any) -> Iterator[Any]:
        links = LINKS.get(type(value))
        if links is not None:
            yield from (getattr(value, name, None) for name in links)
            return
        if type(value) is weakref.ref:
            yield value()
            return
        if isinstance(value, ModuleType):
            if is_users_module(value):
                self._modules.append(value)
                yield from self.namespace(value.__dict__, self._names)
            return
        if isinstance(value, type):
            yield from self._class(value)
            return
        views = list(views_of(value))
        if views:
            self.views[id(value)] = views
        for view in views:
            yield from view.before.values()
        yield type(value)

    def _class(self, cls: type) -> Iterator[Any]:
        yield from cls.__bases__
        yield type(cls)
        if is_users_class(cls):
            view = self.classes[id(cls)] = ClassNames(cls)
            yield from view.mention(self._names)
            yield from view.mention(_called_unnamed(cls))

    def namespace(self, table: dict[str, Any], names: Iterable[str]) -> list[Any]:
        """Takes the names of a module's globals in; returns the values of the new ones."""
        view = self.globals.get(id(table))
        if view is None:
            view = self.globals[id(table)] = Names(table)
        return view.mention(names)

    def enter(self, code: CodeType, namespace: dict[str, Any]) -> None:
        """Takes in what code mentions, before it runs for the first time."""
        names = set(mentioned(code))
        new = names - self._names
        self._names |= new
        loaded = set(global_names(code))
        found = self.namespace(namespace, names if "globals" in loaded else loaded)
        self.globals[id(namespace)].loaded |= loaded
        found += [sys.modules[name] for name in names if name in sys.modules]
        for view in list(self.classes.values()):
            found += view.mention(new)
        for module in self._modules:
            found += self.namespace(module.__dict__, new)
        self.visit(*found)

    def all_views(self) -> Iterator[View]:
        """Every view there is."""
        for views in self.views.values():
            yield from views
        yield from self.globals.values()
        yield from self.classes.values()

    def changes(self) -> dict[View, dict[Any, Any]]:
        """What is different now: for each view, the new values by key, ABSENT for what is gone."""
        found: dict[View, dict[Any, Any]] = {}
        for view in self.all_views():
            changed = view.changes()
            if changed:
                view.after = view.read()
                found[view] = changed
        return found
