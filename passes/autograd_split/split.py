"""Split: a program whose result requires grad becomes a forward and a backward.

Before:

    def computation(x, y):
      t0 = torch.Tensor.mul(x, y)
      t1 = torch.sin(t0)
      return t1

After:

    def computation(x, y):
      t0 = torch.Tensor.mul(x, y)
      t1 = torch.sin(t0)
      return (t1, ((x, y, t0), ()))

    def backward(saved_for_backward, cotangents):
      C0, C1, = saved_for_backward
      t2, = cotangents
      x, y, t0, = C0
      t3 = torch.cos(t0)
      t4 = torch.mul(t2, t3)
      t5 = torch.mul(t4, y)
      t6 = torch.mul(t4, x)
      return (t5, t6)

A line whose backward reads values from inside it (a layer norm's mean) is opened one level; views are made again in the
backward instead, so that `linear` stays one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.trace import Program
from tracemill.passes.autograd_split.chain import Derivation, name_values
from tracemill.passes.autograd_split.halves import Halves


@dataclass(frozen=True)
class Split(ProgramPass):
    """Gives a program whose result requires grad a backward; leaves others as they are."""

    name: ClassVar[str] = "split"
    stage: ClassVar[str] = "autograd_split"

    def apply(self, program: Program, context: PassContext) -> Program:
        """The program with its backward."""
        if not torch.is_grad_enabled():
            return program
        derivation = Derivation(program.computation)
        if not derivation.outputs:
            return program
        names = context.names(program.prologue, program.computation)
        chained = derivation.backward(derivation.outputs)
        kept = derivation.kept = derivation.also_needed()
        forward = derivation.forward()
        name_values(forward, (), names)
        name_values(chained.lines, chained.cotangents, names)
        context.derivation = derivation
        computation = program.computation.replace(bound_symbols=forward)
        halves = Halves(computation, chained.cotangents, chained.lines, chained.gradients, kept)
        return halves.program(program)
