"""Claim: each bound symbol goes to the first executor that can run it, alone or in a region.

Before, with an executor `mine` that has an implementation of `torch.mul`, and one named `chain` that fuses the rest:

    def computation(x):
      t0 = torch.mul(x, 2)
      t1 = torch.sin(t0)
      t2 = torch.cos(t1)
      return t2

After:

    def computation(x):
      t0 = mine_mul(x, 2)
      t2, = chain0(t0)
        # t1 = torch.sin(t0)
        # t2 = torch.cos(t1)
      return t2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tracemill.compiler.pass_base import Pass, PassContext
from tracemill.compiler.symbol import BoundSymbol, FusedSymbol
from tracemill.compiler.trace import Trace
from tracemill.executors.fusion import FusionExecutor
from tracemill.passes.executor_fusion.regions import Fusing


@dataclass(frozen=True)
class Claim(Pass):
    """Gives each bound symbol to the first executor, in order of preference, that can run it."""

    name: ClassVar[str] = "claim"
    stage: ClassVar[str] = "executor_fusion"

    def apply(self, trace: Trace, context: PassContext) -> Trace:
        """The trace with the executors' own operations, and regions in place of their lines."""
        taken: list[BoundSymbol] = []
        for executor in context.executors:
            if isinstance(executor, FusionExecutor):
                trace = _with_regions(trace, executor, taken, context)
            else:
                trace = _with_operations(trace, executor, taken)
        return trace


def _with_operations(trace: Trace, executor: Any, taken: list[BoundSymbol]) -> Trace:
    """The trace with what the executor claims of the lines that are not taken."""
    known = set(map(id, taken))
    lines: list[BoundSymbol] = []
    for bsym in trace.bound_symbols:
        claimed = None if id(bsym) in known else executor.claim(bsym)
        if claimed is not None:
            taken.append(claimed)
        lines.append(claimed or bsym)
    return trace.replace(bound_symbols=lines)


def _with_regions(
    trace: Trace, executor: FusionExecutor, taken: list[BoundSymbol], context: PassContext
) -> Trace:
    """The trace with the executor's regions of the lines that are not taken."""
    if not trace.no_grad:
        return trace  # autograd is to see each operation
    stem = executor.name if context.role == "computation" else f"{executor.name}_{context.role}"
    outcome = Fusing(trace, executor, taken, stem, context.call).outcome()
    taken.extend(bsym for bsym in outcome.lines if isinstance(bsym.sym, FusedSymbol))
    context.report[f"{executor.name}, {context.role}:"] = str(outcome)
    return trace.replace(bound_symbols=outcome.lines)
