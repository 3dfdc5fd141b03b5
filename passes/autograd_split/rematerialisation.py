"""Rematerialisation: what is cheap to compute is computed again in the backward, where that keeps fewer bytes.

Before:

    def computation(x, w):
      t0 = torch.mm(x, w)
      t1 = torch.sin(t0)
      t2 = torch.exp(t1)
      return (t2, ((t0, t2), ()))

After, where `exp` and `sin` are taken again from what is saved once:

    def computation(x, w):
      t0 = torch.mm(x, w)
      t1 = torch.sin(t0)
      t2 = torch.exp(t1)
      return (t2, ((t0,), ()))

    def backward(saved_for_backward, cotangents):
      ...
      t1 = torch.sin(t0)
      t2 = torch.exp(t1)

Only elementwise operations, casts, copies and constants run again: never a matmul, a convolution, attention, a
reduction, a look-up or a random draw. A minimum cut finds the values to save.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from tracemill.compiler.answer import makes_views
from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Program
from tracemill.passes.autograd_split.min_cut import is_view
from tracemill.passes.autograd_split.saving import bytes_saved, saving

_CHEAP = {
    torch.ops.aten._to_copy.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.arange.default,
    torch.ops.aten.arange.start,
    torch.ops.aten.arange.start_step,
    torch.ops.aten.cat.default,
    torch.ops.aten.clone.default,
    torch.ops.aten.full.default,
    torch.ops.aten.full_like.default,
    torch.ops.aten.ones.default,
    torch.ops.aten.ones_like.default,
    torch.ops.aten.scalar_tensor.default,
    torch.ops.aten.stack.default,
    torch.ops.aten.zeros.default,
    torch.ops.aten.zeros_like.default,
}
"""Besides elementwise operations and views: copies, casts and constants."""


@dataclass(frozen=True)
class Rematerialisation(ProgramPass):
    """Saves fewer bytes by computing elementwise operations again in the backward.

    most_lines: longer programs are left as they are, since a cut of them takes long.
    """

    name: ClassVar[str] = "rematerialisation"
    stage: ClassVar[str] = "autograd_split"
    after: ClassVar[tuple[str, ...]] = ("minimal_saving",)
    most_lines: int = 20_000

    def apply(self, program: Program, context: PassContext) -> Program:
        """The program with less saved; one without a backward stays as it is."""
        backward = program.backward
        if backward is None or len(program.computation.bound_symbols) > self.most_lines:
            return program
        before = bytes_saved(program)
        made = saving(program, context, is_cheap)
        if bytes_saved(made) >= before:
            made = program
        context.report |= {"bytes before": before, "bytes after": bytes_saved(made)}
        return made


def is_cheap(bsym: BoundSymbol) -> bool:
    """Whether a line may run again in the backward."""
    if bsym.answer is None or bsym.mutates or bsym.is_random or bsym.sym.path is None:
        return False
    if is_view(bsym):
        return True
    found = bsym.operations
    return bool(found) and all(
        torch.Tag.pointwise in op.tags or op in _CHEAP or makes_views(op) for op in found
    )
