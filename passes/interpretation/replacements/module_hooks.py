"""Backward hooks of modules: what stands for PyTorch's `BackwardHook` while a program is traced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from tracemill.compiler.answer import Answer, NewTensor
from tracemill.compiler.module_hooks import Hooked, ModuleHooks
from tracemill.compiler.proxy import TensorProxy
from tracemill.passes.interpretation.stand_in import interpretation

_Hook: Any = BackwardHook
_ORIGINAL = _Hook.setup_input_hook, _Hook.setup_output_hook


def _input_hook(self: Any, args: Any) -> Any:
    recording: Any = interpretation.get()
    if recording is None:
        return _ORIGINAL[0](self, args)
    self.recorded = ModuleHooks(self.module, self.user_hooks, self.user_pre_hooks)
    made, positions = _marked(recording, self.recorded, args, gives=False)
    self.recorded.inputs = (len(args), positions)
    return made


def _output_hook(self: Any, result: Any) -> Any:
    recording: Any = interpretation.get()
    if recording is None:
        return _ORIGINAL[1](self, result)
    results = result if isinstance(result, tuple) else (result,)
    made, positions = _marked(recording, self.recorded, results, gives=True)
    self.recorded.outputs = (len(results), positions)
    return made if isinstance(result, tuple) else made[0]


def _marked(recording: Any, hooks: ModuleHooks, values: Any, *, gives: bool) -> tuple[Any, Any]:
    """The values, their tensors as those of a line of their own, and the tensors' positions."""
    positions = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
    tensors = [values[i] for i in positions]
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
        return values, None
    made = list(values)
    for i, tensor in zip(
        positions, _views(recording, Hooked(hooks, gives=gives), tensors), strict=True
    ):
        made[i] = tensor
    return tuple(made) if type(values) is tuple else type(values)(*made), positions


def _views(recording: Any, sym: Hooked, tensors: list[Any]) -> Any:
    proxies: list[TensorProxy] = []
    for tensor in tensors:
        proxy = recording.lift(tensor).proxy
        if proxy in proxies:  # each has a gradient of its own
            proxy = recording.call(torch.Tensor.view_as, (proxy, proxy), {})
        proxies.append(proxy)
    specs, outs = [], []
    for position, proxy in enumerate(proxies):
        meta = proxy.meta.replace(is_leaf=not proxy.requires_grad)
        specs.append(NewTensor(meta, -1, ("argument", position), 0))
        outs.append(proxy.changed(recording.fresh_name(), meta=meta))
    recording.emit(sym, proxies, {}, tuple(outs), Answer(tuple(specs), len(proxies)))
    return recording.stand_ins(tuple(outs))


def replaced() -> Iterator[tuple[Any, str, Any]]:
    """What stands where PyTorch looks for these while a program is interpreted."""
    yield BackwardHook, "setup_input_hook", _input_hook
    yield BackwardHook, "setup_output_hook", _output_hook
