"""Tables: the checks of an object's tables, and the walk on to what they hold."""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from tracemill.compiler.contents import counts_by_content_inside
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.state_checks import (
    ABSENT,
    AS_LISTED,
    AS_TRACED,
    ArrayCheck,
    ItemsCheck,
    OfClass,
    TableCheck,
    TensorLike,
)
from tracemill.passes.interpretation.python import views
from tracemill.passes.interpretation.python.conditions import (
    HOOKS,
    VERSION,
    Functions,
    ModuleTables,
    Named,
    StateCheck,
    value_condition,
)
from tracemill.passes.interpretation.python.passed import Passed, tensors_among
from tracemill.passes.interpretation.python.places import Place, own_name
from tracemill.passes.interpretation.python.snapshot import Snapshot, is_users_class
from tracemill.passes.interpretation.python.views import View
from tracemill.passes.interpretation.python.watch import Watch, is_standard

_TENSOR_TABLES = ("_parameters", "_buffers")
_MODULE_TABLES = frozenset((*_TENSOR_TABLES, *HOOKS, "_modules"))
_INTERNAL = frozenset(torch.nn.Module().__dict__) - _MODULE_TABLES - {"training"}


@dataclass
class State:
    """What a walk found.

    checks: in the order of the walk. tensors: the places of each tensor, by its id. last: checks that need the tensors'
    names. numbers: the ids of tensors whose places hold a number.
    """

    checks: list[StateCheck] = field(default_factory=list)
    tensors: dict[int, list[Place]] = field(default_factory=dict)
    last: list[StateCheck] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)


class TableWalk:
    """The part of the walk that knows each kind of table; see `state.Walk`.

    places: of objects, by their ids. rates: the ids of the optimisers' groups of which any learning rate will do.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        watch: Watch,
        changes: dict[View, dict[Any, Any]],
        free: dict[View, dict[Any, Any]],
        lifted: Mapping[int, tuple[TensorProxy, torch.Tensor]],
    ) -> None:
        self.state = State()
        self._snapshot = snapshot
        self._names = frozenset((watch.names | snapshot.names) - _INTERNAL)
        self._whole = watch.whole
        self._watch = watch
        self._codes = {id(code) for code in watch.codes}
        self._changes = changes
        self._free = free
        self._lifted = lifted
        self._queue: deque[Place] = deque()
        self._later: deque[Place] = deque()
        self._seen: dict[int, Place] = {}
        self.places: dict[int, Place] = {}
        self.rates: set[int] = set()
        self._passed = Passed()
        self._tables = ModuleTables()
        self._functions = Functions()

    def table(self, place: Place, view: View) -> None:
        """The checks of one table of the object at `place`."""
        _LINES[type(view)](self, place, view)

    def _ran(self, function: Any) -> bool:
        """Whether a function's code was executed."""
        return isinstance(function, FunctionType) and id(function.__code__) in self._codes

    def _library_ran(self, function: FunctionType) -> bool:
        """Whether a function of the standard library was executed."""
        code = function.__code__
        return is_standard(code.co_filename) and self._watch.ran(code)

    def _changed(self, view: View) -> dict[Any, Any]:
        return self._free.get(view, {})

    def _counts(self, key: Any, view: View | None = None) -> bool:
        """Whether what an object has under `key` matters: code mentions it, or changed it."""
        changed: Any = () if view is None else self._changes.get(view, ())
        return self._whole or key in self._names or key in changed

    def _watched(self, changed: dict[Any, Any]) -> frozenset[Any]:
        return self._names.difference(changed) if changed else self._names

    def _table(
        self, subject: str, table: Place, wanted: dict[Any, Any], watched: frozenset[Any] | None
    ) -> None:
        owner = table.parent if table.steps == (".__dict__",) else table
        expected = {key: self._held(value, owner) for key, value in wanted.items()}
        if id(table.value) in self.rates:
            expected["lr"] = OfClass(float)
        check = TableCheck(table.value, expected, watched)
        condition = AS_TRACED
        if isinstance(table.value, OrderedDict):  # whose order changes without its version
            condition = "{2}.check({0})"
        named = Named(check, f"{hint(owner)}_as_traced")
        self.state.checks.append(StateCheck(subject, table, condition, (VERSION, named)))

    def _held(self, value: Any, owner: Place | None) -> Any:
        """What a check of what `owner` holds compares with."""
        if owner in self._passed and self._passed.is_passed(value):
            return OfClass(type(value))
        return TensorLike(value) if isinstance(value, torch.Tensor) else value

    def _attributes(self, place: Place, view: View) -> None:
        owner = place.value
        changed = self._changed(view)
        if isinstance(owner, FunctionType):
            wrapped = view.before.get("__wrapped__")
            if wrapped is not None:
                self._later.append(place.child(wrapped, (".__wrapped__",), ""))
            if view not in self._changes and not any(self._counts(k, view) for k in view.before):
                return
        # The text of a namespace has all of them, and a member of an enumeration is asked for its value by another name.
        is_namespace = type(owner) is SimpleNamespace or isinstance(owner, enum.Enum)
        wanted = {
            key: value
            for key, value in view.before.items()
            if (is_namespace or self._counts(key, view)) and key not in changed
        }
        if not wanted and isinstance(owner, (dict, list, tuple)):
            return
        table = place.child(owner.__dict__, (".__dict__",), "attributes")
        all_of_it = (self._whole and is_users_class(type(owner))) or is_namespace
        all_of_it = all_of_it and not changed
        watched = None if all_of_it else self._watched(changed)
        self._table(f"{named(place)}: its attributes", table, wanted, watched)
        for key, value in wanted.items():
            self._later.append(place.child(value, attribute_step(owner, key), str(key)))

    def _entries(self, place: Place, view: View) -> None:
        changed = self._changed(view)
        wanted = {key: value for key, value in view.before.items() if key not in changed}
        new = any(view.before.get(key, ABSENT) is ABSENT for key in changed)
        watched = frozenset() if new or changed else None
        self._table(f"{named(place)}: its entries", place, wanted, watched)
        for key in filter(counts_by_content_inside, wanted):
            self._later.append(Place(key, None, (), own_name(key)))
        self._known_by_identity(place, view.before)
        for index, (key, value) in enumerate(wanted.items()):
            name = self._name_of(key, index)
            self._later.append(place.child(value, entry_step(place.value, key), name))

    def _name_of(self, key: Any, index: int) -> str:
        """What people call an entry: by its key, that of a tensor by the place of this one."""
        if not isinstance(key, torch.Tensor):
            return str(key)
        places = self.state.tensors.get(id(key))
        return places[0].hint if places else str(index)

    def _items(self, place: Place, view: View) -> None:
        if isinstance(place.value, tuple) and place not in self._passed:
            self._children(place, view)
            return
        if self._changed(view):
            return
        expected = [self._held(value, place) for value in view.before.values()]
        check = ItemsCheck(type(place.value), expected)
        self.state.checks.append(
            StateCheck(
                f"{named(place)}: its items",
                place,
                AS_LISTED,
                (Named(check, f"{hint(place)}_as_traced"),),
            )
        )
        self._children(place, view)

    def _children(self, place: Place, view: View) -> None:
        for index, value in view.before.items():
            self._later.append(place.child(value, ((index,),), str(index)))

    def _known_by_identity(self, place: Place, keys: Iterable[Any]) -> None:
        """The tensors among the keys of a dict or the members of a set, where the program asks which tensors are one."""
        tensors = tensors_among(keys)
        if self._watch.compares and tensors:
            held = Place(tensors, None, (), f"{hint(place)}_keys")
            for index, tensor in enumerate(tensors):
                self._later.append(held.child(tensor, ((index,),), str(index)))

    def _members(self, place: Place, view: View) -> None:
        self._known_by_identity(place, view.before.values())
        if not self._changed(view):
            check = ItemsCheck(type(place.value), list(view.before.values()))
            self.state.checks.append(
                StateCheck(
                    f"{named(place)}: its members",
                    place,
                    AS_LISTED,
                    (Named(check, f"{hint(place)}_as_traced"),),
                )
            )

    # Single values

    def _single(self, place: Place, key: str, value: Any) -> None:
        """The check of one value at its place, and the walk on from it."""
        condition, values = value_condition(value)
        if place.parent in self._passed and self._passed.is_passed(value):
            condition, values = "type({0}) is {1}", (Named(type(value)),)
        if condition and id(value) not in self._lifted:
            subject = f"{key} of {named(place.parent)}" if place.parent else key
            one = StateCheck(subject, place.parent, condition, values, place.steps)
            self.state.checks.append(one)
        self._later.append(place)

    def _slots(self, place: Place, view: View) -> None:
        changed = self._changed(view)
        for name, value in view.before.items():
            if not self._counts(name, view) or name in changed:
                continue
            if value is ABSENT:
                self.state.checks.append(
                    StateCheck(
                        f"{name} of {named(place)}",
                        place,
                        "not hasattr({0}, {1})",
                        (name,),
                    )
                )
            else:
                self._single(place.child(value, (f".{name}",), name), name, value)

    def _cells(self, place: Place, view: View) -> None:
        if not self._ran(place.value):
            return self._followed(place, view)
        changed = self._changed(view)
        for index, (name, value) in enumerate(view.before.items()):
            if name not in changed and value is not ABSENT:
                steps = (".__closure__", (index,), ".cell_contents")
                self._single(Place(value, place, steps, name), name, value)
        return None

    def _followed(self, place: Place, view: View) -> None:
        """A function that did not run, or the standard library's, as of `functools.singledispatch`: what it wraps counts.

        Functions; and the tables that one of the standard library looks into.
        """
        kinds = (FunctionType, dict, list) if self._library_ran(place.value) else (FunctionType,)
        for index, (name, value) in enumerate(view.before.items()):
            if isinstance(value, kinds):
                steps = (".__closure__", (index,), ".cell_contents")
                hint = "" if isinstance(value, FunctionType) else f"{place.value.__name__}_{name}"
                self._later.append(Place(value, place, steps, hint))

    def _defaults(self, place: Place, view: View) -> None:
        if not self._ran(place.value):
            return
        self._functions.called.append(place.value)
        if self._changed(view):
            return
        self._functions.signatures.append(place.value)
        for name, value in view.before.items():
            self._later.append(Place(value, place, (f".{name}",), ""))

    def _variable(self, place: Place, view: View) -> None:
        if not self._changed(view):
            value = view.before["value"]
            held = Place(value, place, (".get()",), "value")
            if value is ABSENT:
                condition = "{0}.get({1}) is {1}"
                none = StateCheck(
                    f"{named(place)}: unset", place, condition, (Named(ABSENT, "ABSENT"),)
                )
                self.state.checks.append(none)
            else:
                self._single(held, "value", value)

    def _random(self, place: Place, view: View) -> None:
        if view.after is view.before:
            return  # nothing was drawn: its state does not matter
        self.state.checks.append(
            StateCheck(
                f"{named(place)}: its state",
                place,
                "{0}.getstate() == {1}",
                (Named(view.before["state"]),),
            )
        )

    def _numpy_random(self, place: Place, view: View) -> None:
        if view.after is not view.before:
            condition, state = "{1}({0}) == {2}", Named(view.before["state"])
            values = (Named(views.numpy_state, "numpy_state"), state)
            self.state.checks.append(
                StateCheck(f"{named(place)}: its state", place, condition, values)
            )

    def _buffer(self, place: Place, view: View) -> None:
        if not self._changed(view):
            content = Named(view.before["content"], f"{hint(place)}_as_traced")
            one = StateCheck(f"{named(place)}: its content", place, "{0} == {1}", (content,))
            self.state.checks.append(one)

    def _content(self, place: Place, view: View) -> None:
        if not self._changed(view):
            check = ArrayCheck(place.value)
            self.state.checks.append(
                StateCheck(
                    f"{named(place)}: its numbers",
                    place,
                    "{1}.check({0})",
                    (Named(check, f"{hint(place)}_as_traced"),),
                )
            )


_LINES: dict[type, Callable[[TableWalk, Place, View], None]] = {
    views.Attributes: TableWalk._attributes,
    views.Slots: TableWalk._slots,
    views.Entries: TableWalk._entries,
    views.Items: TableWalk._items,
    views.Members: TableWalk._members,
    views.Cells: TableWalk._cells,
    views.Defaults: TableWalk._defaults,
    views.Variable: TableWalk._variable,
    views.RandomState: TableWalk._random,
    views.NumpyRandomState: TableWalk._numpy_random,
    views.Buffer: TableWalk._buffer,
    views.Content: TableWalk._content,
}


def attribute_step(owner: Any, key: Any) -> tuple[Any, ...]:
    """The step from an object to one of its attributes, in a way that runs no code of the user's."""
    plain = type(owner).__getattribute__ is object.__getattribute__
    if plain and isinstance(key, str) and key.isidentifier():
        return (f".{key}",)
    return (".__dict__", (key,))


def entry_step(owner: Any, key: Any) -> tuple[Any, ...]:
    """The step from a dict to one of its entries, in a way that runs no code of the user's."""
    if type(owner).__getitem__ is dict.__getitem__ or type(key) not in (str, int):
        return ((key,),)
    return (f".get({key!r})",)


def by_name(item: tuple[str, Any]) -> str:
    """The order of a namespace's items: by name."""
    return item[0]


def joined(hint: str, name: str) -> str:
    """A path and one more name."""
    return f"{hint}.{name}" if hint else name


def hint(place: Place | None) -> str:
    """The beginning of a name for what belongs to a place."""
    return (place.hint if place is not None else "") or "program"


def named(place: Place | None) -> str:
    """A place in words."""
    return "the program" if place is None or not place.hint else place.hint
