"""Multiply squares: a square of floating-point numbers is one multiplication.

Before:

    def computation(x):
      t0 = torch.square(x)
      return t0

After:

    def computation(x):
      t0 = torch.mul(x, x)
      return t0
"""

from dataclasses import dataclass

import torch

import tracemill as tm


@dataclass(frozen=True)
class MultiplySquares(tm.Pass):
    """Writes squares as multiplications."""

    name = "multiply_squares"
    stage = "dce"
    before = ("cse",)

    def apply(self, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
        squares = {tm.symbol(torch.square), tm.symbol(torch.Tensor.square)}
        lines = list(trace.bound_symbols)
        for n, bsym in enumerate(lines):
            if bsym.sym in squares and bsym.args and bsym.args[0].dtype.is_floating_point:
                lines[n] = bsym.from_bsym(sym=tm.symbol(torch.mul), args=bsym.args * 2)
        return trace.replace(bound_symbols=lines)
