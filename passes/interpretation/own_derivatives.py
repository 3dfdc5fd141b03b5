"""Operations that only functional programs have, with derivatives that PyTorch does not know or knows otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracemill.compiler.symbol import BoundSymbol, LineWriter, Symbol, symbol


class Hidden(Symbol):
    """`t2 = torch.Tensor.view_as(t1, t0)`: the value t1 where autograd goes on to see t0, which was written unseen."""

    def __init__(self) -> None:
        super().__init__("hidden_write", impl=torch.Tensor.view_as, vjp=self._vjp)

    path = None  # type: ignore[assignment]  # PyTorch would say that the gradient is the first argument's

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        value, before = map(writer.value, bsym.args)
        return [f"{writer.target(bsym.output)} = torch.Tensor.view_as({value}, {before})"]

    @staticmethod
    def _vjp(cotangents: Sequence[Any], output: Any, value: Any, before: Any) -> tuple[Any, Any]:
        return None, cotangents[0]


HIDDEN = Hidden()


class Copy(Symbol):
    """`torch.ops.aten.copy.default(t0, t1)`: the values of t1 in the shape, strides and dtype of t0.

    PyTorch knows its derivative only as `copy_`. written: whether it stands for `t0.copy_(t1)`, after which t0 has a
    gradient of zeros; else t0 only says what shape and strides to take.
    """

    def __init__(self, *, written: bool) -> None:
        self.written = written
        super().__init__(
            "torch.ops.aten.copy.default", impl=torch.ops.aten.copy.default, vjp=self._vjp
        )

    def _vjp(
        self, cotangents: Sequence[Any], output: Any, into: Any, value: Any
    ) -> tuple[Any, Any]:
        gradient = cotangents[0]
        none = torch.zeros_like(gradient) if self.written and into.requires_grad else None
        if not value.requires_grad:
            return none, None
        if (gradient.dtype, gradient.device) != (value.dtype, value.device):
            gradient = gradient.to(value.device, value.dtype)
        if gradient.sizes != value.sizes:
            gradient = gradient.sum_to_size(value.sizes)
        return none, gradient


COPY = Copy(written=True)
ARRANGE = Copy(written=False)

_ATEN: Any = torch.ops.aten
_DRAWS = (
    *(_ATEN.normal_functional, _ATEN.uniform, _ATEN.exponential, _ATEN.geometric),
    *(_ATEN.log_normal, _ATEN.cauchy, _ATEN.random, _ATEN.bernoulli),
)


def _drawing(op: Any) -> Symbol:
    """A tensor filled with random numbers, whatever it held: PyTorch knows its derivative only as `uniform_`."""
    return Symbol(str(symbol(op).name), impl=op, vjp=_no_influence)


def _no_influence(
    cotangents: Sequence[Any], output: Any, tensor: Any, *args: Any, **kwargs: Any
) -> Any:
    return torch.zeros_like(cotangents[0])


def own_symbol(op: Any) -> Symbol | None:
    """The symbol of an operation that only this knows how to differentiate."""
    if op is COPY.impl:
        return COPY
    return _drawing(op) if getattr(op, "overloadpacket", None) in _DRAWS else None
