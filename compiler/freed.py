"""Freed: a result whose graph a backward inside of the program has freed, so that a second one raises."""

from __future__ import annotations

from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.symbol import Symbol

_LEAF = torch.zeros((), device="cpu", requires_grad=True)
_TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed): the program called backward inside. Specify retain_graph=True there if you need to backward through the "
    "graph a second time."
)


class _Freed(internals.SingleLevelFunction):
    """The last node of a graph that is not there any more."""

    @staticmethod
    def forward(ctx: Any, _leaf: Any, tensor: Any) -> Any:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(_TWICE)


def _freed(tensor: torch.Tensor) -> torch.Tensor:
    apply: Any = _Freed.apply  # pyright: ignore[reportAttributeAccessIssue]
    with torch.enable_grad():
        return apply(_LEAF, tensor)


FREED = Symbol("freed", impl=_freed)
"""`t1 = freed(t0)`: the same values, which require grad, and eager's error where somebody asks for gradients of them."""
