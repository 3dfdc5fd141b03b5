"""Claim: each bound symbol goes to the first executor that can run it.

Before, with an executor `mine` that has an implementation of `torch.mul`:

    def computation(x):
      t0 = torch.mul(x, 2)
      return t0

After:

    def computation(x):
      t0 = mine_mul(x, 2)
      return t0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracemill.compiler.pass_base import Pass, PassContext
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace


@dataclass(frozen=True)
class Claim(Pass):
    """Gives each bound symbol to the first executor, in order of preference, that can run it."""

    name: ClassVar[str] = "claim"
    stage: ClassVar[str] = "executor_fusion"

    def apply(self, trace: Trace, context: PassContext) -> Trace:
        """The trace with the executors' own operations."""
        return trace.replace(
            bound_symbols=[_claimed(bsym, context) for bsym in trace.bound_symbols]
        )


def _claimed(bsym: BoundSymbol, context: PassContext) -> BoundSymbol:
    for executor in context.executors:
        claimed = executor.claim(bsym)
        if claimed is not None:
            return claimed
    return bsym
