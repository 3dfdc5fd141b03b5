"""Snapshot: the Python state that a program can reach, as it is before the program reads it.

Each object has views: its attributes, entries, items, cells. A view keeps what it held, says afterwards what is
different, and puts it back. Objects are met from the program, its arguments, and the globals that the executed code
mentions, those before that code runs; so what a call makes is never among them, other than as what it wrote.
"""

from __future__ import annotations

import array
import functools
import gc
import operator
import random
import sys
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy
import torch

from tracemill.compiler.cached_calls import CACHED, results_of
from tracemill.compiler.contents import counts_by_content_inside
from tracemill.compiler.state_checks import ABSENT
from tracemill.compiler.torch_internals import PropModule
from tracemill.passes.interpretation.python.atoms import ends_at, is_atom
from tracemill.passes.interpretation.python.views import (
    Attributes,
    Buffer,
    Cells,
    ClassNames,
    Content,
    Defaults,
    Entries,
    Items,
    LibraryNames,
    Members,
    Names,
    NumpyRandomState,
    PatchedNames,
    RandomState,
    Slots,
    Variable,
    View,
    slots_of,
)
from tracemill.passes.interpretation.python.watch import (
    global_names,
    imported_names,
    is_standard,
    is_watched,
    mentioned,
)

_OPAQUE = ("torch._", "torch.jit", "torch.fx", "tracemill.", "typing", "logging", "abc", "inspect")
_WRITTEN_OFTEN = ("warnings",)
"""Modules in which Python itself keeps what it is at; a check of them would not last."""

_LIMIT = 1_000_000


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
    ((bytearray, array.array), (Buffer,)),
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
    functools.partialmethod: ("func", "args", "keywords"),
    functools.singledispatchmethod: ("dispatcher", "func"),
    ChainMap: ("maps",),
    UserDict: ("data",),
    UserList: ("data",),
    weakref.WeakKeyDictionary: ("data",),
    weakref.WeakValueDictionary: ("data",),
    weakref.WeakSet: ("data",),
    memoryview: ("obj",),
}
"""The attributes of objects that only hold others."""


HOLDING = frozenset(
    (
        BuiltinFunctionType,
        MethodWrapperType,
        MappingProxyType,
        type({}.keys()),
        type({}.values()),
        type({}.items()),
    )
)


def held_for_life(value: Any) -> list[Any]:
    """What an object written in C was made for: the list of `items.append`, the dict of `table.keys()`."""
    if isinstance(value, (BuiltinFunctionType, MethodWrapperType)):
        held = [value.__self__]
    else:
        held = gc.get_referents(value)
    return [each for each in held if not isinstance(each, (ModuleType, type))]


def _names_given(getter: Any) -> list[str]:
    """The names in an `operator.attrgetter` or `methodcaller`."""
    _, given, *_ = getter.__reduce__()
    return [name for name in given if type(name) is str]


def _called_unnamed(cls: type) -> list[str]:
    """The names of a class's methods that are called by code which does not mention them: `__add__`, a module's `forward`."""
    return [
        name
        for name, value in cls.__dict__.items()
        if isinstance(value, (FunctionType, staticmethod, classmethod))
        and (name == "forward" or name.startswith("__"))
    ]


def _of_users(cls: type) -> set[str]:
    """The names of the user's functions in a class of PyTorch's: methods that were replaced or added."""
    if not cls.__module__.startswith("torch"):
        return set()
    return {
        name
        for name, value in cls.__dict__.items()
        if type(value) is FunctionType and is_watched(value.__code__.co_filename)
    }


class Snapshot:
    """The views of every object met so far.

    views: of objects, by the object's id. globals, classes: the namespaces of the user's own modules and classes, by
    the id of the dictionary and of the class. libraries: those of other modules. caches: how often the results of each
    `functools.lru_cache` were asked for, by the id of its function. cached: these functions, by the id of
    their code. met: every object, by id. names: what code mentions.
    imported: the modules that it imports.
    """

    def __init__(self) -> None:
        self.views: dict[int, list[View]] = {}
        self.globals: dict[int, Names] = {}
        self.classes: dict[int, ClassNames] = {}
        self.libraries: dict[int, LibraryNames] = {}
        self.caches: dict[int, Any] = {}
        self.cached: dict[int, list[Any]] = {}
        self.met: dict[int, Any] = {}
        self.names: set[str] = set()
        self.imported: set[str] = set()
        self._whole = False
        self._modules: list[ModuleType] = []

    def visit(self, *values: Any) -> None:
        """Takes in what can be reached from `values` and is not known yet."""
        stack, met = list(values), self.met
        while stack:
            value = stack.pop()
            if ends_at(value) or id(value) in met or value is ABSENT:
                continue
            if len(met) >= _LIMIT:
                return
            met[id(value)] = value
            stack.extend(self._look_at(value))

    def _look_at(self, value: Any) -> Iterable[Any]:
        kind = type(value)
        if kind in LINKS:
            return [getattr(value, name, None) for name in LINKS[kind]]
        if kind is CACHED:
            self.caches[id(value)] = value.cache_info()
            code = getattr(value.__wrapped__, "__code__", None)
            self.cached.setdefault(id(code), []).append(value)
            return [value.__wrapped__, *(result for _, result in results_of(value))]
        if issubclass(kind, weakref.ref):
            return (value(),)
        if kind in HOLDING:
            return held_for_life(value)
        if kind in (operator.attrgetter, operator.methodcaller):
            names = {part for name in _names_given(value) for part in name.split(".")}
            self.mention(names)
            return ()
        if isinstance(value, ModuleType):
            if not is_users_module(value):
                return self._library(value)
            self._modules.append(value)
            return self.namespace(value.__dict__, self._names_in(value.__dict__))
        if isinstance(value, type):
            return self._class(value)
        if kind is FunctionType and not is_watched(value.__code__.co_filename):
            return self._function(value)
        views = views_of(value)
        found: list[Any] = []
        if views:
            self.views[id(value)] = views
            for view in views:
                found.extend(view.before.values())
                if type(view) is Entries:
                    found.extend(filter(counts_by_content_inside, view.before))
        found.append(kind)
        return found

    def _function(self, function: FunctionType) -> Iterable[Any]:
        """Takes in a library's function: what it closes over; of the standard library's, tables and functions alone."""
        view = Cells(function)
        self.views[id(function)] = [view]
        kinds: Any = object
        if is_standard(function.__code__.co_filename):
            kinds = (dict, list, FunctionType)
        return [value for value in view.before.values() if isinstance(value, kinds)]

    def _class(self, cls: type) -> Iterable[Any]:
        found: list[Any] = [*cls.__bases__, type(cls)]
        if is_users_class(cls):
            view = self.classes[id(cls)] = ClassNames(cls)
            found += view.mention(self._names_in(cls.__dict__).union(_called_unnamed(cls)))
        elif patched := _of_users(cls):
            view = self.classes[id(cls)] = PatchedNames(cls)
            found += view.mention(patched)
        return found

    def _library(self, module: ModuleType) -> Iterable[Any]:
        """Takes in a module that is not the user's; of what it holds, other modules alone are looked into."""
        if module.__name__ in _WRITTEN_OFTEN:
            return ()
        view = self.libraries[id(module.__dict__)] = LibraryNames(module)
        behind = getattr(module, "m", None) if isinstance(module, PropModule) else None
        return [*view.mention(self.names), *([behind] if behind is not None else ())]

    def _names_in(self, table: Mapping[str, Any]) -> set[str]:
        """The names that count in a module or class: where code asks for all of its names, those of constants as well."""
        if not self._whole:
            return self.names
        return self.names.union(name for name, value in table.items() if is_atom(value))

    def namespace(self, table: dict[str, Any], names: Iterable[str]) -> list[Any]:
        """Takes the names of a module's globals in; returns the values of the new ones."""
        view = self.globals.get(id(table))
        if view is None:
            view = self.globals[id(table)] = Names(table)
        return view.mention(names)

    def enter(self, code: CodeType, namespace: dict[str, Any], *, whole: bool = False) -> None:
        """Takes in what code mentions, before it runs for the first time; `whole`: it asks for all that objects have."""
        names, loaded = set(mentioned(code)), set(global_names(code))
        imported = set(imported_names(code))
        self.imported |= imported
        everything = (name for name in namespace if name != "__builtins__")
        found = self.namespace(namespace, everything if "globals" in loaded else loaded)
        self.globals[id(namespace)].loaded |= loaded
        for name in sys.modules.keys() & names:
            if name in imported or is_users_module(sys.modules[name]):
                found.append(sys.modules[name])
        if whole and not self._whole:
            self._whole = True
            for view in self.classes.values():
                found += view.mention(self._names_in(view.owner.__dict__))
            for module in self._modules:
                found += self.namespace(module.__dict__, self._names_in(module.__dict__))
        self.visit(*found)
        self.mention(names)

    def asked_for(self, owner: Any, name: str) -> None:
        """Takes in a name that code asks an object for without mentioning it."""
        if isinstance(owner, ModuleType):
            self.visit(owner)
            if id(owner.__dict__) in self.globals:
                self.globals[id(owner.__dict__)].loaded.add(name)  # also where it is not there
        self.mention({name})

    def mention(self, names: set[str]) -> None:
        """Takes in names that code is about to use."""
        new, found = names - self.names, list[Any]()
        if not new:
            return
        self.names |= new
        for view in (*self.classes.values(), *self.libraries.values()):
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
        yield from self.libraries.values()

    def changes(self) -> dict[View, dict[Any, Any]]:
        """What is different now: for each view, the new values by key, ABSENT for what is gone."""
        found: dict[View, dict[Any, Any]] = {}
        for view in self.all_views():
            changed = view.changes()
            if changed:
                view.after = view.read()
                found[view] = changed
        return found
