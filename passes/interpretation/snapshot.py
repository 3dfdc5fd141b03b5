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
    """Whether a module is the user's; one without a file was made by hand, or in C."""
    file = getattr(module, "__file__", None)
    if file is not None and module.__name__ != "__main__":
        return is_watched(file)
    root = module.__name__.partition(".")[0]
    return root == "__main__" or root not in (*sys.stdlib_module_names, "torch", "numpy")


def views_of(value: Any) -> list[View]:
    """The views of an object."""
    kind = type(value)
    views = [
        view(value)
        for view in _own_views(kind)
        if not (view is Cells and value.__closure__ is None)
        and not (view is Content and value.dtype.hasobject)
    ]
    if kind in _BARE:
        return views
    if isinstance(getattr(value, "__dict__", None), dict) and not _is_opaque(kind):
        views.append(Attributes(value))
    if slots_of(kind) and is_users_class(kind):
        views.append(Slots(value))
    return views


@functools.lru_cache(maxsize=4096)
def _own_views(kind: type) -> tuple[type[View], ...]:
    """The views of what objects of a class hold besides attributes."""
    for kinds, views in _VIEWS:
        if issubclass(kind, kinds):
            return views
    return ()


_VIEWS: tuple[tuple[Any, tuple[type[View], ...]], ...] = (
    (dict, (Entries,)),
    ((list, tuple, deque), (Items,)),
    ((set, frozenset), (Members,)),
    (FunctionType, (Cells, Defaults)),
    (ContextVar, (Variable,)),
    (random.SystemRandom, ()),
    (random.Random, (RandomState,)),
    ((numpy.random.Generator, numpy.random.RandomState), (NumpyRandomState,)),
    (numpy.ndarray, (Content,)),
)
_BARE = frozenset((dict, list, tuple, set, frozenset, deque))
"""Classes whose objects have no attributes."""


@functools.lru_cache(maxsize=4096)
def _is_opaque(kind: type) -> bool:
    """Whether the attributes of a class's objects are none of the user's business."""
    opaque = kind.__module__.startswith(_OPAQUE) and not issubclass(kind, torch.nn.Module)
    return opaque or issubclass(kind, (ModuleType, type))


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
        stack, met = list(values), self.met
        while stack:
            value = stack.pop()
            if _is_atomic(type(value)) or id(value) in met or value is ABSENT:
                continue
            if len(met) >= _LIMIT:
                return
            met[id(value)] = value
            stack.extend(self._look_at(value))

    def _look_at(self, value: Any) -> Iterable[Any]:
        kind = type(value)
        if kind in LINKS:
            return [getattr(value, name, None) for name in LINKS[kind]]
        if kind is weakref.ref:
            return (value(),)
        if isinstance(value, ModuleType):
            if not is_users_module(value):
                return ()
            self._modules.append(value)
            return self.namespace(value.__dict__, self._names)
        if isinstance(value, type):
            return self._class(value)
        views = views_of(value)
        found: list[Any] = []
        if views:
            self.views[id(value)] = views
            for view in views:
                found.extend(view.before.values())
        found.append(kind)
        return found

    def _class(self, cls: type) -> Iterable[Any]:
        found: list[Any] = [*cls.__bases__, type(cls)]
        if is_users_class(cls):
            view = self.classes[id(cls)] = ClassNames(cls)
            found += view.mention({*self._names, *_called_unnamed(cls)})
        return found

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
        found += [sys.modules[name] for name in sys.modules.keys() & names]
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
