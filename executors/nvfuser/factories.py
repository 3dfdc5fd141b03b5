"""Tensors made from numbers, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracemill.executors.nvfuser.builder import Builder
from tracemill.executors.nvfuser.library import computed_dtype, data_type
from tracemill.executors.nvfuser.registry import Untranslatable, translates
from tracemill.executors.nvfuser.values import Value

aten, prims = torch.ops.aten, torch.ops.prims


@translates(aten.full.default)
def full(builder: Builder, sizes: Sequence[Any], number: Any, *_: Any) -> Any:
    """One number everywhere."""
    return builder.full(sizes, number, builder.result.dtype)


@translates(aten.full_like.default, aten.fill.Scalar)
def full_like(builder: Builder, value: Value, number: Any, *_: Any) -> Any:
    """One number everywhere, in the shape of another tensor."""
    return builder.full(builder.sizes(value), number, builder.result.dtype)


@translates(aten.new_full.default)
def new_full(builder: Builder, value: Value, sizes: Sequence[Any], number: Any, *_: Any) -> Any:
    """One number everywhere."""
    return builder.full(sizes, number, builder.result.dtype)


@translates(
    aten.zeros.default,
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_permuted.default,
)
def zeros(builder: Builder, sizes: Sequence[Any], *_: Any) -> Any:
    """Zeros; also where the program leaves open what is there."""
    return builder.full(sizes, 0, builder.result.dtype)


@translates(aten.ones.default)
def ones(builder: Builder, sizes: Sequence[Any], *_: Any) -> Any:
    """Ones."""
    return builder.full(sizes, 1, builder.result.dtype)


@translates(aten.zeros_like.default, aten.empty_like.default)
def zeros_like(builder: Builder, value: Value, *_: Any) -> Any:
    """Zeros in the shape of another tensor; also where the program leaves open what is there."""
    return builder.full(builder.sizes(value), 0, builder.result.dtype)


@translates(aten.new_zeros.default, aten.new_empty.default)
def new_zeros(builder: Builder, value: Value, sizes: Sequence[Any], *_: Any) -> Any:
    """Zeros; also where the program leaves open what is there."""
    return builder.full(sizes, 0, builder.result.dtype)


@translates(aten.new_ones.default)
def new_ones(builder: Builder, value: Value, sizes: Sequence[Any], *_: Any) -> Any:
    """Ones."""
    return builder.full(sizes, 1, builder.result.dtype)


@translates(aten.ones_like.default)
def ones_like(builder: Builder, value: Value, *_: Any) -> Any:
    """Ones in the shape of another tensor."""
    return builder.full(builder.sizes(value), 1, builder.result.dtype)


@translates(aten.scalar_tensor.default)
def scalar_tensor(builder: Builder, number: Any, *_: Any) -> Any:
    """A number as a tensor without dimensions."""
    return builder.full([], number, builder.result.dtype)


@translates(aten.arange.start_step)
def arange(builder: Builder, start: Any, end: Any, step: Any, *_: Any) -> Any:
    """start, start + step, ..., each computed by itself."""
    dtype, ops = builder.result.dtype, builder.ops
    length: Any = builder.result.shape[0]
    if not isinstance(length, int):
        length = _steps(builder, start, end, step)
    if not dtype.is_floating_point:
        return builder.iota(length, *(builder.operand(number, dtype) for number in (start, step)))
    positions = ops.cast(builder.iota(length), dtype=data_type(computed_dtype(dtype)))
    scaled = ops.mul(positions, builder.operand(step, dtype))
    return ops.add(scaled, builder.operand(start, dtype))


def _steps(builder: Builder, start: Any, end: Any, step: Any) -> Any:
    """How many steps it is from one size to another, the last one not always whole."""
    if not isinstance(step, int) or any(isinstance(number, float) for number in (start, end)):
        raise Untranslatable("a range of a symbolic size by other than whole numbers")
    ops = builder.ops
    way = ops.sub(end, start)
    if step == 1:
        return way
    return ops.div(ops.add(way, step - (1 if step > 0 else -1)), step)


@translates(prims.iota.default)
def iota(builder: Builder, length: Any, start: Any, step: Any, *_: Any) -> Any:
    """start, start + step, ... as integers."""
    return builder.iota(length, start, step)


# Random numbers: each draw has an offset of its own, so that no two see the same numbers.


def _drawn(builder: Builder, distribution: str, sizes: Sequence[Any], dtype: torch.dtype) -> Any:
    """Numbers that are `uniform` from zero to one, or `normal` of mean zero and deviation one."""
    seed, offset = builder.random_state()
    return getattr(builder.ops, distribution)(
        0.0,
        1.0,
        list(sizes),
        rng_seed=seed,
        rng_offset=offset,
        dtype=data_type(computed_dtype(dtype)),
    )


def _draw(distribution: str) -> Any:
    def write(builder: Builder, shaped: Value | Sequence[Any], *_: Any) -> Any:
        sizes = builder.sizes(shaped) if isinstance(shaped, Value) else shaped
        return _drawn(builder, distribution, sizes, builder.result.dtype)

    return write


translates(aten.rand.default, aten.rand_like.default)(_draw("uniform"))
translates(aten.randn.default, aten.randn_like.default)(_draw("normal"))


@translates(aten.bernoulli.p)
def bernoulli(builder: Builder, value: Value, probability: float, generator: Any) -> Any:
    """Ones with a probability, zeros otherwise."""
    drawn = _drawn(builder, "uniform", builder.sizes(value), torch.float32)
    return builder.ops.lt(drawn, float(probability))


@translates(aten.native_dropout.default)
def native_dropout(
    builder: Builder, value: Value, probability: float, train: bool | None
) -> tuple[Any, Any]:
    """The value with elements left out and the rest scaled up; and which were kept."""
    ops, dtype = builder.ops, value.dtype
    if train is False or probability == 0.0:
        return value, ops.full(builder.sizes(value), True, dtype=data_type(torch.bool))
    if probability == 1.0:
        zeros = builder.full(builder.sizes(value), 0, dtype)
        return zeros, ops.full(builder.sizes(value), False, dtype=data_type(torch.bool))
    kept = ops.lt(
        _drawn(builder, "uniform", builder.sizes(value), torch.float32), 1.0 - probability
    )
    zeroed = ops.mul(value.computed, ops.cast(kept, dtype=data_type(computed_dtype(dtype))))
    return ops.mul(zeroed, 1.0 / (1.0 - probability)), kept
