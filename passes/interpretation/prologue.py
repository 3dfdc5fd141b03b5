"""The prologue: checks of PyTorch's settings, the lines that unpack and fetch a call's inputs, and their check."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.guards import TensorCheck, check
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.settings import SETTINGS, Ambient, autocast_dtypes, default_device
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace
from tracemill.passes.interpretation.symbols import Symbols


def ambient_checks(*, attention: bool, tensors: bool) -> list[BoundSymbol]:
    """Checks of PyTorch's settings, which decide what calls do.

    attention: whether the settings that choose a kernel for attention count. tensors: whether there are tensors, whose
    check sees that inference mode and autocast are off: both change the dispatch keys that it compares.
    """
    now = Ambient.now()
    lines = [check("grad mode", "{}() is {}", torch.is_grad_enabled, now.grad)]
    if now.inference or not tensors:
        get = torch.is_inference_mode_enabled
        lines.append(check("inference mode", "{}() is {}", get, now.inference))
    if now.autocast or not tensors:
        get = internals.any_autocast_enabled
        lines.append(check("autocast", "{}() is {}", get, bool(now.autocast)))
    if now.autocast:
        condition = "{}() == {}"
        lines.append(check("autocast's dtypes", condition, autocast_dtypes, now.autocast))
        cache = torch.is_autocast_cache_enabled
        lines.append(check("autocast's cache", "{}() is {}", cache, cache()))
    for setting, value in zip(SETTINGS, now.settings, strict=True):
        if setting.get is torch.get_deterministic_debug_mode and value == 0:
            get = internals.deterministic_algorithms  # the mode is 0 exactly when they are off
            lines.append(check(setting.name, "{}() is {}", get, False))
        elif setting.checked or (attention and setting.attention):
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
    symbols: Symbols | None = None,
) -> Trace:
    """The prologue's trace: PyTorch's settings, `lines` that unpack and fetch, and the check of all `tensors`.

    symbols: the sizes that differ from call to call, with what they must meet.
    """
    if checked:
        strided = any(tensor.layout == torch.strided for _, tensor in tensors)
        ambient = ambient_checks(attention=attention, tensors=strided)
        lines = [*ambient, *lines, *_tensor_checks(tensors, symbols)]
    if symbols is not None:
        lines = [*lines, *symbols.lines, *symbols.guards()]
    return Trace("prologue", arguments, lines, tuple(output), signature=signature, no_grad=False)


def _tensor_checks(
    tensors: Sequence[tuple[TensorProxy, torch.Tensor]], symbols: Symbols | None
) -> Iterator[BoundSymbol]:
    strided = [(proxy, tensor) for proxy, tensor in tensors if tensor.layout == torch.strided]
    if strided:
        layouts = () if symbols is None else symbols.fixed(strided)
        guard = TensorCheck.of([tensor for _, tensor in strided], *layouts)
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
