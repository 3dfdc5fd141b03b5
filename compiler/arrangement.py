"""Arrangement: cotangents come in any layout, and are brought to the one that a backward was recorded for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tracemill.compiler.meta import contiguous_stride
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbolic import is_symbolic

strided = torch.strided


def arranger(like: TensorProxy) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that brings a cotangent to the layout that the backward was recorded for."""
    meta = like.meta
    if meta.layout != torch.strided:
        return lambda cotangent: cotangent
    contiguous = meta.stride == contiguous_stride(meta.shape)
    order = sorted(range(len(meta.shape)), key=lambda dim: -meta.stride[dim])
    back = sorted(range(len(order)), key=order.__getitem__)

    def arranged(cotangent: torch.Tensor) -> torch.Tensor:
        if cotangent.layout is not strided:
            cotangent = cotangent.to_dense()
        if meta.dtype.is_complex:
            cotangent = cotangent.resolve_conj()
        if contiguous:
            return cotangent.contiguous()
        if is_symbolic(like):  # dense, in this order of dimensions
            return cotangent.permute(order).contiguous().permute(back)
        if cotangent.stride() == meta.stride:
            return cotangent
        made = torch.empty_strided(
            meta.shape, meta.stride, dtype=cotangent.dtype, device=cotangent.device
        )
        return made.copy_(cotangent)

    return arranged


def unless_expanded(
    arrange: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    """`arrange`, which leaves one number for all elements as it is."""

    def arranged(cotangent: torch.Tensor) -> torch.Tensor:
        if cotangent.layout is strided and not any(cotangent.stride()):
            return cotangent
        return arrange(cotangent)

    return arranged
