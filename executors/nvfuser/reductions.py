"""Reductions and scans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracemill.executors.nvfuser.builder import Builder
from tracemill.executors.nvfuser.library import data_type
from tracemill.executors.nvfuser.pointwise import truth
from tracemill.executors.nvfuser.registry import Untranslatable, translates
from tracemill.executors.nvfuser.values import Value

aten = torch.ops.aten


def dimensions(value: Value, dims: int | Sequence[int] | None) -> list[int]:
    """The dimensions to reduce, from zero; all where none are named."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return list(range(value.ndim))
    named = [dims] if isinstance(dims, int) else dims
    return sorted(dim % max(value.ndim, 1) for dim in named) if value.ndim else []


def count(builder: Builder, value: Value, dims: Sequence[int]) -> Any:
    """How many elements are reduced to one."""
    product: Any = 1
    for dim in dims:
        size = builder.size(value, dim)
        both = isinstance(product, int) and isinstance(size, int)
        product = product * size if both else builder.ops.mul(product, size)
    return product


def _reduced(
    builder: Builder, name: str, operand: Any, dims: Sequence[int], keepdim: bool, **kwargs: Any
) -> Any:
    if not dims:  # of a single number
        return operand
    operand = builder.to_reduce(operand, name)
    return getattr(builder.ops, name)(operand, list(dims), keepdim=keepdim, **kwargs)


@translates(aten.sum.dim_IntList)
def sum_dims(builder: Builder, value: Value, dims: Any, keepdim: bool, dtype: Any) -> Any:
    """The sum over dimensions."""
    return _total(builder, "sum", value, dimensions(value, dims), keepdim)


@translates(aten.sum.default)
def sum_all(builder: Builder, value: Value, dtype: Any) -> Any:
    """The sum of all elements."""
    return _total(builder, "sum", value, dimensions(value, None), False)


@translates(aten.prod.default)
def prod_all(builder: Builder, value: Value, dtype: Any) -> Any:
    """The product of all elements."""
    return _total(builder, "prod", value, dimensions(value, None), False)


@translates(aten.prod.dim_int)
def prod_dim(builder: Builder, value: Value, dim: int, keepdim: bool, dtype: Any) -> Any:
    """The product over a dimension."""
    return _total(builder, "prod", value, dimensions(value, dim), keepdim)


def _total(builder: Builder, name: str, value: Value, dims: Sequence[int], keepdim: bool) -> Any:
    operand = builder.operand(value, builder.result.dtype)
    return _reduced(builder, name, operand, dims, keepdim)


@translates(aten.mean.dim)
def mean_dims(builder: Builder, value: Value, dims: Any, keepdim: bool, dtype: Any) -> Any:
    """The mean over dimensions."""
    dims = dimensions(value, dims)
    total = _total(builder, "sum", value, dims, keepdim)
    return builder.ops.truediv(total, _as_float(builder, count(builder, value, dims)))


@translates(aten.mean.default)
def mean_all(builder: Builder, value: Value, dtype: Any) -> Any:
    """The mean of all elements."""
    return mean_dims(builder, value, None, False, dtype)


def _as_float(builder: Builder, number: Any) -> Any:
    if isinstance(number, int):
        return float(number)
    return builder.operand(number, torch.float64)


def _extreme(name: str) -> Any:
    def write(builder: Builder, value: Value, dims: Any = None, keepdim: bool = False) -> Any:
        if value.dtype == torch.bool:
            raise Untranslatable("an extreme of booleans")
        return _reduced(builder, name, value.computed, dimensions(value, dims), keepdim)

    return write


translates(aten.amax.default, aten.max.default)(_extreme("max"))
translates(aten.amin.default, aten.min.default)(_extreme("min"))


# A statement about all, or any, elements: how many fail, or hold. Where dimensions are named and they are none, each
# element is by itself.


@translates(aten.any.default, aten.any.dim, aten.any.dims)
def any_true(builder: Builder, value: Value, dims: Any = None, keepdim: bool = False) -> Any:
    """Whether any element is true."""
    true = truth(builder, value)
    return true if dims == [] else builder.ops.gt(_number(builder, true, value, dims, keepdim), 0)


@translates(aten.all.default, aten.all.dim, aten.all.dims)
def all_true(builder: Builder, value: Value, dims: Any = None, keepdim: bool = False) -> Any:
    """Whether all elements are true."""
    true = truth(builder, value)
    if dims == []:
        return true
    false = builder.ops.logical_not(true)
    return builder.ops.eq(_number(builder, false, value, dims, keepdim), 0)


def _number(builder: Builder, truths: Any, value: Value, dims: Any, keepdim: bool) -> Any:
    ones = builder.ops.cast(truths, dtype=data_type(torch.int64))
    return _reduced(builder, "sum", ones, dimensions(value, dims), keepdim)


@translates(aten.var_mean.correction)
def var_mean(
    builder: Builder, value: Value, dims: Any, correction: Any, keepdim: bool
) -> tuple[Any, Any]:
    """Variance and mean; a correction of one unless another is given."""
    dims, correction = dimensions(value, dims), 1 if correction is None else correction
    if not dims:
        raise Untranslatable("the variance of a single number")
    if correction != int(correction):
        raise Untranslatable("a variance with a broken correction")
    operand = builder.to_reduce(value.computed, "sum")
    variance, mean = builder.ops.var_mean(operand, dims, int(correction), keepdim)
    return variance, mean


@translates(aten.var.correction)
def var(builder: Builder, value: Value, dims: Any, correction: Any, keepdim: bool) -> Any:
    """The variance; a correction of one unless another is given."""
    return var_mean(builder, value, dims, correction, keepdim)[0]


def _scan(name: str) -> Any:
    """Kept apart from what is before and after: nvFuser does not compile every kernel that scans and does more."""

    def write(builder: Builder, value: Value, dim: int, dtype: Any) -> Any:
        ops, operand = builder.ops, builder.operand(value, builder.result.dtype)
        if not value.ndim:
            return operand
        return ops.segment_set(getattr(ops, name)(ops.segment_set(operand), dim % value.ndim))

    return write


translates(aten.cumsum.default)(_scan("cumsum"))
translates(aten.cumprod.default)(_scan("cumprod"))
