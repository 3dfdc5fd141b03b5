"""Multiply squares: a square is one multiplication, which executors know best.

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
        square, mul = tm.symbol(torch.square), tm.symbol(torch.mul)
        return trace.replace(
            bound_symbols=[
                bsym.from_bsym(sym=mul, args=(*bsym.args, *bsym.args))
                if bsym.sym is square
                else bsym
                for bsym in trace.bound_symbols
            ]
        )
