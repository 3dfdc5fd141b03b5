"""The prologue: checks of PyTorch's settings, the lines that unpack and fetch a call's inputs, and their check."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.guards import TensorCheck, check
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.settings import SETTINGS, Ambient, autocast_dtypes, default_device
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import layout_of
from tracemill.compiler.trace import Trace


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
    sizes: Sequence[BoundSymbol] = (),
    gradients: Iterable[BoundSymbol] = (),
    grants: Iterable[BoundSymbol] = (),
) -> Trace:
    """The prologue's trace: PyTorch's settings, `lines` that unpack and fetch, and the check of all `tensors`.

    sizes: the lines that name sizes which differ from call to call. gradients: the checks of what autograd knows of
    tensors whose gradients the program asks for. grants: the lines that make tensors require grad.
    """
    if checked:
        strided = any(tensor.layout == torch.strided for _, tensor in tensors)
        ambient = ambient_checks(attention=attention, tensors=strided)
        lines = [*ambient, *lines, *_tensor_checks(tensors), *gradients]
    lines = [*lines, *sizes, *grants]
    return Trace("prologue", arguments, lines, tuple(output), signature=signature, no_grad=False)


def _tensor_checks(
    tensors: Sequence[tuple[TensorProxy, torch.Tensor]],
) -> Iterator[BoundSymbol]:
    strided = [(proxy, tensor) for proxy, tensor in tensors if tensor.layout == torch.strided]
    if strided:
        guard = TensorCheck.of([tensor for _, tensor in strided], *_fixed(strided))
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


def _fixed(tensors: Sequence[tuple[TensorProxy, torch.Tensor]]) -> tuple[Any, ...]:
    """Sizes, and strides, that each call's tensors must have, None for symbolic ones; nothing where none is."""
    layouts = [layout_of(proxy) for proxy, _ in tensors]
    if not any(layouts):
        return ()
    parts = [
        (tensor.shape, tensor.stride()) if layout is None else layout[:2]
        for layout, (_, tensor) in zip(layouts, tensors, strict=True)
    ]
    return tuple(
        [[value if type(value) is int else None for value in table] for table in tables]
        for tables in zip(*parts, strict=True)
    )
