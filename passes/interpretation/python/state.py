"""State: what a traced program read of Python, as checks for the prologue, and where its tensors are found.

A walk over the snapshot from the program, its arguments and the globals of the executed code, along the names that this
code mentions:

    fc = modules["fc"]
    dict_version(fc.__dict__) == fc_as_traced.version or fc_as_traced.check(fc.__dict__) or mismatch("fc: ...")

What the program wrote is no check; the values are those of before the trace.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch

from tracemill.compiler.cached_calls import CACHED, CacheCheck, results_of
from tracemill.compiler.contents import counts_by_content_inside
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.state_checks import ABSENT, LENGTH, WITHOUT, OnceCheck
from tracemill.passes.interpretation.python.atoms import ends_at, is_atom
from tracemill.passes.interpretation.python.conditions import (
    GLOBAL_HOOKS,
    HOOKS,
    Named,
    Namespace,
    StateCheck,
)
from tracemill.passes.interpretation.python.passed import StandsElsewhere
from tracemill.passes.interpretation.python.places import Place, own_name
from tracemill.passes.interpretation.python.snapshot import (
    HOLDING,
    LINKS,
    held_for_life,
    is_users_class,
)
from tracemill.passes.interpretation.python.tables import (
    State,
    TableWalk,
    attribute_step,
    by_name,
    joined,
    named,
)
from tracemill.passes.interpretation.python.views import LibraryNames, PatchedNames, View

_TENSOR_TABLES = ("_parameters", "_buffers")
_MODULE_TABLES = frozenset((*_TENSOR_TABLES, *HOOKS, "_modules"))
_UNBOUND = (staticmethod, classmethod)
_INTERNAL = frozenset(torch.nn.Module().__dict__) - _MODULE_TABLES - {"training"}


class Walk(TableWalk):
    """The walk of one program; `roots` are the places to begin with.

    changes: what the program wrote, by view. free: the part of it whose old values do not matter. lifted: the
    tensors that the program computes with, by id, which have a check of their own.
    """

    def run(self, roots: Iterable[Place], containers: Mapping[int, Place]) -> State:
        """Walks from the roots, module trees first: their names are those that people know.

        containers: what the program gets in place of lists and the like among the arguments, by the ids of these; raises
        StandsElsewhere where it finds one of them as well.
        """
        roots = list(roots)
        arguments = [
            place for place in roots if place.hint and counts_by_content_inside(place.value)
        ]
        self._queue.extend(place for place in roots if place not in arguments)
        self._later.extend(map(self._namespace, self._snapshot.globals.values()))
        self._later.append(Place(torch.Tensor, None, (), "Tensor"))
        self._walk()
        self._passed.arguments.update(
            arguments
        )  # last, so that what the program has itself is known
        self._queue.extend(arguments)
        self._walk()
        for view in self._snapshot.libraries.values():
            self._library(view)
        self._walk()
        self._imported(self._snapshot.imported, frozenset())
        if self._tables.modules:
            self._later.extend(
                Place(hooks, None, (), name) for name, hooks in GLOBAL_HOOKS.items() if hooks
            )
            self._walk()
        for view in self._changes:
            if view not in self._free and id(view.owner) not in self.places:
                self._later.append(Place(view.owner, None, (), own_name(view.owner)))
                self._walk()
        if not containers.keys().isdisjoint(self._seen):
            raise StandsElsewhere(frozenset(containers.keys() & self._seen.keys()))
        self.state.checks.extend((*self._tables.checks(), *self._functions.checks()))
        written = {id(view.owner) for view in self._changes}
        found = self._passed.checks(self._seen, containers.values(), written)
        self.state.checks.extend(found)
        compared, lifted = self._watch.compares, self._lifted
        found = self._passed.tensor_checks(self.state.tensors, lifted, compared=compared)
        self.state.last.extend(found)
        return self.state

    def _walk(self) -> None:
        while self._queue or self._later:
            self._at(self._queue.popleft() if self._queue else self._later.popleft())

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
            self._tensor_attributes(place, value)
            return
        if ends_at(value) or value is ABSENT:
            return
        if isinstance(value, Namespace):
            self._globals(place, value)
        elif id(value) in self._seen:
            self.state.checks.extend(self._passed.again(place))
        elif id(value) in self._snapshot.met:
            self._seen[id(value)] = self.places[id(value)] = place
            self._passed.meet(place)
            self._object(place, value)

    def _tensor_attributes(self, place: Place, tensor: torch.Tensor) -> None:
        """The attributes that somebody gave to a tensor."""
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.__dict__:
            wanted = {key: value for key, value in vars(tensor).items() if self._counts(key)}
            if wanted:
                table = place.child(tensor.__dict__, (".__dict__",), "attributes")
                self._table(f"{named(place)}: its attributes", table, wanted, frozenset())

    def _object(self, place: Place, value: Any) -> None:
        kind = type(value)
        if kind in LINKS:
            for name in LINKS[kind]:
                self._later.append(place.child(getattr(value, name, None), (f".{name}",), ""))
        elif kind is CACHED:
            self._cached(place, value)
        elif kind in HOLDING:
            for held in held_for_life(value):
                self._later.append(Place(held, None, (), own_name(held)))
        elif issubclass(kind, weakref.ref):
            self._later.append(place.child(value(), ("()",), ""))
        elif isinstance(value, type):
            self._class(place, value)
        elif isinstance(value, torch.nn.Module):
            self._module(place, value)
        elif hasattr(kind, "__next__") and not is_users_class(kind):
            self._once(f"{named(place)}: an iterator, which goes on at each call")
        elif not isinstance(value, ModuleType):
            for view in self._snapshot.views.get(id(value), ()):
                self.table(place, view)
            self._type_of(place, value)

    def _once(self, subject: str) -> None:
        """A check that passes once."""
        once = (Named(OnceCheck(), "once"),)
        self.state.checks.append(StateCheck(subject, None, "{1}.check()", once))

    def _cached(self, place: Place, function: Any) -> None:
        """What `functools.lru_cache` made: a function that ran is not asked again, one whose result was there must keep it."""
        before, now = self._snapshot.caches[id(function)], function.cache_info()
        name = own_name(function)
        if now.maxsize == 0 or now == before:
            self._later.append(place.child(function.__wrapped__, (".__wrapped__",), ""))
            return
        used = results_of(function)
        if now.misses != before.misses:
            self._once(f"{name}: its cache, which this call filled")
        else:
            if now.maxsize is not None:
                used = used[-(now.hits - before.hits) :]
            check = Named(CacheCheck(function, used), f"{name}_as_traced")
            condition, subject = "{1}.check({0})", f"{name}: the results that it keeps"
            self.state.checks.append(StateCheck(subject, place, condition, (check,)))
        self._later.extend(Place(result, None, (), f"{name}_result") for _, result in used)

    def _library(self, view: LibraryNames) -> None:
        """The names of a library's module that code mentions."""
        changed = self._changed(view)
        wanted = {name: value for name, value in view.before.items() if name not in changed}
        if wanted:
            module = view.module
            place = Place(Namespace(module, view), None, (), module.__name__.rpartition(".")[2])
            table = place.child(module.__dict__, (".__dict__",), "names")
            absent = self._names.difference(module.__dict__, changed)
            self._table(f"{module.__name__}: names that the program uses", table, wanted, absent)
            lists = [name for name, value in wanted.items() if type(value) is list]
            self._later.extend(place.child(wanted[name], (f".{name}",), name) for name in lists)
            if wanted.get("modules") is sys.modules:
                self._imported(self._names & sys.modules.keys(), self._names)

    def _imported(self, names: Iterable[str], watched: frozenset[str]) -> None:
        """The check that modules are those that were imported."""
        imported = {name: sys.modules[name] for name in sorted(names) if name in sys.modules}
        if imported or watched:
            modules = Place(sys.modules, None, (), "sys_modules")
            self._table("modules that the program imports", modules, imported, watched)

    def _type_of(self, place: Place, value: Any) -> None:
        for index, cls in enumerate(type(value).__mro__[:-1]):
            if id(cls) in self._snapshot.classes:
                step = (".__class__", ".__mro__", (index,)) if index else (".__class__",)
                self._later.append(Place(cls, place, step, cls.__name__))

    # Modules

    def _module(self, place: Place, module: torch.nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedError(
                f"{named(place)} is a TorchScript module, whose state cannot be seen; use the module that it was made of"
            )
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
        self._table(f"{named(place)}: its attributes", table, wanted, self._watched(changed))
        self._tables.modules.append(module)
        before = attributes.before
        for name in _TENSOR_TABLES:
            self._tensor_table(place, name, before[name])
        self._modules(place, before["_modules"])
        for name in HOOKS:
            if before[name]:
                self._later.append(place.child(before[name], (f".{name}",), name))
            else:
                self._tables.hooks.append(before[name])
        for key in wanted.keys() - _MODULE_TABLES:
            self._later.append(place.child(wanted[key], attribute_step(module, key), key))
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
                self._tensor_attributes(child, value)
            elif key not in changed and value is None:
                self._tables.missing.append((table, key))

    def _modules(self, place: Place, table: dict[str, Any]) -> None:
        view = self._view(table)
        if view.before:
            owner = place.child(table, ("._modules",), "modules")
            self._table(f"{named(place)}: its modules", owner, view.before, None)
            for key, value in view.before.items():
                self._queue.append(Place(value, owner, ((key,),), joined(place.hint, key)))
        else:
            self._tables.tables.append(table)

    def _view(self, table: Any) -> View:
        return self._snapshot.views[id(table)][0]

    # Namespaces

    def _globals(self, place: Place, namespace: Namespace) -> None:
        changed = self._changed(namespace.view)
        before = namespace.view.before
        for name, value in sorted(before.items(), key=by_name):
            if name not in changed:
                steps: tuple[Any, ...] = ((name,),)
                if (
                    namespace.module is not None
                ):  # pytest puts names into modules that are no identifiers
                    steps = (f".{name}",) if name.isidentifier() else (".__dict__", (name,))
                self._single(Place(value, place, steps, name), name, value)
        absent = sorted(namespace.loaded - before.keys() - changed.keys())
        if absent:
            steps = (".__dict__",) if namespace.module is not None else ()
            subject = f"names that {place.hint} does not define"
            self.state.checks.append(StateCheck(subject, place, WITHOUT, (tuple(absent),), steps))

    def _class(self, place: Place, cls: type) -> None:
        view = self._snapshot.classes.get(id(cls))
        if view is None:
            return
        self._type_of(place, cls)
        changed = self._changed(view)
        for name, value in sorted(view.before.items(), key=by_name):
            function = value.__func__ if isinstance(value, _UNBOUND) else value
            if name in changed or (
                name.startswith("__") and not isinstance(function, FunctionType)
            ):
                continue
            mentioned = name in self._names or (self._whole and is_atom(value))
            if mentioned or self._ran(function):
                self._single(Place(value, place, (".__dict__", (name,)), name), name, value)
        if not changed and not isinstance(view, PatchedNames):
            subject = f"the attributes of class {cls.__name__}"
            length = (len(cls.__dict__),)
            self.state.checks.append(StateCheck(subject, place, LENGTH, length, (".__dict__",)))
