"""Operations on the bits of integers, and on booleans as bits."""

from __future__ import annotations

from typing import Any

import torch

from tracemill.executors.nvfuser.builder import Builder
from tracemill.executors.nvfuser.registry import Untranslatable, translates
from tracemill.executors.nvfuser.values import Value

aten = torch.ops.aten


@translates(aten.bitwise_not.default)
def bitwise_not(builder: Builder, value: Value) -> Any:
    """~value."""
    name = "logical_not" if value.dtype == torch.bool else "bitwise_not"
    return getattr(builder.ops, name)(value.exact)


def _bitwise(name: str) -> Any:
    def write(builder: Builder, left: Any, right: Any) -> Any:
        dtype = builder.result.dtype
        return getattr(builder.ops, name)(
            builder.operand(left, dtype), builder.operand(right, dtype)
        )

    return write


for _name in ("and", "or", "xor"):
    _packet = getattr(aten, f"bitwise_{_name}")
    translates(_packet.Tensor, _packet.Scalar)(_bitwise(f"bitwise_{_name}"))


def _shift(name: str) -> Any:
    """As PyTorch does it by more bits than there are, or by less than none: nothing is left but the sign, to the right."""

    def write(builder: Builder, left: Any, right: Any) -> Any:
        dtype, ops = builder.result.dtype, builder.ops
        if dtype not in (torch.int32, torch.int64):
            raise Untranslatable(f"a shift of {dtype}")
        last = torch.iinfo(dtype).bits - 1
        value, by = builder.operand(left, dtype), builder.operand(right, dtype)
        beyond = last if name == "bitwise_right_shift" else None
        if isinstance(right, int):
            by = by if 0 <= right <= last else beyond
            return ops.mul(value, 0) if by is None else getattr(ops, name)(value, by)
        outside = ops.logical_or(ops.lt(by, 0), ops.gt(by, last))
        shifted = getattr(ops, name)(value, ops.where(outside, beyond or 0, by))
        return shifted if beyond else ops.where(outside, 0, shifted)

    return write


for _name, _packets in (
    ("bitwise_left_shift", (aten.__lshift__.Tensor, aten.__lshift__.Scalar)),
    ("bitwise_right_shift", (aten.__rshift__.Tensor, aten.__rshift__.Scalar)),
):
    _packet = getattr(aten, _name)
    translates(*_packets, _packet.Tensor, _packet.Tensor_Scalar)(_shift(_name))
