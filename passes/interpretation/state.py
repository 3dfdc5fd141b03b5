"""State: what a traced program read of Python, as checks for the prologue, and where its tensors are found.

A walk over the snapshot from the program, its arguments and the globals of the executed code, along the names that this
code mentions:

    fc = modules["fc"]
    dict_version(fc.__dict__) == fc_as_traced.version or fc_as_traced.check(fc.__dict__) or mismatch("fc: ...")

What the program wrote is no check; the values are those of before the trace.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch

from tracemill.compiler.state_checks import (
    ABSENT,
    ArrayCheck,
    ItemsCheck,
    ModulesCheck,
    TableCheck,
    TensorLike,
    counts_by_content,
    same,
)
from tracemill.compiler.torch_internals import dict_version
from tracemill.passes.interpretation import snapshot as views
from tracemill.passes.interpretation.places import Place
from tracemill.passes.interpretation.snapshot import ATOMS, LINKS, Snapshot, View
from tracemill.passes.interpretation.watch import Watch

_TENSOR_TABLES = ("_parameters", "_buffers")
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_MODULE_TABLES = frozenset((*_TENSOR_TABLES, *_HOOKS, "_modules"))
_INTERNAL = frozenset(torch.nn.Module().__dict__) - _MODULE_TABLES - {"training"}
_GLOBAL_HOOKS = tuple(getattr(torch.nn.modules.module, f"_global{name}") for name in _HOOKS)
_TYPED = (int, str, bytes, complex, range, torch.Size, torch.device, float, slice)


class Named:
    """An object that the text names, whatever literal it has; `hint` is the name wanted."""

    __slots__ = ("hint", "value")

    def __init__(self, value: Any, hint: str = "") -> None:
        self.value = value
        self.hint = hint


_VERSION = Named(dict_version)


@dataclass(frozen=True)
class StateCheck:
    """A check of something at a place: `condition` holds `{0}` for the place's owner and `{1}`.. for `values`."""

    subject: str
    owner: Place | None
    condition: str
    values: tuple[Any, ...] = ()


@dataclass
class State:
    """What a walk found.

    checks: in the order of the walk. tensors: the places of each tensor, by its id.
    """

    checks: list[StateCheck] = field(default_factory=list)
    tensors: dict[int, list[Place]] = field(default_factory=dict)


class Walk:
    """The walk of one program; `roots` are the places to begin with.

    changes: what the program wrote, by view. free: the part of it whose old values do not matter. lifted: ids of the
    tensors that the program computes with, which have a check of their own.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        watch: Watch,
        changes: dict[View, dict[Any, Any]],
        free: dict[View, dict[Any, Any]],
        lifted: set[int],
    ) -> None:
        self.state = State()
        self._snapshot = snapshot
        self._names = frozenset(watch.names - _INTERNAL)
        self._whole = watch.whole
        self._codes = {id(code) for code in watch.codes}
        self._changes = changes
        self._free = free
        self._lifted = lifted
        self._queue: deque[Place] = deque()
        self._later: deque[Place] = deque()
        self._seen: dict[int, Place] = {}
        self.places: dict[int, Place] = {}
        self._aliases: dict[int, Place] = {}
        self._tables = _Tables()

    def run(self, roots: Iterable[Place]) -> State:
        """Walks from the roots, module trees first: their names are those that people know."""
        roots = list(roots)
        arguments = [place for place in roots if counts_by_content(place.value) and place.hint]
        self._queue.extend(roots)
        self._later.extend(map(self._namespace, self._snapshot.globals.values()))
        self._walk()
        for view in self._changes:
            if view not in self._free and id(view.owner) not in self.places:
                name = getattr(view.owner, "__name__", type(view.owner).__name__)
                self._later.append(Place(view.owner, None, (), str(name)))
                self._walk()
        self.state.checks.extend(self._tables.checks())
        for place in arguments:
            self._identity(place)
        return self.state

    def _walk(self) -> None:
        while self._queue or self._later:
            self._at(self._queue.popleft() if self._queue else self._later.popleft())

    def _identity(self, place: Place) -> None:
        """Whether an argument that counts by its content is one of the objects that the program has itself."""
        value = place.value
        if self._aliases.get(id(value)):
            one = StateCheck(f"{place.hint}: the same object", place, "{0} is {1}", (Named(value),))
            self.state.checks.append(one)
            return
        others = frozenset(
            key for key in self._seen if type(self._snapshot.met[key]) is type(value)
        )
        if others - {id(value)}:
            named = Named(others - {id(value)}, "objects_as_traced")
            subject = f"{place.hint}: none of the program's own objects"
            self.state.checks.append(StateCheck(subject, place, "id({0}) not in {1}", (named,)))

    def _namespace(self, view: View) -> Place:
        """A root: the globals of a module."""
        name = view.owner.get("__name__", "")
        module = sys.modules.get(name)
        if module is not None and module.__dict__ is view.owner:
            place = Place(Namespace(module, view), None, (), name.rpartition(".")[2])
        else:
            place = Place(Namespace(None, view), None, (), f"{name}_globals")
        self.places[id(view.owner)] = place
        return place

    def _at(self, place: Place) -> None:
        value = place.value
        if isinstance(value, torch.Tensor):
            self.state.tensors.setdefault(id(value), []).append(place)
            return
        if isinstance(value, ATOMS) or value is ABSENT:
            return
        if isinstance(value, Namespace):
            self._globals(place, value)
        elif id(value) in self._seen:
            self._aliases[id(value)] = place
        elif id(value) in self._snapshot.met:
            self._seen[id(value)] = self.places[id(value)] = place
            self._object(place, value)

    def _object(self, place: Place, value: Any) -> None:
        kind = type(value)
        if kind in LINKS:
            for name in LINKS[kind]:
                self._later.append(place.child(getattr(value, name, None), (f".{name}",), ""))
        elif isinstance(value, type):
            self._class(place, value)
        elif isinstance(value, torch.nn.Module):
            self._module(place, value)
        elif not isinstance(value, ModuleType):
            for view in self._snapshot.views.get(id(value), ()):
                _VIEWS[type(view)](self, place, view)
            self._type_of(place, value)

    def _type_of(self, place: Place, value: Any) -> None:
        for index, cls in enumerate(type(value).__mro__[:-1]):
            if id(cls) in self._snapshot.classes:
                step = (".__class__", ".__mro__", (index,)) if index else (".__class__",)
                self._later.append(Place(cls, place, step, cls.__name__))

    # Modules

    def _module(self, place: Place, module: torch.nn.Module) -> None:
        attributes = self._snapshot.views[id(module)][0]
        changed = self._changed(attributes)
        table = place.child(module.__dict__, (".__dict__",), "attributes")
        wanted = {
            key: value
            for key, value in attributes.before.items()
            if (self._counts(key, attributes) or key in _MODULE_TABLES)
            and key not in changed
            and key not in _INTERNAL
        }
        self._table(f"{_named(place)}: its attributes", table, wanted, self._watched(changed))
        self._tables.modules.append(module)
        before = attributes.before
        for name in _TENSOR_TABLES:
            self._tensor_table(place, name, before[name])
        self._modules(place, before["_modules"])
        for name in _HOOKS:
            if before[name]:
                self._later.append(place.child(before[name], (f".{name}",), name))
            else:
                self._tables.hooks.append(before[name])
        for key in wanted.keys() - _MODULE_TABLES:
            self._later.append(place.child(wanted[key], _attribute(key), key))
        self._type_of(place, module)

    def _tensor_table(self, place: Place, name: str, table: dict[str, Any]) -> None:
        view = self._view(table)
        self.places[id(table)] = place.child(table, (f".{name}",), name.strip("_"))
        changed = self._changed(view)
        if not any(value is ABSENT for value in changed.values()):
            self._tables.tables.append(table)
        for key, value in view.before.items():
            child = place.child(value, (f".{name}", (key,)), key)
            if isinstance(value, torch.Tensor):
                self.state.tensors.setdefault(id(value), []).append(child)
            elif key not in changed and value is None:
                self._tables.missing.append((table, key))

    def _modules(self, place: Place, table: dict[str, Any]) -> None:
        view = self._view(table)
        if view.before:
            owner = place.child(table, ("._modules",), "modules")
            self._table(f"{_named(place)}: its modules", owner, view.before, None)
            for key, value in view.before.items():
                self._queue.append(Place(value, owner, ((key,),), _joined(place.hint, key)))
        else:
            self._tables.tables.append(table)

    def _view(self, table: Any) -> View:
        return self._snapshot.views[id(table)][0]

    # Tables

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
        expected = {key: self._held(value) for key, value in wanted.items()}
        check = TableCheck(table.value, expected, watched)
        condition = "{1}({0}) == {2}.version or {2}.check({0})"
        if isinstance(table.value, OrderedDict):  # whose order changes without its version
            condition = "{2}.check({0})"
        owner = table.parent if table.steps == (".__dict__",) else table
        named = Named(check, f"{_hint(owner)}_as_traced")
        self.state.checks.append(StateCheck(subject, table, condition, (_VERSION, named)))

    def _held(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return TensorLike(value)

    def _attributes(self, place: Place, view: View) -> None:
        owner = place.value
        changed = self._changed(view)
        if isinstance(owner, FunctionType):
            wrapped = view.before.get("__wrapped__")
            if wrapped is not None:
                self._later.append(place.child(wrapped, (".__wrapped__",), ""))
            if not any(self._counts(key, view) for key in view.before):
                return
        wanted = {
            key: value
            for key, value in view.before.items()
            if self._counts(key, view) and key not in changed
        }
        if not wanted and isinstance(owner, (dict, list, tuple)):
            return
        table = place.child(owner.__dict__, (".__dict__",), "attributes")
        self._table(f"{_named(place)}: its attributes", table, wanted, self._watched(changed))
        for key, value in wanted.items():
            self._later.append(place.child(value, _attribute(key), str(key)))

    def _entries(self, place: Place, view: View) -> None:
        changed = self._changed(view)
        wanted = {key: value for key, value in view.before.items() if key not in changed}
        new = any(view.before.get(key, ABSENT) is ABSENT for key in changed)
        watched = frozenset() if new or changed else None
        self._table(f"{_named(place)}: its entries", place, wanted, watched)
        for key, value in wanted.items():
            self._later.append(place.child(value, ((key,),), str(key)))

    def _items(self, place: Place, view: View) -> None:
        if isinstance(place.value, tuple):
            self._children(place, view)
            return
        if self._changed(view):
            return
        check = ItemsCheck(type(place.value), [self._held(value) for value in view.before.values()])
        self.state.checks.append(
            StateCheck(
                f"{_named(place)}: its items",
                place,
                "{1}.check({0})",
                (Named(check, f"{_hint(place)}_as_traced"),),
            )
        )
        self._children(place, view)

    def _children(self, place: Place, view: View) -> None:
        for index, value in view.before.items():
            self._later.append(place.child(value, ((index,),), str(index)))

    def _members(self, place: Place, view: View) -> None:
        if not self._changed(view):
            check = ItemsCheck(type(place.value), list(view.before.values()))
            self.state.checks.append(
                StateCheck(
                    f"{_named(place)}: its members",
                    place,
                    "{1}.check({0})",
                    (Named(check, f"{_hint(place)}_as_traced"),),
                )
            )

    # Single values

    def _single(self, place: Place, key: str, value: Any) -> None:
        """The check of one value at its place, and the walk on from it."""
        path = "".join(step if isinstance(step, str) else f"[{step[0]!r}]" for step in place.steps)
        path = path.replace("{", "{{").replace("}", "}}")
        condition, values = _value_condition("{0}" + path, value)
        if condition and id(value) not in self._lifted:
            subject = f"{key} of {_named(place.parent)}" if place.parent else key
            self.state.checks.append(StateCheck(subject, place.parent, condition, values))
        self._later.append(place)

    def _slots(self, place: Place, view: View) -> None:
        changed = self._changed(view)
        for name, value in view.before.items():
            if not self._counts(name, view) or name in changed:
                continue
            if value is ABSENT:
                self.state.checks.append(
                    StateCheck(
                        f"{name} of {_named(place)}",
                        place,
                        "not hasattr({0}, {1})",
                        (name,),
                    )
                )
            else:
                self._single(place.child(value, (f".{name}",), name), name, value)

    def _cells(self, place: Place, view: View) -> None:
        if id(place.value.__code__) not in self._codes:
            return self._followed(place, view)
        changed = self._changed(view)
        for index, (name, value) in enumerate(view.before.items()):
            if name not in changed and value is not ABSENT:
                steps = (".__closure__", (index,), ".cell_contents")
                self._single(Place(value, place, steps, name), name, value)
        return None

    def _followed(self, place: Place, view: View) -> None:
        """A function that did not run: a decorator's, or an attribute's; functions that it wraps are looked at."""
        for index, value in enumerate(view.before.values()):
            if isinstance(value, FunctionType):
                steps = (".__closure__", (index,), ".cell_contents")
                self._later.append(Place(value, place, steps, ""))

    def _defaults(self, place: Place, view: View) -> None:
        if id(place.value.__code__) not in self._codes:
            return
        changed = self._changed(view)
        for name, value in view.before.items():
            if value is not None and name not in changed:
                self._single(Place(value, place, (f".{name}",), ""), name, value)

    def _variable(self, place: Place, view: View) -> None:
        if not self._changed(view):
            value = view.before["value"]
            held = Place(value, place, (".get()",), "value")
            if value is ABSENT:
                condition = "{0}.get({1}) is {1}"
                none = StateCheck(
                    f"{_named(place)}: unset", place, condition, (Named(ABSENT, "ABSENT"),)
                )
                self.state.checks.append(none)
            else:
                self._single(held, "value", value)

    def _random(self, place: Place, view: View) -> None:
        if view.after is view.before:
            return  # nothing was drawn: its state does not matter
        self.state.checks.append(
            StateCheck(
                f"{_named(place)}: its state",
                place,
                "{0}.getstate() == {1}",
                (Named(view.before["state"]),),
            )
        )

    def _content(self, place: Place, view: View) -> None:
        if not self._changed(view):
            check = ArrayCheck(place.value)
            self.state.checks.append(
                StateCheck(
                    f"{_named(place)}: its numbers",
                    place,
                    "{1}.check({0})",
                    (Named(check, f"{_hint(place)}_as_traced"),),
                )
            )

    # Namespaces

    def _globals(self, place: Place, namespace: Namespace) -> None:
        changed = self._changed(namespace.view)
        absent: list[str] = []
        for name, value in sorted(namespace.view.before.items(), key=_name):
            if value is ABSENT:
                absent.append(name)
            elif name not in changed:
                steps = (f".{name}",) if namespace.module is not None else ((name,),)
                self._single(Place(value, place, steps, name), name, value)
        absent = [name for name in absent if name not in changed and name in namespace.loaded]
        if absent:
            table = ".__dict__" if namespace.module is not None else ""
            condition = f"{{0}}{table}.keys().isdisjoint({{1}})"
            self.state.checks.append(
                StateCheck(
                    f"names that {place.hint} does not define", place, condition, (tuple(absent),)
                )
            )

    def _class(self, place: Place, cls: type) -> None:
        view = self._snapshot.classes.get(id(cls))
        if view is None:
            return
        changed = self._changed(view)
        for name, value in sorted(view.before.items(), key=_name):
            if name in changed or (name.startswith("__") and not isinstance(value, FunctionType)):
                continue
            if value is not ABSENT:
                self._single(Place(value, place, (".__dict__", (name,)), name), name, value)
        if not changed:
            self.state.checks.append(
                StateCheck(
                    f"the attributes of class {cls.__name__}",
                    place,
                    "len({0}.__dict__) == {1}",
                    (len(cls.__dict__),),
                )
            )


_VIEWS: dict[type, Callable[[Walk, Place, View], None]] = {
    views.Attributes: Walk._attributes,
    views.Slots: Walk._slots,
    views.Entries: Walk._entries,
    views.Items: Walk._items,
    views.Members: Walk._members,
    views.Cells: Walk._cells,
    views.Defaults: Walk._defaults,
    views.Variable: Walk._variable,
    views.RandomState: Walk._random,
    views.Content: Walk._content,
}


class Namespace:
    """The globals of a module: reached through the module where it is one, else bound by name."""

    __slots__ = ("module", "view")

    def __init__(self, module: ModuleType | None, view: Any) -> None:
        self.module = module
        self.view = view

    @property
    def loaded(self) -> set[str]:
        """The names that code loads from here as globals."""
        return self.view.loaded

    @property
    def object(self) -> Any:
        """What the prologue's text names."""
        return self.view.owner if self.module is None else self.module


@dataclass
class _Tables:
    """What one check says of all modules."""

    modules: list[torch.nn.Module] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    hooks: list[Any] = field(default_factory=list)
    missing: list[tuple[dict[str, Any], str]] = field(default_factory=list)

    def checks(self) -> Iterator[StateCheck]:
        if self.modules:
            hooks = (*self.hooks, *(table for table in _GLOBAL_HOOKS if not table))
            check = ModulesCheck(self.modules, self.tables, hooks, self.missing)
            subject = (
                "classes and hooks of the modules, and their numbers of parameters and buffers"
            )
            yield StateCheck(subject, None, "{1}.check()", (Named(check, "modules_as_traced"),))


def _value_condition(path: str, value: Any) -> tuple[str, tuple[Any, ...]]:
    """The condition that what stands at `path` is `value`; empty where the value's own parts are checked instead."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return f"{{1}}({path}, {{2}})", (same, TensorLike(value))
    if kind is float and (value == 0.0 or math.isnan(value)):
        return f"{path}.__class__ is {{1}} and {path}.hex() == {{2}}", (float, value.hex())
    if kind in _TYPED:
        return f"{path}.__class__ is {{1}} and {path} == {{2}}", (kind, value)
    if kind in (list, dict, set, deque) or kind is ContextVar:
        return "", ()
    if kind in (tuple, frozenset) or kind in LINKS:
        return f"{path} is {{1}} or {{2}}({path}, {{1}})", (Named(value), same)
    return f"{path} is {{1}}", (Named(value),)


def _attribute(key: Any) -> tuple[Any, ...]:
    return (
        (".__dict__", (key,)) if not (isinstance(key, str) and key.isidentifier()) else (f".{key}",)
    )


def _name(item: tuple[str, Any]) -> str:
    return item[0]


def _joined(hint: str, name: str) -> str:
    return f"{hint}.{name}" if hint else name


def _hint(place: Place | None) -> str:
    return (place.hint if place is not None else "") or "program"


def _named(place: Place | None) -> str:
    return "the program" if place is None or not place.hint else place.hint
