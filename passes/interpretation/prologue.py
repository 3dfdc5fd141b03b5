"""The prologue: unpacks a call's inputs, fetches the program's own tensors by path, and checks them all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tracemill.compiler import prims
from tracemill.compiler import torch_internals as internals
from tracemill.compiler.guards import TensorCheck, check
from tracemill.compiler.names import Names
from tracemill.compiler.proxy import AnyProxy, Proxy, TensorProxy
from tracemill.compiler.settings import SETTINGS, Ambient, autocast_dtypes, default_device
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace
from tracemill.passes.interpretation.places import Place, find


@dataclass
class Fetched:
    """The program's own tensors: the lines that fetch them, and which ones are constants without a place."""

    lines: list[BoundSymbol] = field(default_factory=list)
    constants: list[TensorProxy] = field(default_factory=list)


class Fetcher:
    """Emits a line for each tensor that the program met, and for each object that two of them are reached through."""

    def __init__(self, roots: dict[Place, Proxy], names: Names, *, checked: bool) -> None:
        self._roots = roots
        self._names = names
        self._checked = checked
        self._emitted: dict[Place, Proxy] = dict(roots)
        self._uses: dict[Place, int] = {}

    def fetch(self, lifted: Sequence[tuple[TensorProxy, torch.Tensor]]) -> Fetched:
        """Fetches `lifted`; names each tensor after its place."""
        found = find(self._roots, {id(tensor) for _, tensor in lifted})
        for places in found.values():
            for place in places:
                self._count(place)
        fetched = Fetched()
        for proxy, tensor in lifted:
            places = found.get(id(tensor), [])
            if not places:
                proxy._name = self._names.claim("constant")
                fetched.constants.append(proxy)
                fetched.lines.append(prims.unpack(proxy, tensor))
                continue
            first, *others = places
            proxy._name = self._names.claim(first.hint)
            fetched.lines.extend(self._line(proxy, first))
            for other in others if self._checked else ():
                again = TensorProxy(self._names.claim(other.hint), meta=proxy.meta)
                fetched.lines.extend(self._line(again, other))
                fetched.lines.append(
                    check(f"{other.hint}: shared with {first.hint}", "{} is {}", again, proxy)
                )
        return fetched

    def _count(self, place: Place) -> None:
        parent = place.parent
        while parent is not None:
            self._uses[parent] = self._uses.get(parent, 0) + 1
            if self._uses[parent] > 1:
                break
            parent = parent.parent

    def _line(self, proxy: Proxy, place: Place) -> list[BoundSymbol]:
        lines: list[BoundSymbol] = []
        base, steps = self._base(place.parent, lines)
        lines.append(prims.unpack(proxy, base, *steps, *place.steps))
        return lines

    def _base(self, place: Place | None, lines: list[BoundSymbol]) -> tuple[Proxy, tuple[Any, ...]]:
        """What to reach `place` from: a name that is there, and the steps from it."""
        assert place is not None
        known = self._emitted.get(place)
        if known is not None:
            return known, ()
        base, steps = self._base(place.parent, lines)
        if self._uses.get(place, 0) < 2:
            return base, (*steps, *place.steps)
        proxy = AnyProxy(self._names.claim(place.hint or "owner"), python_type=type(place.value))
        lines.append(prims.unpack(proxy, base, *steps, *place.steps))
        self._emitted[place] = proxy
        return proxy, ()


def ambient_checks(*, attention: bool) -> list[BoundSymbol]:
    """Checks of PyTorch's settings, which decide what calls do.

    attention: whether the settings that choose a kernel for attention count.
    """
    now = Ambient.now()
    lines = [
        check("grad mode", "{}() is {}", torch.is_grad_enabled, now.grad),
        check("inference mode", "{}() is {}", torch.is_inference_mode_enabled, now.inference),
        check("autocast", "{}() is {}", internals.any_autocast_enabled, bool(now.autocast)),
    ]
    if now.autocast:
        condition = "{}() == {}"
        lines.append(check("autocast's dtypes", condition, autocast_dtypes, now.autocast))
        cache = torch.is_autocast_cache_enabled
        lines.append(check("autocast's cache", "{}() is {}", cache, cache()))
    for setting, value in zip(SETTINGS, now.settings, strict=True):
        if setting.checked or (attention and setting.attention):
            lines.append(check(setting.name, "{}() == {}", setting.get, value))
    depth = internals.function_mode_depth()
    lines.append(check("function modes", "{}() == {}", internals.function_mode_depth, depth))
    if depth:
        lines.append(check("default device", "{}() == {}", default_device, default_device()))
    return lines


def build_prologue(
    signature: Sequence[inspect.Parameter],
    arguments: Sequence[Proxy],
    lines: Sequence[BoundSymbol],
    tensors: Sequence[tuple[TensorProxy, torch.Tensor]],
    output: Sequence[Proxy],
    *,
    checked: bool,
    attention: bool = False,
) -> Trace:
    """The prologue's trace: PyTorch's settings, `lines` that unpack and fetch, and the check of all `tensors`."""
    if checked:
        lines = [*ambient_checks(attention=attention), *lines, *_tensor_checks(tensors)]
    return Trace("prologue", arguments, lines, tuple(output), signature=signature, no_grad=False)


def _tensor_checks(tensors: Sequence[tuple[TensorProxy, torch.Tensor]]) -> Iterator[BoundSymbol]:
    strided = [(proxy, tensor) for proxy, tensor in tensors if tensor.layout == torch.strided]
    if strided:
        guard = TensorCheck.of([tensor for _, tensor in strided])
        condition = f"{{}}.check({', '.join('{}' for _ in strided)})"
        yield check("metadata of the tensors", condition, guard, *(proxy for proxy, _ in strided))
    for proxy, tensor in tensors:
        if tensor.layout != torch.strided:
            condition = "{0}.layout is {1} and {0}.shape == {2} and {0}.dtype is {3}"
            yield check(
                f"{proxy.name}: its metadata",
                condition,
                proxy,
                tensor.layout,
                tensor.shape,
                tensor.dtype,
            )
