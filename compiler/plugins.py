"""Plugins: hooks, and the registries of passes, printers and executors that come through them.

Tracemill's own parts come through the same hooks as anybody's (`compiler/builtin_plugins.py`). A plugin is a module, or
an object in one, whose functions are marked with `tracemill.hookimpl`; a distribution names it in its pyproject:

    [project.entry-points.tracemill]
    example = "tracemill_example"
"""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import pluggy

from tracemill.compiler import services
from tracemill.compiler.errors import OptionError, PluginError, PluginWarning
from tracemill.compiler.pass_base import AnyPass, Pass, PassContext, ProgramPass
from tracemill.compiler.trace import Program
from tracemill.executors.base import Executor
from tracemill.printers.base import Printer

GROUP = "tracemill"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)
"""Marks a function as the implementation of one of tracemill's hooks."""

T = TypeVar("T")


class Hooks:
    """The hooks that plugins may implement; an implementation may leave out parameters that it does not use."""

    @hookspec
    def tracemill_passes(self) -> Iterable[AnyPass]:
        """Passes to run for every jitted function."""
        return ()

    @hookspec
    def tracemill_printers(self) -> Iterable[Printer]:
        """Printers, to be asked for by name."""
        return ()

    @hookspec
    def tracemill_executors(self) -> Iterable[Executor]:
        """Executors, to be asked for by name."""
        return ()

    @hookspec
    def tracemill_before_pass(self, pass_: AnyPass, program: Program, context: PassContext) -> None:
        """Called before a pass with the program that it gets; `context` is the same object for one compilation."""

    @hookspec
    def tracemill_after_pass(
        self,
        pass_: AnyPass,
        before: Program,
        program: Program,
        seconds: float,
        context: PassContext,
    ) -> None:
        """Called after a pass with the program that it got, the one that it made, and the seconds that it took.

        A trace that the pass left alone is the same object in both programs.
        """


@dataclass(frozen=True)
class Registered(Generic[T]):
    """Something that a plugin brought, and who brought it.

    plugin: the name of the plugin. distribution: what is installed to have it; empty when registered by hand.
    """

    item: T
    plugin: str
    distribution: str = ""

    @property
    def owner(self) -> str:
        """The plugin and its distribution, in words."""
        return _owner(self.plugin, self.distribution)

    @property
    def is_ours(self) -> bool:
        """Whether tracemill itself brought it."""
        return self.distribution == GROUP


def _owner(plugin: str, distribution: str) -> str:
    return f"plugin {plugin!r}" + (f" of distribution {distribution!r}" if distribution else "")


def _pass_fault(item: Any) -> str:
    return "" if isinstance(item, (Pass, ProgramPass)) else "a tracemill.Pass or ProgramPass"


def _printer_fault(item: Any) -> str:
    return "" if isinstance(item, Printer) else "a tracemill.Printer"


def _executor_fault(item: Any) -> str:
    return "" if callable(getattr(item, "claim", None)) else "an executor, with a method `claim`"


_FAULTS: dict[str, Callable[[Any], str]] = {
    "tracemill_passes": _pass_fault,
    "tracemill_printers": _printer_fault,
    "tracemill_executors": _executor_fault,
}


def fault_of(hook: str, item: Any) -> str:
    """What is wrong with an item for a hook, in words; empty when nothing is."""
    if isinstance(item, type):
        return f"{item.__name__} is a class; an instance is wanted: {item.__name__}()"
    wanted = _FAULTS[hook](item)
    if wanted:
        return f"{item!r} is not {wanted}"
    name = getattr(item, "name", None)
    if not isinstance(name, str) or not name:
        return f"{type(item).__name__} has no name"
    return ""


class Plugins:
    """The plugin manager, and what its plugins bring.

    passes, printers, executors: what the plugins bring, by name.
    """

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(GROUP)
        self.manager.add_hookspecs(Hooks)
        self.passes: Registry[AnyPass] = Registry(self, "pass", "tracemill_passes")
        self.printers: Registry[Printer] = Registry(self, "printer", "tracemill_printers")
        self.executors: Registry[Any] = Registry(self, "executor", "tracemill_executors")
        self._distributions: dict[str, str] = {}
        self._brought: dict[tuple[str, str], list[Any]] = {}
        self._done: set[tuple[str, str]] = set()
        self._loaded = False
        self._lock = threading.RLock()

    # Registration

    def register(self, plugin: Any, name: str | None = None, distribution: str = "") -> str:
        """Registers a plugin, a module or an object, and returns its name; one that is registered already counts once.

        Raises PluginError, naming the plugin, for a function `tracemill_...` that is no hook or is not marked as one,
        for parameters that a hook does not have, and for a name that another plugin has.
        """
        with self._lock:
            known = self.manager.get_name(plugin)
            if known is not None:
                if distribution:
                    self._distributions[known] = distribution
                return known
            name = name or self._name_for(plugin)
            owner = _owner(name, distribution)
            for fault in self._hook_faults(plugin):
                raise PluginError(f"{owner}: {fault}")
            try:
                self.manager.register(plugin, name)
            except (pluggy.PluginValidationError, ValueError) as error:
                raise PluginError(f"{owner}: {error}") from error
            self._distributions[name] = distribution
            return name

    def unregister(self, plugin: Any) -> None:
        """Takes a plugin out; raises PluginError when it is not registered."""
        with self._lock:
            name = self.manager.get_name(plugin)
            if name is None:
                raise PluginError(f"{plugin!r} is not registered")
            self.manager.unregister(plugin)
            self._distributions.pop(name, None)
            self._brought = {key: items for key, items in self._brought.items() if key[0] != name}

    def _name_for(self, plugin: Any) -> str:
        stem = getattr(plugin, "__name__", None) or type(plugin).__name__
        name, number = stem, 1
        while self.manager.has_plugin(name):
            number += 1
            name = f"{stem}_{number}"
        return name

    def _hook_faults(self, plugin: Any) -> Iterator[str]:
        hooks = [name for name in vars(Hooks) if name.startswith("tracemill_")]
        for name in dir(plugin):
            function = inspect.getattr_static(plugin, name)
            function = getattr(function, "__func__", function)
            if not inspect.isfunction(function):
                continue
            marks: dict[str, Any] | None = getattr(function, f"{GROUP}_impl", None)
            if marks is None and not name.startswith("tracemill_"):
                continue
            hook = (marks and marks["specname"]) or name
            if hook not in hooks:
                yield f"{hook} is no hook of tracemill; the hooks are {', '.join(hooks)}"
            elif marks is None:
                yield f"{name} is not marked with @tracemill.hookimpl, and would never be called"
            elif hook in _FAULTS and (marks["wrapper"] or marks["hookwrapper"]):
                yield f"{name} cannot be a wrapper: each plugin brings its own"

    # Entry points

    def load(self) -> None:
        """Loads the plugins of all installed distributions, once.

        A plugin that does not import gives a PluginWarning; where TRACEMILL_STRICT_PLUGINS=1, it raises PluginError.
        """
        if self._loaded:
            return
        with self._lock:
            for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=_entry_key):
                distribution, name = key = _entry_key(entry)
                if key in self._done:
                    continue
                try:
                    plugin = entry.load()
                except Exception as error:
                    self._does_not_load(f"{distribution}:{name}", distribution, error)
                else:
                    self.register(plugin, f"{distribution}:{name}", distribution)
                self._done.add(key)
            self._loaded = True

    def _does_not_load(self, name: str, distribution: str, error: Exception) -> None:
        text = f"{_owner(name, distribution)} does not load: {type(error).__name__}: {error}"
        if os.environ.get("TRACEMILL_STRICT_PLUGINS") == "1":
            raise PluginError(text) from error
        warnings.warn(
            f"{text}. It is left out; uninstall it, or set TRACEMILL_STRICT_PLUGINS=1 to see the whole error",
            PluginWarning,
            stacklevel=2,
        )

    # What plugins bring

    def all(self, hook: str) -> Iterator[Registered[Any]]:
        """What the plugins bring through a hook, in order of registration."""
        self.load()
        for implementation in getattr(self.manager.hook, hook).get_hookimpls():
            name = implementation.plugin_name
            distribution = self._distributions.get(name, "")
            for item in self._items(hook, implementation, distribution):
                yield Registered(item, name, distribution)

    def _items(self, hook: str, implementation: pluggy.HookImpl, distribution: str) -> list[Any]:
        """What one plugin brings: it is asked once."""
        name = implementation.plugin_name
        with self._lock:
            known = self._brought.get((name, hook))
            if known is not None:
                return known
            items: list[Any] = []
            try:
                made: Any = implementation.function()
                if isinstance(made, Iterable):
                    items = list(made)
            except Exception as error:
                self._does_not_load(f"{name}.{hook}", distribution, error)
            else:
                if not isinstance(made, Iterable):
                    raise PluginError(
                        f"{hook} of {_owner(name, distribution)} returned {made!r}, not an iterable"
                    )
            for item in items:
                fault = fault_of(hook, item)
                if fault:
                    raise PluginError(f"{hook} of {_owner(name, distribution)}: {fault}")
            self._brought[name, hook] = items
            return items

    def notify(self, hook: str, **values: Any) -> None:
        """Calls the observers of a hook; raises PluginError, naming the plugin, when one fails."""
        caller = getattr(self.manager.hook, hook)
        try:
            caller(**values)
        except Exception as error:
            self._observer_failed(hook, error)

    def _observer_failed(self, hook: str, error: Exception) -> NoReturn:
        ran: set[Any] = set()
        frame = error.__traceback__
        while frame is not None:
            ran.add(frame.tb_frame.f_code)
            frame = frame.tb_next
        names = [
            implementation.plugin_name
            for implementation in getattr(self.manager.hook, hook).get_hookimpls()
            if getattr(implementation.function, "__code__", None) in ran
        ]
        owners = ", ".join(_owner(name, self._distributions.get(name, "")) for name in names)
        raise PluginError(f"{hook} of {owners} failed: {type(error).__name__}: {error}") from error


def _entry_key(entry: importlib.metadata.EntryPoint) -> tuple[str, str]:
    return (entry.dist.name if entry.dist is not None else ""), entry.name


class Registry(Generic[T]):
    """Things by name: printers, passes or executors.

    absent: for names of ours that are not there because something is not installed, what to tell who asks for them.
    """

    def __init__(self, plugins: Plugins, kind: str, hook: str) -> None:
        self.kind = kind
        self.hook = hook
        self.absent: dict[str, str] = {}
        self._plugins = plugins

    def registered(self) -> Mapping[str, Registered[T]]:
        """Everything by name; raises PluginError when two owners bring one name."""
        found: dict[str, Registered[T]] = {}
        for registered in self._plugins.all(self.hook):
            item: Any = registered.item
            other = found.setdefault(item.name, registered)
            if other is not registered:
                raise PluginError(
                    f"two {self.kind}s are named {item.name!r}, one of {other.owner}, one of {registered.owner}; "
                    "uninstall one of them"
                )
        return found

    def names(self) -> list[str]:
        """The known names."""
        return list(self.registered())

    def get(self, name: str) -> T:
        """The one of that name; raises OptionError, with the known names, when there is none."""
        known = self.registered()
        if name not in known:
            if name in self.absent:
                raise OptionError(self.absent[name])
            raise OptionError(
                f"unknown {self.kind} {name!r}; the known ones are {', '.join(map(repr, known))}"
            )
        return known[name].item


PLUGINS = Plugins()
"""The process's plugins."""

PASSES, PRINTERS, EXECUTORS = PLUGINS.passes, PLUGINS.printers, PLUGINS.executors

services.registries.update(printers=PRINTERS, passes=PASSES, executors=EXECUTORS)


def register_plugin(plugin: Any, name: str | None = None) -> str:
    """Registers a plugin (a module or an object with hook implementations) by hand, and returns its name.

    Programs that are compiled from then on use what it brings. Registering it twice, or by hand and by entry point,
    counts once. Raises PluginError for what is no hook of tracemill, and for a name that is taken.
    """
    return PLUGINS.register(plugin, name)


def unregister_plugin(plugin: Any) -> None:
    """Takes a plugin out again; raises PluginError when it is not registered."""
    PLUGINS.unregister(plugin)
