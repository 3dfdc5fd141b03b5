"""Pointwise operations: arithmetic, mathematical functions, comparisons, logic, choices and casts."""

from __future__ import annotations

import math
from typing import Any

import torch

from tracemill.executors.nvfuser.builder import Builder, rounded
from tracemill.executors.nvfuser.library import HALF_TYPES
from tracemill.executors.nvfuser.registry import Untranslatable, translates
from tracemill.executors.nvfuser.values import Value

aten, prims = torch.ops.aten, torch.ops.prims

# Functions of one tensor, of the same name for both; a tensor of integers gives floats where the result has them.
_FUNCTIONS = (
    "abs acos acosh asin asinh atan atanh cos cosh erf erfc erfinv exp exp2 expm1 lgamma log log10 log1p log2 neg "
    "reciprocal rsqrt sigmoid sign silu sin sinh sqrt tan tanh"
)
_ROUNDINGS = "ceil floor round trunc frac"
_TESTS = "isinf isnan isposinf isneginf signbit"


def _function(name: str, integers: bool = True) -> Any:
    def write(builder: Builder, value: Value) -> Any:
        operand = builder.operand(value, builder.result.dtype)
        if not builder.result.dtype.is_floating_point:
            if not integers:
                return value
            if builder.result.dtype == torch.bool:
                raise Untranslatable(f"{name} of booleans")
        return getattr(builder.ops, name)(operand)

    return write


def _test(name: str) -> Any:
    def write(builder: Builder, value: Value) -> Any:
        if not value.dtype.is_floating_point:
            raise Untranslatable(f"{name} of {value.dtype}")
        return getattr(builder.ops, name)(value.computed)

    return write


for _name in _FUNCTIONS.split():
    translates(getattr(aten, _name).default)(_function(_name))


@translates(aten.relu.default)
def relu(builder: Builder, value: Value) -> Any:
    """The value, or zero where it is below; of integers, for which nvFuser's own goes through floats, the greater one."""
    dtype = builder.result.dtype
    operand = builder.operand(value, dtype)
    if dtype.is_floating_point:
        return builder.ops.relu(operand)
    return builder.ops.maximum(operand, builder.operand(0, dtype))


for _name in _ROUNDINGS.split():
    translates(getattr(aten, _name).default)(_function(_name, integers=False))
for _name in _TESTS.split():
    translates(getattr(aten, _name).default)(_test(_name))


# Arithmetic


@translates(aten.add.Tensor, aten.add.Scalar)
def add(builder: Builder, left: Any, right: Any, alpha: Any) -> Any:
    """left + alpha * right."""
    dtype = _arithmetic_dtype(builder)
    left, right = builder.operand(left, dtype), builder.operand(right, dtype)
    return builder.ops.add(left, _scaled(builder, right, alpha, dtype))


@translates(aten.sub.Tensor, aten.sub.Scalar)
def sub(builder: Builder, left: Any, right: Any, alpha: Any) -> Any:
    """left - alpha * right."""
    dtype = _arithmetic_dtype(builder)
    left, right = builder.operand(left, dtype), builder.operand(right, dtype)
    return builder.ops.sub(left, _scaled(builder, right, alpha, dtype))


@translates(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(builder: Builder, left: Any, right: Any, alpha: Any) -> Any:
    """right - alpha * left."""
    return sub(builder, right, left, alpha)


def _arithmetic_dtype(builder: Builder) -> torch.dtype:
    """The result's dtype; booleans are added and multiplied as integers."""
    dtype = builder.result.dtype
    return torch.int64 if dtype == torch.bool else dtype


def _scaled(builder: Builder, operand: Any, alpha: Any, dtype: torch.dtype) -> Any:
    if isinstance(alpha, (int, float)) and alpha == 1:
        return operand
    return builder.ops.mul(operand, builder.operand(alpha, dtype))


def _overloads(packet: Any) -> list[Any]:
    """Those of tensors, and of a tensor and a number; a `default` beside them is one of numbers alone."""
    names = packet.overloads()
    tensors = packet.Tensor if "Tensor" in names else packet.default
    return [tensors, packet.Scalar] if "Scalar" in names else [tensors]


def _arithmetic(name: str) -> Any:
    def write(builder: Builder, left: Any, right: Any) -> Any:
        dtype = _arithmetic_dtype(builder)
        return getattr(builder.ops, name)(
            builder.operand(left, dtype), builder.operand(right, dtype)
        )

    return write


for _name in ("mul", "atan2", "maximum", "minimum", "fmod", "nextafter", "gcd"):
    translates(*_overloads(getattr(aten, _name)))(_arithmetic(_name))


@translates(aten.div.Tensor, aten.div.Scalar)
def div(builder: Builder, left: Any, right: Any) -> Any:
    """left / right, in floats."""
    dtype = builder.result.dtype
    return builder.ops.truediv(builder.operand(left, dtype), builder.operand(right, dtype))


@translates(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(builder: Builder, left: Any, right: Any) -> Any:
    """What is left of a division, of the divisor's sign."""
    dtype = builder.result.dtype
    return builder.ops.remainder(builder.operand(left, dtype), builder.operand(right, dtype))


@translates(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(builder: Builder, left: Any, right: Any, mode: str | None) -> Any:
    """A division, its result rounded down or towards zero."""
    dtype, ops = builder.result.dtype, builder.ops
    left, right = builder.operand(left, dtype), builder.operand(right, dtype)
    if mode is None:
        return ops.truediv(left, right)
    if dtype.is_floating_point:
        return (
            _floor_divided(builder, left, right)
            if mode == "floor"
            else _truncated(builder, left, right)
        )
    quotient = ops.div(left, right)
    if mode == "trunc":
        return quotient
    rest = ops.sub(left, ops.mul(quotient, right))
    differ = ops.ne(ops.lt(rest, 0), ops.lt(right, 0))
    return ops.where(ops.logical_and(ops.ne(rest, 0), differ), ops.sub(quotient, 1), quotient)


@translates(aten.floor_divide.default)
def floor_divide(builder: Builder, left: Any, right: Any) -> Any:
    """left // right."""
    return div_mode(builder, left, right, "floor")


def _truncated(builder: Builder, left: Any, right: Any) -> Any:
    return builder.ops.trunc(builder.ops.truediv(left, right))


def _floor_divided(builder: Builder, left: Any, right: Any) -> Any:
    """As PyTorch does it: exact multiples stay exact, where the rounded quotient would jump over one."""
    ops = builder.ops
    rest = ops.fmod(left, right)
    quotient = ops.truediv(ops.sub(left, rest), right)
    differ = ops.ne(ops.lt(rest, 0.0), ops.lt(right, 0.0))
    quotient = ops.where(
        ops.logical_and(ops.ne(rest, 0.0), differ), ops.sub(quotient, 1.0), quotient
    )
    rounded = ops.floor(quotient)
    rounded = ops.where(ops.gt(ops.sub(quotient, rounded), 0.5), ops.add(rounded, 1.0), rounded)
    plain = ops.truediv(left, right)
    rounded = ops.where(ops.eq(quotient, 0.0), ops.mul(plain, 0.0), rounded)
    return ops.where(ops.eq(right, 0.0), plain, rounded)


@translates(aten.pow.Tensor_Scalar)
def pow_number(builder: Builder, base: Value, exponent: Any) -> Any:
    """base ** exponent; the frequent exponents as PyTorch's kernels compute them."""
    dtype, ops = builder.result.dtype, builder.ops
    operand = builder.operand(base, dtype)
    if exponent == 1:
        return base
    if exponent == 2:
        return ops.mul(operand, operand)
    if exponent == 3:
        return ops.mul(ops.mul(operand, operand), operand)
    if dtype.is_floating_point:
        for number, name in ((0.5, "sqrt"), (-0.5, "rsqrt"), (-1, "reciprocal")):
            if exponent == number:
                return getattr(ops, name)(operand)
    return ops.pow(operand, builder.operand(exponent, dtype))


@translates(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensors(builder: Builder, base: Any, exponent: Any) -> Any:
    """base ** exponent."""
    dtype = builder.result.dtype
    return builder.ops.pow(builder.operand(base, dtype), builder.operand(exponent, dtype))


# Comparisons and logic


def _comparison(name: str) -> Any:
    def write(builder: Builder, left: Any, right: Any) -> Any:
        dtype = compared_dtype(left, right)
        left, right = (rounded(operand, dtype) for operand in (left, right))
        dtype = torch.int64 if dtype == torch.bool else dtype
        return getattr(builder.ops, name)(
            builder.operand(left, dtype), builder.operand(right, dtype)
        )

    return write


def compared_dtype(left: Any, right: Any) -> torch.dtype:
    """The dtype that two operands are brought to, as PyTorch says."""
    return torch.result_type(
        *(
            operand.meta if isinstance(operand, Value) else _number(operand)
            for operand in (left, right)
        )
    )


def _number(operand: Any) -> Any:
    """A number in place of a scalar of nvFuser's: of those, only sizes are compared."""
    return operand if isinstance(operand, (bool, int, float)) else 1


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    translates(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_comparison(_name))


def truth(builder: Builder, value: Value) -> Any:
    """Which elements are not zero."""
    if value.dtype == torch.bool:
        return value.exact
    return builder.ops.ne(value.computed, builder.operand(0, value.dtype))


@translates(aten.logical_not.default)
def logical_not(builder: Builder, value: Value) -> Any:
    """not value."""
    return builder.ops.logical_not(truth(builder, value))


@translates(aten.logical_and.default)
def logical_and(builder: Builder, left: Value, right: Value) -> Any:
    """left and right."""
    return builder.ops.logical_and(truth(builder, left), truth(builder, right))


@translates(aten.logical_or.default)
def logical_or(builder: Builder, left: Value, right: Value) -> Any:
    """left or right."""
    return builder.ops.logical_or(truth(builder, left), truth(builder, right))


@translates(aten.logical_xor.default)
def logical_xor(builder: Builder, left: Value, right: Value) -> Any:
    """One of the two, and not both."""
    return builder.ops.bitwise_xor(truth(builder, left), truth(builder, right))


# Choices


@translates(aten.where.self)
def where(builder: Builder, condition: Value, left: Value, right: Value) -> Any:
    """left where the condition holds, right elsewhere."""
    dtype = builder.result.dtype
    return builder.ops.where(
        truth(builder, condition), builder.operand(left, dtype), builder.operand(right, dtype)
    )


@translates(aten.clamp.default, aten.clamp.Tensor)
def clamp(builder: Builder, value: Value, low: Any, high: Any) -> Any:
    """The value, brought between two bounds, of which one may be None."""
    dtype = builder.result.dtype
    made = builder.operand(value, dtype)
    bounds = [(low, "maximum"), (high, "minimum")]
    bounds = [(bound, name) for bound, name in bounds if bound is not None]
    for bound, name in bounds:
        if len(bounds) > 1 or not _is_nan(bound):  # as a single bound, PyTorch passes over it
            made = getattr(builder.ops, name)(made, builder.operand(bound, dtype))
    return made


def _is_nan(number: Any) -> bool:
    return isinstance(number, float) and math.isnan(number)


@translates(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(builder: Builder, value: Value, low: Any) -> Any:
    """The value, or the bound where it is below."""
    return clamp(builder, value, low, None)


@translates(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(builder: Builder, value: Value, high: Any) -> Any:
    """The value, or the bound where it is above."""
    return clamp(builder, value, None, high)


# Casts


@translates(aten._to_copy.default)
def to_copy(
    builder: Builder,
    value: Value,
    dtype: torch.dtype | None,
    layout: Any,
    device: torch.device | None,
    pin_memory: Any,
    non_blocking: bool,
    memory_format: Any,
) -> Any:
    """A cast that the program asks for: a half type is rounded here."""
    if builder.result.device != value.meta.device:
        raise Untranslatable("a copy to another device")
    wanted = builder.result.dtype
    if wanted in HALF_TYPES and wanted != value.dtype:
        return Value(value.as_type(wanted), builder.result)
    return convert_element_type(builder, value, wanted)


@translates(prims.convert_element_type.default)
def convert_element_type(builder: Builder, value: Value, dtype: torch.dtype) -> Any:
    """A cast that a decomposition makes: a half type stays as it is computed with."""
    if value.dtype == dtype:
        return value
    return truth(builder, value) if dtype == torch.bool else builder.operand(value, dtype)


@translates(
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    moves=True,
)
def same(builder: Builder, value: Value, *_: Any) -> Any:
    """The value itself: memory is no matter inside a definition, and outputs are laid out as PyTorch says."""
    return value
