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
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch

from tracemill.compiler.state_checks import ABSENT, same
from tracemill.passes.interpretation.watch import global_names, is_watched, mentioned

ATOMS = (
    int, float, bool, str, bytes, complex, type(None), type(Ellipsis), range, slice, torch.dtype, torch.device,
    torch.Size, torch.layout, torch.memory_format, BuiltinFunctionType, enum.Enum, torch.Tensor, torch.Generator,
)  # fmt: skip
_OPAQUE = ("torch._", "torch.jit", "torch.fx", "tracemill.", "typing", "logging", "abc", "inspect")
_LIMIT = 1_000_000


class View:
    """One table of an object, as it was: `before` holds its values by key, `after` those that the program left."""

    __slots__ = ("after", "before", "owner")

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.before: dict[Any, Any] = self.read()
        self.after: dict[Any, Any] = self.before

    def read(self) -> dict[Any, Any]:
        """The values by key, now."""
        raise NotImplementedError

    def write(self, values: dict[Any, Any]) -> None:
        """Makes the table hold `values`, in their order."""
        raise NotImplementedError

    def put_back(self, changed: Iterable[Any]) -> None:
        """Undoes changes; writes no more than that where the order stays, for other threads may read."""
        self.write(self.before)

    def changes(self) -> dict[Any, Any]:
        """What is different now, by key; ABSENT for what is gone."""
        now, before = self.read(), self.before
        return {
            key: now.get(key, ABSENT)
            for key in (now | before if now.keys() != before.keys() else now)
            if not same(now.get(key, ABSENT), before.get(key, ABSENT))
        }


class Attributes(View):
    """The attributes of an object that has a `__dict__`."""

    def read(self) -> dict[Any, Any]:
        return dict(self.owner.__dict__)

    def write(self, values: dict[Any, Any]) -> None:
        table = self.owner.__dict__
        table.clear()
        table.update(values)

    def put_back(self, changed: Iterable[Any]) -> None:
        table, before = self.owner.__dict__, self.before
        if any(key in before and key not in table for key in changed):
            self.write(before)
            return
        for key in changed:
            if key in before:
                table[key] = before[key]
            else:
                del table[key]


class Slots(View):
    """The attributes of an object that have slots."""

    def read(self) -> dict[Any, Any]:
        return {name: _attribute(self.owner, name) for name in slots_of(type(self.owner))}

    def write(self, values: dict[Any, Any]) -> None:
        for name, value in values.items():
            if value is not ABSENT:
                object.__setattr__(self.owner, name, value)
            elif _attribute(self.owner, name) is not ABSENT:
                object.__delattr__(self.owner, name)


class Entries(View):
    """The entries of a dict, in order."""

    def read(self) -> dict[Any, Any]:
        ordered = isinstance(self.owner, OrderedDict)
        return dict(OrderedDict.items(self.owner) if ordered else dict.items(self.owner))

    def changes(self) -> dict[Any, Any]:
        found, now = super().changes(), self.read()
        if [key for key in now if key in self.before] != [key for key in self.before if key in now]:
            return found | now  # in another order: all of it is written
        return found

    def write(self, values: dict[Any, Any]) -> None:
        kind: Any = OrderedDict if isinstance(self.owner, OrderedDict) else dict
        kind.clear(self.owner)
        for key, value in values.items():
            kind.__setitem__(self.owner, key, value)


class Items(View):
    """The items of a list, tuple or deque, by index."""

    def read(self) -> dict[Any, Any]:
        return dict(enumerate(self.owner))

    def write(self, values: dict[Any, Any]) -> None:
        self.owner.clear()
        self.owner.extend(values.values())


class Members(View):
    """The members of a set, in the order of its iteration."""

    def read(self) -> dict[Any, Any]:
        return dict(enumerate(self.owner))

    def changes(self) -> dict[Any, Any]:
        return {} if same(set(self.owner), set(self.before.values())) else self.read()

    def write(self, values: dict[Any, Any]) -> None:
        self.owner.clear()
        self.owner.update(values.values())


class Cells(View):
    """What a function closes over, by name."""

    def read(self) -> dict[Any, Any]:
        return {
            name: _content(cell)
            for name, cell in zip(
                self.owner.__code__.co_freevars, self.owner.__closure__ or (), strict=True
            )
        }

    def write(self, values: dict[Any, Any]) -> None:
        for cell, value in zip(self.owner.__closure__ or (), values.values(), strict=True):
            if value is ABSENT:
                del cell.cell_contents
            else:
                cell.cell_contents = value


class Defaults(View):
    """The defaults of a function's parameters: `__defaults__` and `__kwdefaults__`."""

    def read(self) -> dict[Any, Any]:
        function = self.owner
        return {"__defaults__": function.__defaults__, "__kwdefaults__": function.__kwdefaults__}

    def write(self, values: dict[Any, Any]) -> None:
        for name, value in values.items():
            setattr(self.owner, name, value)


class Names(View):
    """The names of a namespace (a module's globals, a class) that code mentions; the others do not count.

    loaded: those that code loads as globals.
    """

    __slots__ = ("loaded", "mentioned")

    def __init__(self, owner: Any) -> None:
        self.mentioned: set[str] = set()
        self.loaded: set[str] = set()
        super().__init__(owner)

    def mention(self, names: Iterable[str]) -> list[Any]:
        """Takes names in; returns the values of the new ones."""
        new = [name for name in names if name not in self.mentioned]
        self.mentioned.update(new)
        values = {name: self._table().get(name, ABSENT) for name in new}
        self.before.update(values)
        return list(values.values())

    def read(self) -> dict[Any, Any]:
        table = self._table()
        return {name: table.get(name, ABSENT) for name in self.mentioned}

    def _table(self) -> Any:
        return self.owner

    def write(self, values: dict[Any, Any]) -> None:
        for name, value in values.items():
            if value is not ABSENT:
                self.owner[name] = value
            else:
                self.owner.pop(name, None)


class ClassNames(Names):
    """The attributes of a class that code mentions."""

    __slots__ = ()

    def _table(self) -> Any:
        return self.owner.__dict__

    def write(self, values: dict[Any, Any]) -> None:
        for name, value in values.items():
            if value is not ABSENT:
                type.__setattr__(self.owner, name, value)
            elif name in self.owner.__dict__:
                type.__delattr__(self.owner, name)


class Variable(View):
    """The value of a ContextVar."""

    def read(self) -> dict[Any, Any]:
        return {"value": self.owner.get(ABSENT)}

    def write(self, values: dict[Any, Any]) -> None:
        self.owner.set(values["value"])


class RandomState(View):
    """The state of a `random.Random`."""

    def read(self) -> dict[Any, Any]:
        return {"state": self.owner.getstate()}

    def write(self, values: dict[Any, Any]) -> None:
        self.owner.setstate(values["state"])


class Content(View):
    """The numbers in a numpy array."""

    def read(self) -> dict[Any, Any]:
        return {"bytes": self.owner.tobytes()}

    def write(self, values: dict[Any, Any]) -> None:
        kept = numpy.frombuffer(values["bytes"], dtype=self.owner.dtype)
        self.owner[...] = kept.reshape(self.owner.shape)


def _attribute(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return ABSENT


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return ABSENT


@functools.lru_cache(maxsize=1024)
def slots_of(cls: type) -> tuple[str, ...]:
    """The names of a class's slots, private ones as the class has them."""
    names: list[str] = []
    for owner in cls.__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                names.append(f"_{owner.__name__.lstrip('_')}{name}" if private else name)
    return tuple(names)


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
            if isinstance(value, ATOMS) or id(value) in self.met or value is ABSENT:
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
        if is_users_class(cls):
            view = self.classes[id(cls)] = ClassNames(cls)
            yield from view.mention(self._names)

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
