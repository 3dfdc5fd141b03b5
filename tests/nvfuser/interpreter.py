"""Definitions run by PyTorch on the CPU: the Python that nvFuser prints of them, on operations of the same meaning.

What is computed is what nvFuser computes, dtypes included: arithmetic on half types gives float32, an operation of
integers with a Python float float64. Constants are printed with six digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from tests.nvfuser import flash, philox

TYPES = SimpleNamespace(
    Double=torch.float64,
    Float=torch.float32,
    Half=torch.float16,
    BFloat16=torch.bfloat16,
    UInt64=torch.uint64,
    Int=torch.int64,
    Int32=torch.int32,
    Index=torch.int64,
    Bool=torch.bool,
)
"""nvFuser's names of dtypes."""

Tensor = torch.Tensor


def run(text: str, inputs: Sequence[Any]) -> list[Tensor]:
    """The outputs of a printed definition; `inputs` are CPU tensors and numbers, in its order."""
    names: dict[str, Any] = {
        "DataType": TYPES,
        "FusionDefinition": Definition,
        "inf": math.inf,
        "nan": math.nan,
    }
    exec(text, names)
    definition = Definition(inputs)
    names["nvfuser_fusion"](definition)
    assert next(definition.inputs, None) is None, "more inputs than the definition takes"
    return definition.outputs


class Definition:
    """What a printed definition calls `fd`."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.inputs: Iterator[Any] = iter(inputs)
        self.outputs: list[Tensor] = []
        self.ops = Operations()

    def define_tensor(
        self,
        shape: Sequence[int],
        contiguity: Sequence[bool | None],
        dtype: torch.dtype = torch.float32,
        is_cpu: bool = False,
        stride_order: Sequence[int] = (),
    ) -> Tensor:
        """The next input, which must be as it is defined."""
        tensor = next(self.inputs)
        assert tensor.dtype == dtype
        assert len(tensor.shape) == len(shape)
        assert all(want in (-1, have) for want, have in zip(shape, tensor.shape, strict=True))
        return tensor

    def define_scalar(self, value: Any = None, dtype: torch.dtype = torch.float64) -> Any:
        """The next input, or a constant."""
        return next(self.inputs) if value is None else value

    def add_output(self, tensor: Tensor) -> None:
        """One more output, laid out in the order of dimensions unless another order is asked for."""
        ordered = any(tensor is other for other in self.ops.ordered)
        self.outputs.append(tensor if ordered else tensor.contiguous())


def is_half(value: Any) -> bool:
    """Whether a value is a tensor of a half type."""
    return isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def widened(value: Any) -> Any:
    """A half type as float32, as arithmetic takes it."""
    return value.float() if is_half(value) else value


def floating(value: Any) -> Any:
    """Integers as float32 too, as mathematical functions take them."""
    value = widened(value)
    if isinstance(value, Tensor) and not value.is_floating_point():
        return value.float()
    return value


def refused_of_half(value: Any) -> Any:
    """The value; half types are not compiled for the operation."""
    assert not is_half(value), "nvFuser does not compile this for half types"
    return value


_TO_FLOATS = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc erfinv exp exp2 expm1 lgamma log log10 log1p log2 reciprocal "
    "rsqrt sigmoid sin sinh sqrt tan tanh"
)
_AS_THEY_ARE = "abs neg sign"
_NOT_OF_HALF = "ceil floor round trunc frac isfinite isinf isnan isneginf isposinf signbit"
_LOGIC = "logical_not bitwise_not"


def _each(names: str, prepare: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """PyTorch's functions of these names, of an argument that is prepared first."""

    def prepared(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda value: function(prepare(value))

    return {name: prepared(getattr(torch, name)) for name in names.split()}


_UNARY = {
    **_each(_TO_FLOATS, floating),
    **_each(_AS_THEY_ARE, widened),
    **_each(_NOT_OF_HALF, refused_of_half),
    **_each(_LOGIC, lambda value: value),
    "silu": lambda value: F.silu(refused_of_half(value)),
    "relu": lambda value: torch.relu(refused_of_half(floating(value))).to(value.dtype),
}


def _unary(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        return _UNARY[name](value)
    return _UNARY[name](torch.tensor(value, dtype=torch.float64)).item()


def _divided(left: Any, right: Any) -> Any:
    whole = not any(
        operand.is_floating_point() if isinstance(operand, Tensor) else isinstance(operand, float)
        for operand in (left, right)
    )
    return torch.div(left, right, rounding_mode="trunc" if whole else None)


_NAMED = "add atan2 fmod mul nextafter pow remainder sub minimum maximum gcd"
_COMPARED = "eq ge gt le lt ne"
_BITS = "logical_and logical_or bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift"
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(torch, name) for name in f"{_NAMED} {_COMPARED} {_BITS}".split()},
    "div": _divided,
    "truediv": torch.true_divide,
}
_OF_TENSORS = f"{_BITS} atan2 nextafter gcd minimum maximum".split()


def _binary(name: str, left: Any, right: Any) -> Any:
    numbers = [operand for operand in (left, right) if not isinstance(operand, Tensor)]
    if len(numbers) == 2:
        return _BINARY[name](torch.as_tensor(left), torch.as_tensor(right)).item()
    left, right = widened(left), widened(right)
    tensor = left if isinstance(left, Tensor) else right
    if isinstance(numbers[:1] and numbers[0], float) and not tensor.is_floating_point():
        left, right = (x.double() if isinstance(x, Tensor) else x for x in (left, right))
    if name in _OF_TENSORS:
        left, right = (
            x if isinstance(x, Tensor) else torch.full((), x, dtype=tensor.dtype)
            for x in (left, right)
        )
    if not numbers:
        assert left.dtype == right.dtype, f"{name} of {left.dtype} and {right.dtype}"
    return _BINARY[name](left, right)


def _dims(tensor: Tensor, dims: Any) -> list[int]:
    if dims is None:
        return list(range(tensor.dim()))
    return [dims] if isinstance(dims, int) else list(dims)


def _product(value: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    for dim in sorted((dim % value.dim() for dim in dims), reverse=True):
        value = value.prod(dim, keepdim=keepdim)
    return value


_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum,
    "prod": _product,
    "max": torch.amax,
    "min": torch.amin,
}


def _reduced(
    name: str, value: Tensor, dims: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    value = value if name == "max" else refused_of_half(value)
    return _REDUCTIONS[name](
        value if dtype is None else value.to(dtype), _dims(value, dims), keepdim
    )


class Operations:
    """What a printed definition calls `fd.ops`."""

    def __init__(self) -> None:
        self.ordered: list[Tensor] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in _UNARY:
            return lambda value: _unary(name, value)
        if name in _BINARY:
            return lambda left, right: _binary(name, left, right)
        if name in _REDUCTIONS:
            return partial(_reduced, name)
        raise NotImplementedError(name)

    # Pointwise

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Tensor):
            return value.to(dtype)
        return torch.tensor(value).to(dtype).item()

    def set(self, value: Any) -> Any:
        return value

    segment_set = set

    def where(self, condition: Any, left: Any, right: Any) -> Any:
        if not isinstance(condition, Tensor):
            return left if condition else right
        dtype = next((x.dtype for x in (left, right) if isinstance(x, Tensor)), None)
        return torch.where(
            condition,
            *(
                x if isinstance(x, Tensor) else torch.full((), x, dtype=dtype)
                for x in (left, right)
            ),
        )

    # Reductions

    def var_mean(self, value: Tensor, dims: Any, correction: int = 1, keepdim: bool = False) -> Any:
        return torch.var_mean(value, _dims(value, dims), correction=correction, keepdim=keepdim)

    def welford(self, value: Tensor, dims: Any) -> Any:
        dims = _dims(value, dims)
        count = math.prod(value.shape[dim] for dim in dims)
        mean = value.mean(dims)
        return mean, value.var(dims, correction=0) * count, torch.full(mean.shape, count)

    def cumsum(self, value: Tensor, dim: int) -> Tensor:
        return value.cumsum(dim)

    def cumprod(self, value: Tensor, dim: int) -> Tensor:
        return value.cumprod(dim)

    # Products and attention

    def matmul(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right

    def linear(self, value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(value, weight, bias)

    sdpfa_fwd = staticmethod(flash.forward)
    sdpfa_bwd = staticmethod(flash.backward)

    # Shape

    def broadcast(self, value: Tensor, is_broadcast_dim: Sequence[bool]) -> Tensor:
        for dim, is_new in enumerate(is_broadcast_dim):
            if is_new:
                value = value.unsqueeze(dim)
        return value

    def expand(self, value: Tensor, shape: Sequence[int]) -> Tensor:
        return value.expand(list(shape))

    def broadcast_in_dim(
        self, value: Tensor, shape: Sequence[int], broadcast_dims: Sequence[int]
    ) -> Tensor:
        return self.expand(
            self.broadcast(value, [dim not in broadcast_dims for dim in range(len(shape))]), shape
        )

    def reshape(self, value: Tensor, new_shape: Sequence[int]) -> Tensor:
        return value.reshape(list(new_shape))

    def permute(self, value: Tensor, dims: Sequence[int]) -> Tensor:
        return value.permute(list(dims))

    def squeeze(self, value: Tensor, dims: Sequence[int], squeeze_expanded: bool = False) -> Tensor:
        assert squeeze_expanded or all(value.shape[dim] == 1 for dim in dims)
        return value[tuple(0 if dim in dims else slice(None) for dim in range(value.dim()))]

    def slice(
        self,
        value: Tensor,
        start_indices: Sequence[int],
        end_indices: Sequence[int],
        strides: Sequence[int] | None = None,
        manual_normalization: bool = False,
    ) -> Tensor:
        pairs = zip(start_indices, end_indices, strict=True)
        return value[tuple(slice(start, end) for start, end in pairs)]

    def stride_order(self, value: Tensor, stride_order: Sequence[int]) -> Tensor:
        if not stride_order:  # so it prints where that is the order of dimensions
            stride_order = range(value.dim())[::-1]
        outer_first = sorted(range(value.dim()), key=lambda dim: -stride_order[dim])
        back = [outer_first.index(dim) for dim in range(value.dim())]
        self.ordered.append(value.permute(outer_first).contiguous().permute(back))
        return self.ordered[-1]

    def size(self, value: Tensor, dim: int) -> int:
        return value.shape[dim]

    def shape(self, value: Tensor) -> list[int]:
        return list(value.shape)

    def pad(self, arg: Tensor, pad_widths: Sequence[int], value: Any = None) -> Tensor:
        return F.pad(arg, list(pad_widths), value=0 if value is None else value)

    def cat(self, tensors: Sequence[Tensor], dim: int = 0, manual_padding: bool = False) -> Tensor:
        assert len({tensor.dtype for tensor in tensors}) == 1
        if not manual_padding:
            return torch.cat(list(tensors), dim)
        return torch.stack(list(tensors)).sum(0, dtype=tensors[0].dtype)  # padded to the full size

    # Looked up

    def index_select(self, value: Tensor, index: Tensor, dim: int) -> Tensor:
        return value.index_select(dim, index.reshape(-1))  # it is printed with value's dimensions

    def select(self, value: Tensor, index: int, dim: int) -> Tensor:
        return value.select(dim, index)

    def gather(self, value: Tensor, index: Tensor, dim: int) -> Tensor:
        return value.gather(dim, index)

    def scatter(self, value: Tensor, index: Tensor, src: Any, dim: int) -> Tensor:
        return value.scatter(dim, index, src)

    # Made of numbers

    def iota(
        self, length: int, start: Any = 0, step: Any = 1, dtype: torch.dtype = torch.int64
    ) -> Tensor:
        return torch.arange(length, dtype=dtype) * step + start

    def full(self, shape: Sequence[int], fill_value: Any, dtype: torch.dtype) -> Tensor:
        return torch.full(list(shape), fill_value, dtype=dtype)

    def uniform(self, low: float, high: float, *drawn: Any, **how: Any) -> Tensor:
        return _drawn(philox.uniform, *drawn, **how) * (high - low) + low

    def normal(self, mean: float, deviation: float, *drawn: Any, **how: Any) -> Tensor:
        return _drawn(philox.normal, *drawn, **how) * deviation + mean


def _drawn(
    distribution: Callable[..., Tensor],
    shape: Sequence[int],
    *,
    rng_seed: int,
    rng_offset: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    return distribution(shape, rng_seed, rng_offset, dtype)
