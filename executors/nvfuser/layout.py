"""Layouts: what a definition must know of how tensors lie in memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tracemill.executors.nvfuser.library import library


class Layout(NamedTuple):
    """How a tensor lies in memory; a definition is right for tensors of one layout.

    ones: which dimensions are of size one. contiguity: for each dimension, from the outermost in memory, whether it
    follows on the next one; None where all positions are one in memory. order: the place of each dimension in memory,
    the innermost being 0; empty where the last dimension is the innermost, and so on.
    """

    ones: tuple[bool, ...]
    contiguity: tuple[bool | None, ...]
    order: tuple[int, ...]

    @classmethod
    @functools.lru_cache(maxsize=4096)
    def of(cls, shape: Sequence[int], stride: Sequence[int]) -> Layout:
        """The layout of sizes and strides in elements."""
        contiguity, order = library().compute_tensor_descriptor(list(shape), list(stride))
        plain = order == list(range(len(shape)))[::-1]
        return cls(
            tuple(size == 1 for size in shape), tuple(contiguity), () if plain else tuple(order)
        )


def memory_order(tensor: torch.Tensor) -> list[int] | None:
    """The place of each dimension in memory, the innermost being 0; None where that is the order of dimensions.

    Dimensions of size one keep their place among the others.
    """
    stride = tensor.stride()
    dims = [dim for dim in range(tensor.dim()) if tensor.shape[dim] != 1]
    by_stride = sorted(dims, key=lambda dim: (-stride[dim], dim))
    if by_stride == dims:
        return None
    at = iter(by_stride)
    outer_first = [next(at) if tensor.shape[dim] != 1 else dim for dim in range(tensor.dim())]
    order = [0] * tensor.dim()
    for place, dim in enumerate(reversed(outer_first)):
        order[dim] = place
    return order


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its memory without gaps or overlaps."""
    expected: int = 1
    for size, stride in sorted(
        zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]
    ):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected = expected * size
    return True
