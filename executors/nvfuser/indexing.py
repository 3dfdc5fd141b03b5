"""Elements looked up by tensors of positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracemill.executors.nvfuser.builder import Builder
from tracemill.executors.nvfuser.library import computed_dtype
from tracemill.executors.nvfuser.registry import Untranslatable, translates
from tracemill.executors.nvfuser.values import Value

aten = torch.ops.aten


@translates(aten.index_select.default)
def index_select(builder: Builder, value: Value, dim: int, index: Value) -> Any:
    """Positions of a dimension, by a tensor of one dimension."""
    if not value.ndim or not index.ndim:
        raise Untranslatable("an index or a tensor without dimensions")
    return builder.ops.index_select(value.any, index.exact, dim % value.ndim)


@translates(aten.gather.default)
def gather(builder: Builder, value: Value, dim: int, index: Value, sparse: bool) -> Any:
    """For each position of the index, the element that it names along a dimension."""
    if not value.ndim or index.ndim != value.ndim:
        raise Untranslatable("an index or a tensor without dimensions")
    return builder.ops.gather(value.any, index.exact, dim % value.ndim)


@translates(aten.embedding.default)
def embedding(
    builder: Builder, weight: Value, index: Value, padding: Any, scale: bool, sparse: bool
) -> Any:
    """The rows of a matrix that an index of any shape names."""
    return _looked_up(builder, weight, 0, index)


@translates(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(builder: Builder, value: Value, indices: Sequence[Value | None]) -> Any:
    """Positions of one dimension, counted from the back where they are negative."""
    used = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(used) != 1 or used[0][1].dtype == torch.bool:
        raise Untranslatable("an index of several dimensions, or a mask")
    dim, chosen = used[0]
    ops = builder.ops
    positions = chosen.as_type(torch.int64)
    wrapped = ops.where(
        ops.lt(positions, 0), ops.add(positions, builder.size(value, dim)), positions
    )
    return _looked_up(builder, value, dim, Value(wrapped, chosen.meta.to(torch.int64)))


def _looked_up(builder: Builder, value: Value, dim: int, index: Value) -> Any:
    """`value` with a dimension replaced by the shape of an index."""
    ops, flat = builder.ops, index.exact
    if index.ndim == 1:
        return ops.index_select(value.any, flat, dim)
    sizes = [*builder.sizes(value)[:dim], *builder.sizes(index), *builder.sizes(value)[dim + 1 :]]
    if index.ndim == 0:
        flat = ops.broadcast(flat, [True])
    else:
        flat = ops.reshape(flat, [-1])
    looked_up = ops.index_select(value.any, flat, dim)
    return ops.reshape(looked_up, sizes) if index.ndim else ops.squeeze(looked_up, [dim])


@translates(aten.scatter.src, options=["scatter"])
def scatter(builder: Builder, value: Value, dim: int, index: Value, source: Value) -> Any:
    """The value with the elements that an index names replaced."""
    return builder.ops.scatter(value.computed, index.exact, source.computed, dim % value.ndim)


@translates(aten.scatter.value, options=["scatter"])
def scatter_number(builder: Builder, value: Value, dim: int, index: Value, number: Any) -> Any:
    """The value with the elements that an index names replaced by a number."""
    number = builder.scalar(builder.operand(number, value.dtype), computed_dtype(value.dtype))
    return builder.ops.scatter(value.computed, index.exact, number, dim % value.ndim)
