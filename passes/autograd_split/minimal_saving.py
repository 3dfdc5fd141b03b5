"""Minimal saving: of what the backward reads, only what it cannot make for nothing is saved.

Views are made again from their base, dropout's masks are kept as bool and scaled again, and what
`torch.utils.checkpoint` wraps is computed again, but for its random draws. Before:

    def computation(x, w):
      t0 = torch.sin(x)
      t1 = torch.t(t0)
      t2 = torch.mm(t1, w)
      return (t2, ((t1, w), ()))

    def backward(saved_for_backward, cotangents):
      ...
      t1, w, = C0
      t4 = torch.t(t1)

After:

    def computation(x, w):
      t0 = torch.sin(x)
      t1 = torch.t(t0)
      t2 = torch.mm(t1, w)
      return (t2, ((w, t0), ()))

    def backward(saved_for_backward, cotangents):
      ...
      w, t0, = C0
      t1 = torch.t(t0)
      t4 = torch.t(t1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.trace import Program
from tracemill.passes.autograd_split.halves import Halves
from tracemill.passes.autograd_split.rematerialisation import is_cheap
from tracemill.passes.autograd_split.saving import masks, saving


@dataclass(frozen=True)
class MinimalSaving(ProgramPass):
    """Saves bases instead of views, masks as bool, and nothing inside of checkpoint regions."""

    name: ClassVar[str] = "minimal_saving"
    stage: ClassVar[str] = "autograd_split"
    after: ClassVar[tuple[str, ...]] = ("split",)

    def apply(self, program: Program, context: PassContext) -> Program:
        """The program with less saved; one without a backward stays as it is."""
        if program.backward is None:
            return program
        scaled = _scaled_masks(Halves.of(program))
        return saving(program, context, lambda bsym: bsym.output in scaled)


def _scaled_masks(halves: Halves) -> set[Proxy]:
    """What is made of masks and constants alone."""
    found: set[Proxy] = set(masks(halves))
    scaled: set[Proxy] = set()
    for bsym in halves.computation.bound_symbols:
        inputs = list(bsym.inputs)
        if inputs and isinstance(bsym.output, TensorProxy) and is_cheap(bsym):
            if all(proxy in found or proxy in scaled for proxy in inputs):
                scaled.add(bsym.output)
    return scaled
