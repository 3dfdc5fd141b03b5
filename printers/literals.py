"""Values as Python expressions, and the objects that a text needs because they have no literal form."""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
from types import CodeType, FunctionType
from typing import Any

import torch

from tracemill.compiler import torch_names
from tracemill.compiler.names import Names
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbolic import Expression

_BY_REPR = (int, bool, bytes, type(None), range)
_TORCH_VALUES = (torch.dtype, torch.layout, torch.memory_format)


class Literals:
    """Writes values as expressions over `torch`, builtins, and a few bound names.

    imports: import lines that the expressions need.
    bound: objects without a literal form, by the name that the text uses for them.
    notes: what each bound name is, for people.
    """

    def __init__(self, taken: set[str]) -> None:
        self.imports: set[str] = set()
        self.bound: dict[str, Any] = {}
        self.notes: dict[str, str] = {}
        self._names = Names(taken)
        self._by_identity: dict[int, str] = {}

    def value(self, value: Any) -> str:
        """The expression of a value."""
        kind = type(value)
        if isinstance(value, Proxy):
            return value.name
        if kind in _BY_REPR:
            return repr(value)
        if kind is tuple or kind is list or kind is slice:
            return self._structure(value)
        if kind is str:
            return string(value)
        if kind is float:
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if value is Ellipsis:
            return "..."
        if kind is complex:
            return f"complex({self.value(value.real)}, {self.value(value.imag)})"
        if isinstance(value, _TORCH_VALUES):
            return str(value)
        if kind is torch.device:
            return f'torch.device("{value}")'
        return self._structure(value)

    def _structure(self, value: Any) -> str:
        kind = type(value)
        if kind is Expression:
            return str(value)
        if kind is slice:
            return f"slice({', '.join(map(self.value, (value.start, value.stop, value.step)))})"
        if kind is tuple:
            return f"({', '.join(map(self.value, value))}{',' if len(value) == 1 else ''})"
        if kind is list:
            return f"[{', '.join(map(self.value, value))}]"
        if kind is torch.Size:
            return f"torch.Size([{', '.join(map(self.value, value))}])"
        if kind is dict:
            return f"{{{', '.join(f'{self.value(key)}: {self.value(item)}' for key, item in value.items())}}}"
        if kind in (set, frozenset):
            items = ", ".join(sorted(map(self.value, value)))
            braces = f"{{{items}}}" if items else ""
            return braces if kind is set and items else f"{kind.__name__}({braces})"
        return self._constructed(value)

    def _constructed(self, value: Any) -> str:
        kind = type(value)
        if hasattr(value, "_fields") and isinstance(value, tuple):
            fields = zip(value._fields, value, strict=True)  # type: ignore[attr-defined]
            return f"{self.value(kind)}({', '.join(f'{name}={self.value(item)}' for name, item in fields)})"
        if (
            dataclasses.is_dataclass(value)
            and not isinstance(value, type)
            and not isinstance(value, dict)
        ):
            fields = [
                (field.name, getattr(value, field.name))
                for field in dataclasses.fields(value)
                if field.init
            ]
            return f"{self.value(kind)}({', '.join(f'{name}={self.value(item)}' for name, item in fields)})"
        if isinstance(value, enum.Enum) and _has_own_name(value):
            return f"{self.value(kind)}.{value.name}"
        return self._named(value)

    def _named(self, value: Any) -> str:
        if isinstance(value, type) and value.__module__ == "builtins":
            return value.__name__
        path = (
            torch_names.path_of(value) if callable(value) and not isinstance(value, type) else None
        )
        if path is not None:
            return torch_names.expression(path)
        module = getattr(value, "__module__", None) or ""
        name = getattr(value, "__qualname__", "")
        if isinstance(value, (type, FunctionType)) and _is_at(value, module, name):
            if module.split(".")[0] == "torch" and _is_at(value, "torch", name):
                return f"torch.{name}"
            if module.startswith("tracemill."):
                return self._imported(value, module, name)
        return self.bind(value)

    def _imported(self, value: Any, module: str, name: str) -> str:
        """The name of a function of tracemill's, another than its own where a value of the trace has that."""
        known = self._by_identity.get(id(value))
        if known is None:
            known = self._by_identity[id(value)] = self._names.claim(name)
            renamed = "" if known == name else f" as {known}"
            self.imports.add(f"from {module} import {name}{renamed}")
        return known

    def bind(self, value: Any, name: str | None = None, note: str = "") -> str:
        """The name that the text uses for an object that it cannot write; `note` says what it is."""
        known = self._by_identity.get(id(value))
        if known is not None:
            return known
        wanted = name or getattr(value, "__name__", None) or type(value).__name__.lower()
        made = self._names.claim(wanted.split(".")[-1])
        self.define(made, value, note)
        return made

    def define(self, name: str, value: Any, note: str = "") -> None:
        """Binds `name`, known to be free, to an object."""
        self._by_identity[id(value)] = name
        self.bound[name] = value
        self.notes[name] = note or describe(value)


def string(value: str) -> str:
    """A string literal, in double quotes where that needs no escape."""
    text = repr(value)
    return text if '"' in text else f'"{text[1:-1]}"'


def _is_at(value: Any, module: str, name: str) -> bool:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _has_own_name(member: enum.Enum) -> bool:
    """Whether a member is found by its name, as several flags at once are not."""
    cls = type(member)
    return (
        cls.__module__.split(".")[0] != "torch" and cls.__members__.get(str(member.name)) is member
    )


def describe(value: Any) -> str:
    """What an object is, without its address."""
    if isinstance(value, (type, FunctionType)):
        kind = "class" if isinstance(value, type) else "function"
        return f"the {kind} {value.__module__}.{value.__qualname__}"
    if isinstance(value, CodeType):
        return f"the code of {value.co_qualname}"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}, {value.dtype}"
    described = getattr(type(value), "__tracemill_note__", None)
    return (
        described(value)
        if described is not None
        else f"a {type(value).__module__}.{type(value).__qualname__}"
    )
