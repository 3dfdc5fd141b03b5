"""How composites are opened: PyTorch's decompositions of what has no translation, and a few of our own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tracemill.compiler.torch_internals import decomposition_table
from tracemill.executors.nvfuser.families import TRANSLATIONS

aten = torch.ops.aten


@functools.cache
def decompositions(options: frozenset[str] = frozenset()) -> Mapping[Any, Callable[..., Any]]:
    """The decomposition of every operation that has one and that is not translated as it is.

    options: the families of operations, of `registry.OPTIONS`, that are translated too.
    """
    translated = {
        operation for operation, translation in TRANSLATIONS.items() if translation.is_on(options)
    }
    table = {**decomposition_table, **_OWN}
    return {
        operation: fn
        for operation, fn in table.items()
        if operation not in translated and operation not in _OPENED_ANYHOW
    }


_OPENED_ANYHOW = (
    aten.where.ScalarSelf,
    aten.where.ScalarOther,
    aten.where.Scalar,
    aten.var.dim,
    aten.var_mean.dim,
)
"""PyTorch calls other operations for these; its decompositions of them go past those."""


def _nll_loss_backward(
    grad: torch.Tensor,
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignored: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """The gradient by comparing positions, where PyTorch's decomposition scatters."""
    classes = scores.dim() - 1 if scores.dim() < 2 else 1
    target = target.unsqueeze(classes)
    positions = torch.arange(scores.shape[classes], device=scores.device)
    if scores.dim() > 1:
        positions = positions.reshape([-1] + [1] * (scores.dim() - 2))
    if reduction == 1:
        grad = grad / total_weight
    elif reduction == 0:
        grad = grad.unsqueeze(classes)
    grad = torch.where(target == ignored, 0, -grad)
    if weight is not None:
        grad = grad * weight.reshape(positions.shape)
    return torch.where(positions == target, grad, 0).to(scores.dtype)


_OWN: dict[Any, Callable[..., Any]] = {
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.nll_loss2d_backward.default: _nll_loss_backward,
}
