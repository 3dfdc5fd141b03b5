"""Views: the tables of an object (attributes, entries, items, cells), as they were, and what became of them."""

from __future__ import annotations

import functools
import operator
import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterable
from itertools import repeat
from types import ModuleType
from typing import Any

import numpy
import torch

from tracemill.compiler.state_checks import ABSENT, same
from tracemill.passes.interpretation.python.python_numbers import is_symbolic, plain
from tracemill.passes.interpretation.replacements.replacement import is_replaced


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
        if _identical(now, before):
            return {}
        return {
            key: now.get(key, ABSENT)
            for key in (now | before if now.keys() != before.keys() else now)
            if not same(now.get(key, ABSENT), before.get(key, ABSENT))
        }


def _identical(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    """Whether two tables hold the same objects: nearly all do, and `same` need not be asked of each."""
    return len(now) == len(before) and all(
        map(operator.is_, map(now.get, before, repeat(ABSENT)), before.values())
    )


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
        items = OrderedDict.items(self.owner) if ordered else dict.items(self.owner)
        if _MAY_BE_SYMBOLIC.isdisjoint(map(type, dict.keys(self.owner))):
            return dict(items)
        return {_plain_key(key): value for key, value in items}

    def changes(self) -> dict[Any, Any]:
        if not self.before and not dict.__len__(self.owner):
            return {}
        found, now = super().changes(), self.read()
        if not found and all(map(operator.is_, now, self.before)):
            return found
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
    """The names of a namespace (a module's globals, a class) that code mentions, where it has them; the others do not count.

    mentioned: all of them. loaded: those that code loads as globals.
    """

    __slots__ = ("loaded", "mentioned")

    def __init__(self, owner: Any) -> None:
        self.mentioned: set[str] = set()
        self.loaded: set[str] = set()
        super().__init__(owner)

    def mention(self, names: Iterable[str]) -> list[Any]:
        """Takes names in; returns the values of the new ones."""
        table, names = self._table(), set(names)
        if table.keys().isdisjoint(names):
            self.mentioned |= names
            return []
        new = table.keys() & (names - self.mentioned)
        self.mentioned |= names
        values = {name: table[name] for name in new}
        self.before.update(values)
        return list(values.values())

    def read(self) -> dict[Any, Any]:
        table = self._table()
        return {name: table[name] for name in table.keys() & self.mentioned}

    def _table(self) -> Any:
        return self.owner

    def put_back(self, changed: Iterable[Any]) -> None:
        for name in changed:
            if name in self.before:
                self._set(name, self.before[name])
            else:
                self._remove(name)

    def _set(self, name: str, value: Any) -> None:
        self.owner[name] = value

    def _remove(self, name: str) -> None:
        self.owner.pop(name, None)


class LibraryNames(Names):
    """The names of a module of a library that code mentions; those that stand for others during a trace do not count."""

    __slots__ = ("module",)

    def __init__(self, module: Any) -> None:
        self.module = module
        super().__init__(module.__dict__)

    def mention(self, names: Iterable[str]) -> list[Any]:
        names = set(names)
        there = self.owner.keys() & names
        found = super().mention(names - {n for n in there if is_replaced(self.module, n)})
        kinds = (ModuleType, list) if self.module is sys else ModuleType  # sys.argv is the user's
        return [value for value in found if isinstance(value, kinds)]

    def changes(self) -> dict[Any, Any]:
        found = super().changes()
        return {  # modules are imported when they are first needed
            name: value for name, value in found.items() if not isinstance(value, ModuleType)
        }


class ClassNames(Names):
    """The attributes of a class that code mentions."""

    __slots__ = ()

    def _table(self) -> Any:
        return self.owner.__dict__

    def _set(self, name: str, value: Any) -> None:
        type.__setattr__(self.owner, name, value)

    def _remove(self, name: str) -> None:
        if name in self.owner.__dict__:
            type.__delattr__(self.owner, name)


class PatchedNames(ClassNames):
    """The methods of a library's class that the user added or replaced; the others do not count."""

    __slots__ = ()

    def mention(self, names: Iterable[str]) -> list[Any]:
        return [] if self.mentioned else super().mention(names)


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


def numpy_state(generator: Any) -> bytes:
    """The state of one of numpy's generators, in a form that compares."""
    if isinstance(generator, numpy.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    return pickle.dumps(generator.bit_generator.state)


def set_numpy_state(generator: Any, state: bytes) -> None:
    """Brings one of numpy's generators to a state."""
    if isinstance(generator, numpy.random.RandomState):
        generator.set_state(pickle.loads(state))
    else:
        generator.bit_generator.state = pickle.loads(state)


class NumpyRandomState(View):
    """The state of one of numpy's generators."""

    def read(self) -> dict[Any, Any]:
        return {"state": numpy_state(self.owner)}

    def write(self, values: dict[Any, Any]) -> None:
        set_numpy_state(self.owner, values["state"])


class Buffer(View):
    """What is in a bytearray or an array."""

    def read(self) -> dict[Any, Any]:
        return {"content": self.owner[:]}

    def changes(self) -> dict[Any, Any]:
        now = self.read()
        return {} if now == self.before else now

    def write(self, values: dict[Any, Any]) -> None:
        self.owner[:] = values["content"]


class Content(View):
    """The numbers in a numpy array."""

    def read(self) -> dict[Any, Any]:
        return {"bytes": self.owner.tobytes()}

    def write(self, values: dict[Any, Any]) -> None:
        kept = numpy.frombuffer(values["bytes"], dtype=self.owner.dtype)
        self.owner[...] = kept.reshape(self.owner.shape)


_MAY_BE_SYMBOLIC = frozenset((torch.SymInt, torch.Size, tuple))


def _plain_key(key: Any) -> Any:
    """A key with the numbers that its symbolic sizes are: it was looked up by these."""
    if is_symbolic(key):
        return plain(key)
    if isinstance(key, torch.Size):
        return torch.Size(map(_plain_key, key))
    return tuple(map(_plain_key, key)) if type(key) is tuple else key


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
