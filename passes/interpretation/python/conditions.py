"""What a check of state is before it is a line: its place, its condition, and what it compares with."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch

from tracemill.compiler.state_checks import (
    CONSTANT,
    FLOAT,
    IDENTICAL,
    SAME,
    FunctionsCheck,
    ModulesCheck,
    TensorLike,
    same,
)
from tracemill.compiler.torch_internals import dict_version
from tracemill.passes.interpretation.python.places import Place
from tracemill.passes.interpretation.python.snapshot import LINKS

_TYPED = (int, str, bytes, complex, range, torch.Size, torch.device, float, slice)


HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
GLOBAL_HOOKS = {
    f"global{name}": getattr(torch.nn.modules.module, f"_global{name}") for name in HOOKS
}


class Named:
    """An object that the text names, whatever literal it has; `hint` is the name wanted."""

    __slots__ = ("hint", "value")

    def __init__(self, value: Any, hint: str = "") -> None:
        self.value = value
        self.hint = hint


VERSION = Named(dict_version)


@dataclass(frozen=True)
class StateCheck:
    """A check of something at a place: `condition` holds `{0}` for it and `{1}`.. for `values`.

    steps: from `owner` to what is checked.
    """

    subject: str
    owner: Place | None
    condition: str
    values: tuple[Any, ...] = ()
    steps: tuple[Any, ...] = ()


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
class ModuleTables:
    """What one check says of all modules."""

    modules: list[torch.nn.Module] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    hooks: list[Any] = field(default_factory=list)
    missing: list[tuple[dict[str, Any], str]] = field(default_factory=list)

    def checks(self) -> Iterator[StateCheck]:
        if self.modules:
            hooks = (*self.hooks, *(table for table in GLOBAL_HOOKS.values() if not table))
            check = ModulesCheck(self.modules, self.tables, hooks, self.missing)
            subject = (
                "classes and hooks of the modules, and their numbers of parameters and buffers"
            )
            yield StateCheck(subject, None, "{1}.check()", (Named(check, "modules_as_traced"),))


FEW = 4
"""Functions up to which each has a check of its own: for more, one check of all is faster."""


@dataclass
class Functions:
    """The functions that the program called; `signatures` are those whose defaults count."""

    called: list[FunctionType] = field(default_factory=list)
    signatures: list[FunctionType] = field(default_factory=list)

    def checks(self) -> Iterator[StateCheck]:
        if len(self.called) > FEW:
            named = Named(FunctionsCheck(self.called, self.signatures), "functions_as_traced")
            subject = "code and defaults of the functions"
            yield StateCheck(subject, None, "{1}.check()", (named,))
        else:
            yield from map(self._check, self.called)

    def _check(self, function: FunctionType) -> StateCheck:
        code, name = function.__code__, function.__name__
        wanted: dict[str, Any] = {"__code__": Named(code, f"{name}_code")}
        if function in self.signatures and function.__defaults__:
            wanted["__defaults__"] = Named(function.__defaults__, f"{name}_defaults")
        if function in self.signatures and function.__kwdefaults__:
            wanted["__kwdefaults__"] = Named(function.__kwdefaults__, f"{name}_keyword_defaults")
        parts = [f"{{1}}.{attribute} is {{{i}}}" for i, attribute in enumerate(wanted, start=2)]
        subject = f"{name}: its code and defaults"
        return StateCheck(subject, None, " and ".join(parts), (Named(function), *wanted.values()))


def value_condition(value: Any) -> tuple[str, tuple[Any, ...]]:
    """The condition that what is found is `value`; empty where the value's own parts are checked instead."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return "{1}({0}, {2})", (same, TensorLike(value))
    if kind is float and (value == 0.0 or math.isnan(value)):
        return FLOAT, (float, value.hex())
    if kind in _TYPED:
        return CONSTANT, (kind, value)
    if kind in (list, dict, set, deque) or kind is ContextVar:
        return "", ()
    if kind in (tuple, frozenset) or kind in LINKS:
        return SAME, (Named(value), same)
    return IDENTICAL, (Named(value),)
