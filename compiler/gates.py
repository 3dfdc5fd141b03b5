"""Gates: how the gradient of an output comes by the outputs that it is computed from.

    y, loss = jitted(x)
    y.retain_grad()
    loss.backward()     # y.grad is what eager's is

One node of autograd's makes all outputs of a program, so that gradients from one to another stay inside of it. Where
somebody looks at them, an output's gate takes them out: to the other outputs, whose hooks see them, and on from there.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals

Way = Callable[[Any, int, torch.Tensor], Sequence[torch.Tensor | None]]
"""From a program's node, an output's position and its cotangent to the gradients of the outputs it is computed from."""

_PROBE = torch.zeros((), device="cpu", requires_grad=True)
_PROBE_NODE = torch.autograd.graph.get_gradient_edge(_PROBE).node
"""A leaf that no gradient goes to: it is left out where a backward is for some tensors only."""


class Gate(internals.SingleLevelFunction):
    """The last node of an output that is computed from other ones."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, _probe: Any, way: Any, position: Any, *sources: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.node, ctx.way, ctx.position = tensor.grad_fn, way, position
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (cotangent,) = cotangents
        found: Sequence[Any] = (None,) * (len(ctx.needs_input_grad) - 4)
        if cotangent is not None and _is_looked_at(ctx.node):
            found = ctx.way(ctx.node, ctx.position, cotangent)
        return cotangent, None, None, None, *found


_gate: Callable[..., torch.Tensor] = Gate.apply  # pyright: ignore[reportAttributeAccessIssue]


def gated(
    made: Sequence[torch.Tensor], sources: Mapping[int, Sequence[int]], way: Way
) -> list[torch.Tensor]:
    """A program's new tensors, those that are computed from others behind gates.

    sources: for each of these the positions of the others, in an order in which each comes after its own.
    """
    outs = list(made)
    for position, others in sources.items():
        outs[position] = _gate(outs[position], _PROBE, way, position, *(outs[i] for i in others))
    inner = {i for others in sources.values() for i in others}
    node: Any = made[min(inner)].grad_fn
    node.watched = [weakref.ref(outs[i]) for i in inner]
    return outs


class _Hooks(OrderedDict[int, Any]):
    """An output's hooks, for a node that makes several: not called in a backward that brings this output no gradient."""

    def __setitem__(self, key: int, hook: Callable[[torch.Tensor], Any]) -> None:
        if getattr(hook, "__qualname__", "") == _COUNTING:
            super().__setitem__(key, hook)
            return

        @functools.wraps(hook)
        def called(gradient: torch.Tensor | None) -> Any:
            return None if gradient is None else hook(gradient)

        super().__setitem__(key, called)


_COUNTING = "register_multi_grad_hook.<locals>.get_inner_hook.<locals>.inner_hook"
"""PyTorch's hook that waits for all tensors whose nodes run, and takes None from those that get no gradient."""


def _take_hooks(node: Any, output: Any) -> None:
    """Stands for what a node does with an output's first hook."""
    output._backward_hooks = _Hooks()
    torch.autograd.function.BackwardCFunction._register_hook_dict(node, output)


def with_hooks_apart(function: type[internals.SingleLevelFunction]) -> None:
    """Has the nodes of a function with several outputs call only the hooks of those that get a gradient."""
    nodes: Any = function
    nodes._backward_cls._register_hook_dict = _take_hooks


def is_open(node: Any) -> bool:
    """Whether the gates of a program's node have taken gradients out in the backward that runs."""
    return getattr(node, "opened", None) == internals.current_graph_task_id()


def _is_looked_at(node: Any) -> bool:
    """Whether somebody looks at the gradients between a program's outputs: by a hook, or by asking for one."""
    if torch.is_grad_enabled():
        return False
    watched = (reference() for reference in node.watched)
    looked_at = not internals.will_engine_execute_node(_PROBE_NODE) or any(
        tensor is not None and (tensor.retains_grad or tensor._backward_hooks) for tensor in watched
    )
    if looked_at:
        node.opened = internals.current_graph_task_id()
    return looked_at
