"""Backward hooks of modules: the lines that mark what a module takes and gives, and those that call the hooks.

A module with hooks, in the forward and in the backward:

    t1 = torch.Tensor.view_as(x, x)
    t2 = torch.sin(t1)
    t3 = torch.Tensor.view_as(t2, t2)

    t5, = layer_output_hooks((t4,))
    t6 = torch.cos(t1)
    t7 = torch.mul(t5, t6)
    t8, = layer_input_hooks((t7,), (t5,))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from tracemill.compiler.symbol import BoundSymbol, LineWriter, Symbol


class _Run(BackwardHook):
    """PyTorch's own object for the hooks of one call of a module, called by lines instead of by autograd's nodes."""

    def __init__(self, hooks: ModuleHooks) -> None:
        super().__init__(hooks.module, hooks.hooks, hooks.pre_hooks)
        self.n_inputs, self.input_tensors_index = hooks.inputs
        self.n_outputs, self.output_tensors_index = hooks.outputs
        self.call: Callable[..., Any]

    def register_hook(self, hook: Callable[..., Any]) -> None:
        """What autograd's node would be asked."""
        self.call = hook

    def _apply_on_tensors(self, fn: Any, args: Any) -> Any:
        fn(self)
        return args, self.output_tensors_index


class ModuleHooks:
    """The backward hooks of one call of a module, as they were when it was called.

    inputs, outputs: how many arguments and results there are, and the positions of the tensors among them; None where
    none of them requires grad.
    """

    def __init__(self, module: Any, hooks: Sequence[Any], pre_hooks: Sequence[Any]) -> None:
        self.module = module
        self.hooks = list(hooks)
        self.pre_hooks = list(pre_hooks)
        self.inputs: tuple[int, Any] = (0, None)
        self.outputs: tuple[int, Any] = (0, None)

    def on_outputs(self, cotangents: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        """Calls the hooks on what a module gives; the cotangents to go on with, those that are there."""
        run = _Run(self)
        run.setup_output_hook((None,) * self.outputs[0])
        return _arranged(cotangents, run.call(None, tuple(cotangents)))

    def on_inputs(
        self,
        gradients: Sequence[torch.Tensor | None],
        cotangents: Sequence[torch.Tensor | None],
    ) -> tuple[torch.Tensor, ...]:
        """Calls the hooks on what a module takes; the gradients to go on with, those that are there."""
        run: Any = _Run(self)
        run.grad_outputs = run._pack_with_none(run.output_tensors_index, cotangents, run.n_outputs)
        run._set_user_hook(run)
        return _arranged(gradients, run.call(tuple(gradients), None))


def _arranged(
    given: Sequence[torch.Tensor | None], made: Sequence[torch.Tensor | None] | None
) -> tuple[torch.Tensor, ...]:
    """What hooks made of gradients, in the layout that the backward was recorded for."""
    result: list[torch.Tensor] = []
    for old, new in zip(given, given if made is None else made, strict=True):
        if old is None:
            continue
        if new is None:
            new = torch.zeros_like(old)
        if new is not old and (new.stride(), new.dtype) != (old.stride(), old.dtype):
            new = torch.empty_like(old).copy_(new)
        result.append(new)
    return tuple(result)


class Hooked(Symbol):
    """`t1 = torch.Tensor.view_as(t0, t0)` for each tensor that a hooked module takes or gives.

    hooks: the module's. gives: whether these are its results, not its arguments. arrived: while a backward is derived,
    the cotangents that came to the results.
    """

    path = None  # type: ignore[assignment]  # not any view: its backward calls hooks

    def __init__(self, hooks: ModuleHooks, *, gives: bool) -> None:
        super().__init__("hooked", impl=_views)
        self.hooks = hooks
        self.gives = gives

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        return [
            f"{writer.target(out)} = torch.Tensor.view_as({writer.value(tensor)}, {writer.value(tensor)})"
            for out, tensor in zip(bsym.output, bsym.args, strict=True)
        ]


def _views(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.view_as(tensor) for tensor in tensors)


class HookCall(Symbol):
    """`t5, = layer_output_hooks((t4,))`: a line that calls a module's hooks, which may do anything."""

    @property
    def note(self) -> str:
        """Whose hooks they are."""
        return f"calls backward hooks of a {type(self.impl.__self__.module).__name__}"  # type: ignore[union-attr]
