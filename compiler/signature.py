"""Keys that tell calls apart, also where Python's == does not: 1, True and 1.0; 0.0 and -0.0; nan and nan."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch

from tracemill.compiler import torch_names
from tracemill.compiler.proxy import GeneratorProxy, NumberProxy, TensorProxy
from tracemill.compiler.symbolic import Expression

_BY_VALUE = (int, bool, str, bytes, type(None), type(Ellipsis), range)
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme)


class Identity:
    """Stands for an object by identity in a key, and keeps it alive: a bare `id` can come back."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def float_key(value: float) -> tuple[Any, ...]:
    """A float by its bits."""
    return float, value.hex()


class CallKey:
    """Builds the key of a call, and collects the call's tensors on the way.

    tensors: the distinct tensor proxies among the arguments, in order of first occurrence.
    local: whether the key holds an object by identity, so that it must not outlive the trace.
    """

    def __init__(self) -> None:
        self.tensors: list[TensorProxy] = []
        self.local = False
        self._positions: dict[TensorProxy, int] = {}

    def of(self, value: Any) -> Any:
        """The key of a value: hashable, equal for values that PyTorch treats alike."""
        kind = type(value)
        if isinstance(value, TensorProxy):
            return self._tensor(value)
        if kind in _BY_VALUE:
            return kind, value
        if kind is float:
            return float_key(value)
        if kind is tuple or kind is list or kind is torch.Size:
            return (kind, *map(self.of, value))
        if kind is dict:
            return (kind, *((self.of(key), self.of(item)) for key, item in value.items()))
        if kind is slice:
            return kind, self.of(value.start), self.of(value.stop), self.of(value.step)
        return self._unusual(value)

    def _tensor(self, proxy: TensorProxy) -> Any:
        position = self._positions.get(proxy)
        if position is None:
            position = self._positions[proxy] = len(self.tensors)
            self.tensors.append(proxy)
            return proxy.meta
        return position

    def _unusual(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, _TORCH_VALUES):
            return kind, value
        if kind is complex:
            return kind, value.real.hex(), value.imag.hex()
        if isinstance(value, enum.Enum):
            return kind, value.name
        if kind is GeneratorProxy:
            return kind, value.device
        if kind is Expression or isinstance(value, NumberProxy):
            return self._number(value)
        if isinstance(value, tuple):
            return (kind, *map(self.of, value))
        if isinstance(value, (set, frozenset)):
            return kind, frozenset(map(self.of, value))
        if isinstance(value, type):
            return type, value
        return self._object(value)

    def _number(self, number: Any) -> Any:
        """A number of the trace: what it was while tracing, which is what PyTorch is asked about."""
        return self._object(number) if number.value is None else self.of(number.value)

    def _object(self, value: Any) -> Any:
        if isinstance(value, Callable) and torch_names.path_of(value) is not None:
            return "torch callable", value
        self.local = True
        return Identity(value)
