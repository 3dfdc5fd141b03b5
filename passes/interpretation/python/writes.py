"""Writes: what a program changed of the Python state, as lines of the epilogue.

    def epilogue(t1, module):
      module.last = t1
      module.calls += 1
      module.history.append(t1)

What the trace changed is put back afterwards, and each call makes the change anew. Where the new value was made from
the old one the prologue checks the old value, other than where the program only counts it up or only appends to it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy
import torch

from tracemill.compiler.contents import counts_by_content
from tracemill.compiler.errors import MutationError
from tracemill.compiler.fakes import mode_of
from tracemill.compiler.proxy import NumberProxy
from tracemill.compiler.state_checks import ABSENT
from tracemill.compiler.symbolic import Expression
from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.python import views
from tracemill.passes.interpretation.python.atoms import is_atom
from tracemill.passes.interpretation.python.conditions import Named, Namespace
from tracemill.passes.interpretation.python.messages import Message
from tracemill.passes.interpretation.python.places import Place, place_of
from tracemill.passes.interpretation.python.snapshot import Snapshot
from tracemill.passes.interpretation.python.tables import by_name
from tracemill.passes.interpretation.python.usage import Usage
from tracemill.passes.interpretation.python.views import View

Changes = dict[View, dict[Any, Any]]


@dataclass(frozen=True)
class Write:
    """A line of the epilogue: `template` holds `{0}` for the owner and `{1}`.. for the values.

    A value is a structure of constants, proxies, places of what the program found, and Named objects.
    """

    template: str
    owner: Place
    values: tuple[Any, ...] = ()


def appended(view: View) -> list[Any] | None:
    """The items that were added at a list's end; None where anything else was done to it."""
    before, now = list(view.before.values()), list(view.after.values())
    if not isinstance(view.owner, (list, deque)) or len(now) < len(before):
        return None
    kept = all(new is old for new, old in zip(now, before, strict=False))
    return now[len(before) :] if kept else None


def sole_names(snapshot: Snapshot, changes: Changes) -> dict[int, str]:
    """The name of each changed list that only one attribute or variable holds, by the list's id."""
    found: dict[int, list[Any]] = {
        id(view.owner): [] for view in changes if isinstance(view, views.Items)
    }
    if not found:
        return {}
    for view in snapshot.all_views():
        for key, value in view.before.items():
            if id(value) in found:
                found[id(value)].append(key)
    return {
        key: names[0] for key, names in found.items() if len(names) == 1 and type(names[0]) is str
    }


def unchecked(changes: Changes, usage: Usage, names: Mapping[int, str]) -> Changes:
    """The part of `changes` whose old values the program did not read, or read only to count or append.

    names: what code calls an object, by its id, where it has one name only.
    """
    found: Changes = {}
    for view, changed in changes.items():
        if isinstance(view, views.Items):
            name = names.get(id(view.owner))
            if name is not None and appended(view) is not None and usage.only_appends(name):
                found[view] = changed
        elif isinstance(view, (views.Attributes, views.Slots, views.Names, views.Cells)):
            free = {
                key: value
                for key, value in changed.items()
                if isinstance(key, str) and _is_free(view, key, value, usage)
            }
            if free:
                found[view] = free
    return found


def _is_free(view: View, key: str, value: Any, usage: Usage) -> bool:
    return not usage.reads(key) or is_count(view.before.get(key, ABSENT), value, key, usage)


def is_count(before: Any, after: Any, name: str, usage: Usage) -> bool:
    """Whether a number was only counted up."""
    return type(before) is int and type(after) is int and usage.only_counts(name)


@dataclass
class Writer:
    """Turns changes into lines of the epilogue.

    places: where the objects that the program found are, by id. free: the changes whose old values are not checked.
    usage: what the executed code does with names.
    """

    snapshot: Snapshot
    interpreter: Interpreter
    places: Mapping[int, Place]
    free: Changes
    usage: Usage

    def writes(self, changes: Iterable[tuple[View, dict[Any, Any]]]) -> Iterator[Write]:
        """The lines, in the order of the changes."""
        for view, changed in changes:
            yield from _LINES[type(view)](self, view, changed)

    def _owner(self, view: View) -> Place:
        return place_of(view.owner, self.places)

    def message(self, message: Message) -> Write:
        """The line of a warning or log record."""
        function, args = message
        owner = Place(function, None, (), function.__name__)
        values = [
            self.value(arg, "a log record's argument")
            if is_literal(arg) or type(arg) is tuple
            else Named(arg)
            for arg in args
        ]
        places = ", ".join(f"{{{index}}}" for index in range(1, len(values) + 1))
        return Write(f"{{0}}({places})", owner, tuple(values))

    # Values

    def value(self, value: Any, where: str) -> Any:
        """A stored value as the epilogue writes it."""
        value = self.interpreter.number(value)
        if isinstance(value, (NumberProxy, Expression)):
            return value
        if isinstance(value, torch.Tensor):
            return self.interpreter.lift(value).proxy
        known = self.places.get(id(value))
        if known is not None and not is_atom(value):
            return known
        if is_atom(value) or id(value) in self.snapshot.met or isinstance(value, type):
            return Named(value) if not is_literal(value) else value
        if type(value) is tuple:
            return tuple(self.value(item, where) for item in value)
        if isinstance(value, tuple) and hasattr(type(value), "_make"):
            kind: Any = type(value)
            return kind._make(self.value(item, where) for item in value)
        if type(value) is MethodType and self._is_found_again(value.__self__):
            return Named(value)
        return self._made(value, where)

    def _is_found_again(self, value: Any) -> bool:
        """Whether an object is the same one at each call: no argument, nor made by the program."""
        place = self.places.get(id(value))
        while place is not None and place.parent is not None:
            place = place.parent
        return place is not None and not (place.hint and counts_by_content(place.value))

    def _made(self, value: Any, where: str) -> Any:
        """A list, dict or set that the program made and that stands nowhere else."""
        if type(value) is list:
            return [self.value(item, where) for item in value]
        if type(value) is dict and all(map(is_literal, value)):
            return {key: self.value(item, where) for key, item in value.items()}
        if type(value) in (set, frozenset) and all(map(is_literal, value)):
            return value
        raise MutationError(
            f"the program stores a new {type(value).__name__} as {where}, which cannot be made anew at each call; "
            "make it before the jitted function runs"
        )

    # Lines, by what is written to

    def _attributes(self, view: View, changed: dict[Any, Any]) -> Iterator[Write]:
        owner, kind = self._owner(view), type(view.owner)
        for key, value in changed.items():
            plain = (
                kind.__setattr__ in (object.__setattr__, torch.nn.Module.__setattr__)
                and not hasattr(kind, key)
                and key.isidentifier()
            )
            target = f"{{0}}.{key}" if plain else f"{{0}}.__dict__[{key!r}]"
            yield self._assignment(view, owner, target, key, value)

    def _assignment(self, view: View, owner: Place, target: str, key: Any, value: Any) -> Write:
        if value is ABSENT:
            return Write(f"del {target}", owner)
        before = view.before.get(key, ABSENT)
        if key in self.free.get(view, ()) and type(before) is int and type(value) is int:
            if self.usage.reads(key):
                return Write(f"{target} += {{1}}", owner, (value - before,))
        return Write(f"{target} = {{1}}", owner, (self.value(value, target.format(owner.hint)),))

    def _names(self, view: View, changed: dict[Any, Any]) -> Iterator[Write]:
        owner = self._owner(view)
        space = owner.value
        dotted = isinstance(space, type) or (
            isinstance(space, Namespace) and space.module is not None
        )
        for key, value in sorted(changed.items(), key=by_name):
            target = f"{{0}}.{key}" if dotted else f"{{0}}[{key!r}]"
            yield self._assignment(view, owner, target, key, value)

    def _cells(self, view: View, changed: dict[Any, Any]) -> Iterator[Write]:
        owner = self._owner(view)
        freevars = view.owner.__code__.co_freevars
        for key, value in changed.items():
            target = f"{{0}}.__closure__[{freevars.index(key)}].cell_contents"
            yield self._assignment(view, owner, target, key, value)

    def _entries(self, view: View, changed: dict[Any, Any]) -> Iterator[Write]:
        owner, now = self._owner(view), view.after
        kind = type(view.owner)
        set_item = kind.__setitem__ in (dict.__setitem__, OrderedDict.__setitem__)
        if [key for key in view.before if key in now] != list(now)[: len(view.before)]:
            yield Write("{0}.clear()", owner)
            changed = now
        for key, value in changed.items():
            where = f"{owner.hint}[{key!r}]"
            named = self._key(key)
            if value is ABSENT:
                yield Write("del {0}[{1}]", owner, (named,))
            elif set_item:
                yield Write("{0}[{1}] = {2}", owner, (named, self.value(value, where)))
            else:
                base = OrderedDict if isinstance(view.owner, OrderedDict) else dict
                values = named, self.value(value, where), Named(base)
                yield Write("{3}.__setitem__({0}, {1}, {2})", owner, values)

    def _key(self, key: Any) -> Any:
        """A key as the epilogue writes it: an object of the call by its place, a tensor of the call by its name."""
        if isinstance(key, torch.Tensor) or id(key) in self.places or isinstance(key, tuple):
            return self.value(key, "a key")
        return key if is_literal(key) else Named(key)

    def _items(self, view: View, _changed: dict[Any, Any]) -> Iterator[Write]:
        owner, new = self._owner(view), appended(view)
        if new is None:
            yield Write("{0}.clear()", owner)
            new = list(view.after.values())
        own = type(view.owner).append not in (list.append, deque.append)
        for value in new:
            stored = self.value(value, f"an item of {owner.hint}")
            if own:
                yield Write("{2}.append({0}, {1})", owner, (stored, Named(list)))
            else:
                yield Write("{0}.append({1})", owner, (stored,))

    def _members(self, view: View, changed: dict[Any, Any]) -> Iterator[Write]:
        owner = self._owner(view)
        if view.before:
            yield Write("{0}.clear()", owner)
        for value in changed.values():
            yield Write("{0}.add({1})", owner, (self.value(value, f"a member of {owner.hint}"),))

    def _call(self, view: View, changed: dict[Any, Any]) -> Iterator[Write]:
        method = "set" if isinstance(view, views.Variable) else "setstate"
        for value in changed.values():
            owner = self._owner(view)
            stored = Named(value) if method == "setstate" else self.value(value, owner.hint)
            yield Write(f"{{0}}.{method}({{1}})", owner, (stored,))

    def _numpy_random(self, view: View, changed: dict[Any, Any]) -> Iterator[Write]:
        stored = Named(views.set_numpy_state, "set_numpy_state"), Named(changed["state"])
        yield Write("{1}({0}, {2})", self._owner(view), stored)

    def _slots(self, view: View, changed: dict[Any, Any]) -> Iterator[Write]:
        owner, plain = self._owner(view), type(view.owner).__setattr__ is object.__setattr__
        for key, value in changed.items():
            if plain or value is ABSENT or isinstance(view, views.Defaults):
                yield self._assignment(view, owner, f"{{0}}.{key}", key, value)
            else:
                line, stored = "{1}.__setattr__({0}, {2}, {3})", self.value(value, key)
                yield Write(line, owner, (Named(object), key, stored))

    def _buffer(self, view: View, changed: dict[Any, Any]) -> Iterator[Write]:
        yield Write("{0}[:] = {1}", self._owner(view), (Named(changed["content"], "content"),))

    def _content(self, view: View, _changed: dict[Any, Any]) -> Iterator[Write]:
        if any(_is_inside(tensor, view.owner) for _, tensor in self.interpreter.lifted.values()):
            raise MutationError(
                f"the program writes to a numpy array, {self._owner(view).hint}, that it also reads as a tensor; write to "
                "the tensor"
            )
        kept = numpy.frombuffer(view.after["bytes"], dtype=view.owner.dtype)
        numbers = Named(kept.reshape(view.owner.shape), "numbers")
        yield Write("{0}[...] = {1}", self._owner(view), (numbers,))


_LINES: dict[type, Callable[[Writer, Any, dict[Any, Any]], Iterator[Write]]] = {
    views.Attributes: Writer._attributes,
    views.Slots: Writer._slots,
    views.Entries: Writer._entries,
    views.Items: Writer._items,
    views.Members: Writer._members,
    views.Cells: Writer._cells,
    views.Defaults: Writer._slots,
    views.Names: Writer._names,
    views.ClassNames: Writer._names,
    views.LibraryNames: Writer._names,
    views.PatchedNames: Writer._names,
    views.Variable: Writer._call,
    views.RandomState: Writer._call,
    views.NumpyRandomState: Writer._numpy_random,
    views.Buffer: Writer._buffer,
    views.Content: Writer._content,
}


def _is_inside(tensor: torch.Tensor, array: Any) -> bool:
    """Whether a tensor's memory is that of a numpy array."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or mode_of(tensor) is not None:
        return False
    start = array.__array_interface__["data"][0]
    return start <= tensor.untyped_storage().data_ptr() < start + max(array.nbytes, 1)


def is_literal(value: Any) -> bool:
    """Whether a text has a value as a literal."""
    return value is None or type(value) in (int, float, bool, str, bytes, complex, torch.dtype)
