"""Plugins: hooks, and the registries of passes, printers and executors that come through them.

Tracemill's own parts come through the same hooks as anybody's (`compiler/builtin_plugins.py`).
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pluggy

from tracemill.compiler import services
from tracemill.compiler.errors import OptionError, PluginError
from tracemill.compiler.pass_base import AnyPass
from tracemill.compiler.trace import Program
from tracemill.printers.base import Printer

GROUP = "tracemill"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)
"""Marks a function as the implementation of one of tracemill's hooks."""

T = TypeVar("T")


class Hooks:
    """The hooks that plugins may implement."""

    @hookspec
    def tracemill_passes(self) -> Iterable[AnyPass]:
        """Passes to run for every jitted function."""
        return ()

    @hookspec
    def tracemill_printers(self) -> Iterable[Printer]:
        """Printers, to be asked for by name."""
        return ()

    @hookspec
    def tracemill_executors(self) -> Iterable[Any]:
        """Executors, to be asked for by name."""
        return ()

    @hookspec
    def tracemill_before_pass(self, apass: AnyPass, program: Program) -> None:
        """Called before a pass with the program that it gets."""

    @hookspec
    def tracemill_after_pass(self, apass: AnyPass, program: Program, seconds: float) -> None:
        """Called after a pass with the program that it made and the seconds it took."""


@dataclass(frozen=True)
class Registered(Generic[T]):
    """Something that a plugin brought, and who brought it."""

    item: T
    plugin: str
    distribution: str


class Plugins:
    """The plugin manager and what its plugins bring."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(GROUP)
        self.manager.add_hookspecs(Hooks)
        self._distributions: dict[int, str] = {}
        self._loaded = False

    def register(self, plugin: Any, name: str | None = None, distribution: str = "") -> None:
        """Registers a plugin (a module or an object); one that is registered already stays registered once."""
        if self.manager.is_registered(plugin):
            return
        self.manager.register(plugin, name)
        self._distributions[id(plugin)] = distribution
        self.manager.check_pending()

    def load(self) -> None:
        """Loads the plugins of all installed distributions, once."""
        if self._loaded:
            return
        self._loaded = True
        for entry in sorted(
            importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name
        ):
            distribution = entry.dist.name if entry.dist is not None else ""
            try:
                plugin = entry.load()
            except Exception as error:
                if os.environ.get("TRACEMILL_STRICT_PLUGINS") == "1":
                    raise PluginError(
                        f"plugin {entry.name!r} of {distribution} does not load: {error!r}"
                    ) from error
                warnings.warn(
                    f"plugin {entry.name!r} of {distribution} does not load: {error!r}",
                    stacklevel=2,
                )
                continue
            self.register(plugin, f"{distribution}:{entry.name}", distribution)

    def all(self, hook: str) -> Iterator[Registered[Any]]:
        """What the plugins bring through a hook, in order of registration."""
        self.load()
        for implementation in getattr(self.manager.hook, hook).get_hookimpls():
            for item in implementation.function():
                distribution = self._distributions.get(id(implementation.plugin), "")
                yield Registered(item, implementation.plugin_name, distribution)


PLUGINS = Plugins()
"""The process's plugins."""


class Registry(Generic[T]):
    """Things by name: printers, passes or executors."""

    def __init__(self, kind: str, hook: str) -> None:
        self.kind = kind
        self._hook = hook

    def registered(self) -> Mapping[str, Registered[T]]:
        """Everything by name; raises PluginError when two owners bring one name."""
        found: dict[str, Registered[T]] = {}
        for registered in PLUGINS.all(self._hook):
            name = registered.item.name
            other = found.setdefault(name, registered)
            if other is not registered:
                raise PluginError(
                    f"two {self.kind}s are named {name!r}: one of {other.distribution or other.plugin}, "
                    f"one of {registered.distribution or registered.plugin}"
                )
        return found

    def names(self) -> list[str]:
        """The known names."""
        return list(self.registered())

    def get(self, name: str) -> T:
        """The one of that name; raises OptionError, with the known names, when there is none."""
        known = self.registered()
        if name not in known:
            raise OptionError(
                f"unknown {self.kind} {name!r}; the known ones are {', '.join(map(repr, known))}"
            )
        return known[name].item


PRINTERS: Registry[Printer] = Registry("printer", "tracemill_printers")
PASSES: Registry[AnyPass] = Registry("pass", "tracemill_passes")
EXECUTORS: Registry[Any] = Registry("executor", "tracemill_executors")

services.registries.update(printers=PRINTERS, passes=PASSES, executors=EXECUTORS)
