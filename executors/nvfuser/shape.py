"""Operations that move elements and compute nothing: views, cuts, and tensors put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracemill.executors.nvfuser.builder import Builder
from tracemill.executors.nvfuser.registry import Untranslatable, translates
from tracemill.executors.nvfuser.values import Value, sizes_of

aten, prims = torch.ops.aten, torch.ops.prims


@translates(aten.view.default, aten._unsafe_view.default, moves=True)
def view(builder: Builder, value: Value, sizes: Sequence[Any]) -> Any:
    """The elements in another shape; rounded before, since nvFuser does not schedule a cast behind one everywhere."""
    wanted = sizes_of(builder.result)
    if all(isinstance(size, int) for size in (*wanted, *value.shape)):
        if wanted == value.shape:
            return value
        sizes = list(wanted)
    return builder.ops.reshape(value.exact, list(sizes))


@translates(aten.permute.default, moves=True)
def permute(builder: Builder, value: Value, order: Sequence[int]) -> Any:
    """The dimensions in another order."""
    order = [dim % value.ndim for dim in order]
    return value if order == sorted(order) else builder.ops.permute(value.any, order)


@translates(aten.transpose.int, moves=True)
def transpose(builder: Builder, value: Value, one: int, other: int) -> Any:
    """Two dimensions exchanged."""
    order = list(range(value.ndim))
    if order:
        order[one], order[other] = order[other], order[one]
    return permute(builder, value, order)


@translates(aten.t.default, moves=True)
def matrix_transpose(builder: Builder, value: Value) -> Any:
    """A matrix transposed; what has fewer dimensions stays."""
    return permute(builder, value, list(range(value.ndim))[::-1])


@translates(aten.unsqueeze.default, moves=True)
def unsqueeze(builder: Builder, value: Value, dim: int) -> Any:
    """A dimension of size one more."""
    return builder.ops.broadcast(value.any, _marked(value.ndim + 1, [dim]))


def _marked(ndim: int, dims: Sequence[int]) -> list[bool]:
    wanted = {dim % ndim for dim in dims}
    return [dim in wanted for dim in range(ndim)]


@translates(aten.squeeze.dims, aten.squeeze.dim, aten.squeeze.default, moves=True)
def squeeze(builder: Builder, value: Value, dims: Any = None) -> Any:
    """Dimensions of size one left out, where they are of size one."""
    named = range(value.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = (
        sorted({dim % value.ndim for dim in named if value.shape[dim] == 1}) if value.ndim else []
    )
    return builder.ops.squeeze(value.any, gone) if gone else value


@translates(aten.expand.default, moves=True)
def expand(builder: Builder, value: Value, sizes: Sequence[Any], implicit: bool) -> Any:
    """Dimensions of size one repeated, and new ones in front."""
    added = len(sizes) - value.ndim
    made = value.any
    if added:
        made = builder.ops.broadcast(made, _marked(len(sizes), range(added)))
    known = [1] * added + list(value.shape)
    wanted = [
        have if isinstance(want, int) and want == -1 else want
        for want, have in zip(sizes, known, strict=True)
    ]
    repeated = [
        -1 if _same_size(builder.result.shape[dim], known[dim]) else wanted[dim]
        for dim in range(len(sizes))
    ]
    if all(isinstance(size, int) and size == -1 for size in repeated):
        return made if added else value
    return builder.ops.expand(made, repeated)


def _same_size(one: Any, other: Any) -> bool:
    return bool(one == other)


@translates(prims.broadcast_in_dim.default, moves=True)
def broadcast_in_dim(
    builder: Builder, value: Value, shape: Sequence[Any], dims: Sequence[int]
) -> Any:
    """Dimensions put in given places, and repeated."""
    return builder.ops.broadcast_in_dim(value.any, list(shape), list(dims))


# Cuts


def cut(builder: Builder, value: Value, dim: int, start: Any, end: Any) -> Any:
    """The elements from `start` to `end`, both within the size, of a dimension counted from zero."""
    if isinstance(start, int) and isinstance(end, int) and end - start == 1:
        # Sizes of one must be nvFuser's broadcast dimensions; those of its slices are not.
        return _position(builder, value.any, value.ndim, dim, start)
    sizes = builder.sizes(value)
    starts: list[Any] = [0] * value.ndim
    ends = list(sizes)
    starts[dim], ends[dim] = start, end
    return builder.ops.slice(value.any, starts, ends)


def _within(position: Any, size: Any, default: Any) -> Any:
    """A position of a slice counted from the front and no further than the size."""
    if position is None:
        return default
    if not isinstance(position, int):
        return position
    if not isinstance(size, int):
        if position < 0:
            raise Untranslatable("a slice from the end of a symbolic size")
        return position
    return max(0, min(size, position + size if position < 0 else position))


@translates(aten.slice.Tensor, moves=True)
def slice_(builder: Builder, value: Value, dim: int, start: Any, end: Any, step: int) -> Any:
    """A slice of one dimension; with steps, the elements are looked up."""
    dim, size = dim % value.ndim, builder.size(value, dim % value.ndim)
    start = _within(start, size, 0)
    end = size if isinstance(end, int) and end >= 2**62 else _within(end, size, size)
    if isinstance(start, int) and start == 0 and end is size and step == 1:
        return value
    if step != 1:
        length = sizes_of(builder.result)[dim]
        if not isinstance(length, int):
            raise Untranslatable("a slice with steps of a symbolic size")
        return builder.ops.index_select(value.any, builder.iota(length, start, step), dim)
    return cut(builder, value, dim, start, end)


@translates(aten.select.int, moves=True)
def select(builder: Builder, value: Value, dim: int, index: Any) -> Any:
    """One position of a dimension."""
    dim = dim % value.ndim
    if isinstance(index, int) and index < 0:
        size = builder.size(value, dim)
        index = index + size if isinstance(size, int) else builder.ops.add(size, index)
    return builder.ops.select(value.any, builder.scalar(index), dim)


@translates(aten.split.Tensor, aten.split_with_sizes.default, moves=True)
def split(builder: Builder, value: Value, sizes: Any, dim: int) -> Any:
    """A dimension cut into pieces, one after the other."""
    dim, start, pieces = dim % value.ndim, 0, []
    for meta in builder.results:
        length = sizes_of(meta)[dim]
        if not isinstance(length, int):
            raise Untranslatable("pieces of symbolic sizes")
        pieces.append(cut(builder, value, dim, start, start + length))
        start += length
    return tuple(pieces)


@translates(aten.unbind.int, moves=True)
def unbind(builder: Builder, value: Value, dim: int) -> Any:
    """Every position of a dimension."""
    return tuple(select(builder, value, dim, index) for index in range(len(builder.results)))


@translates(aten.flip.default, moves=True)
def flip(builder: Builder, value: Value, dims: Sequence[int]) -> Any:
    """Dimensions from back to front."""
    made = value.any
    for dim in dims:
        size = builder.size(value, dim % value.ndim)
        last = size - 1 if isinstance(size, int) else builder.ops.sub(size, 1)
        made = builder.ops.index_select(made, builder.iota(size, last, -1), dim % value.ndim)
    return made


# Put together


def joined(builder: Builder, values: Sequence[Value], dtype: torch.dtype, dim: int) -> Any:
    """Tensors one after the other, all of one dtype."""
    if len(values) == 1:
        return values[0]
    rounded = all(value.dtype == dtype and value.is_rounded for value in values)
    views = [value.exact if rounded else builder.operand(value, dtype) for value in values]
    return builder.ops.cat(views, dim)


@translates(aten.cat.default)
def cat(builder: Builder, values: Sequence[Value], dim: int) -> Any:
    """Tensors one after the other; empty ones of one dimension do not count."""
    parts = [value for value in values if not (value.ndim == 1 and value.shape[0] == 0)] or [
        values[0]
    ]
    return joined(builder, parts, builder.result.dtype, dim % max(parts[0].ndim, 1))


@translates(aten.constant_pad_nd.default)
def pad(builder: Builder, value: Value, widths: Sequence[Any], number: Any) -> Any:
    """Elements of one value before and after; negative widths cut."""
    view, widths = _movable(value), list(widths)
    for position in range(0, len(widths), 2):
        dim = value.ndim - 1 - position // 2
        if widths[position : position + 2] != [0, 0] and _is_one(builder.result.shape[dim]):
            view = _one_left(builder, value, view, dim, widths[position : position + 2])
            widths[position : position + 2] = [0, 0]
    if all(isinstance(width, int) and width == 0 for width in widths):
        return view
    return builder.ops.pad(view, widths, builder.operand(number, value.dtype))


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _one_left(builder: Builder, value: Value, view: Any, dim: int, widths: Sequence[Any]) -> Any:
    """What is cut down to one position, as a broadcast dimension of nvFuser's, which those of its pads are not."""
    before, after = widths
    if not (isinstance(before, int) and isinstance(after, int) and before <= 0 and after <= 0):
        raise Untranslatable("padding to a size of one")
    return _position(builder, view, value.ndim, dim, -before)


def _position(builder: Builder, view: Any, ndim: int, dim: int, index: int) -> Any:
    """One position of a dimension, which stays as a broadcast dimension of nvFuser's."""
    chosen = builder.ops.select(view, builder.scalar(index), dim)
    return builder.ops.broadcast(chosen, _marked(ndim, [dim]))


def _movable(value: Value) -> Any:
    return value.exact if value.is_rounded else value.any


def _padded(builder: Builder, value: Value, dim: int, before: Any, after: Any) -> Any:
    """Zeros before and after, along a dimension."""
    widths: list[Any] = [0, 0] * value.ndim
    position = 2 * (value.ndim - 1 - dim)
    widths[position : position + 2] = [before, after]
    zero = builder.operand(0, value.dtype)
    return builder.ops.pad(value.any, widths, zero)


@translates(aten.slice_backward.default)
def slice_backward(
    builder: Builder, grad: Value, sizes: Sequence[Any], dim: int, start: Any, end: Any, step: int
) -> Any:
    """Zeros of the shape of what was cut, with the gradient in its place."""
    if step != 1:
        raise Untranslatable("the backward of a slice with steps")
    dim = dim % grad.ndim
    size, length = sizes[dim], builder.size(grad, dim)
    if not isinstance(size, int) or not isinstance(length, int):
        raise Untranslatable("the backward of a slice of a symbolic size")
    start = _within(start, size, 0)
    return _padded(builder, grad, dim, start, size - start - length)


@translates(aten.select_backward.default)
def select_backward(
    builder: Builder, grad: Value, sizes: Sequence[Any], dim: int, index: int
) -> Any:
    """Zeros of the shape of what was selected from, with the gradient in its place."""
    size = sizes[dim]
    if not isinstance(size, int):
        raise Untranslatable("the backward of a selection from a symbolic size")
    index, dim = index % size, dim % len(sizes)
    widened = builder.ops.broadcast(grad.any, _marked(len(sizes), [dim]))
    widths = [0, 0] * len(sizes)
    position = 2 * (len(sizes) - 1 - dim)
    widths[position : position + 2] = [index, size - 1 - index]
    return builder.ops.pad(widened, widths, builder.operand(0, grad.dtype))


@translates(aten.slice_scatter.default)
def slice_scatter(
    builder: Builder, value: Value, source: Value, dim: int, start: Any, end: Any, step: int
) -> Any:
    """The value with a slice of it replaced."""
    dim = dim % value.ndim
    size, length = value.shape[dim], source.shape[dim]
    if step != 1 or not isinstance(size, int) or not isinstance(length, int):
        raise Untranslatable("a slice with steps, or of a symbolic size, replaced")
    start = _within(start, size, 0)
    return _replaced(builder, value, source.any, dim, start, start + length)


@translates(aten.select_scatter.default)
def select_scatter(builder: Builder, value: Value, source: Value, dim: int, index: int) -> Any:
    """The value with one position of a dimension replaced."""
    dim = dim % value.ndim
    size = value.shape[dim]
    if not isinstance(size, int):
        raise Untranslatable("a position of a symbolic size replaced")
    widened = builder.ops.broadcast(source.any, _marked(value.ndim, [dim]))
    return _replaced(builder, value, widened, dim, index % size, index % size + 1)


def _replaced(builder: Builder, value: Value, source: Any, dim: int, start: int, end: int) -> Any:
    size = value.shape[dim]
    parts = [cut(builder, value, dim, 0, start)] if start else []
    parts.append(source)
    if end < size:
        parts.append(cut(builder, value, dim, end, size))
    dtype = value.any.dtype()
    parts = [
        part if part.dtype() == dtype else builder.ops.cast(part, dtype=dtype) for part in parts
    ]
    return builder.ops.cat(parts, dim) if len(parts) > 1 else parts[0]
