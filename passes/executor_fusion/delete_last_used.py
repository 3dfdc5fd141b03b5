"""Delete last used: a value is freed as soon as nothing after it needs it.

Before:

    def computation(x):
      t0 = torch.sin(x)
      t1 = torch.cos(t0)
      return t1

After:

    def computation(x):
      t0 = torch.sin(x)
      t1 = torch.cos(t0)
      del t0
      return t1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracemill.compiler import prims
from tracemill.compiler.lifetimes import freed
from tracemill.compiler.pass_base import Pass, PassContext
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace


@dataclass(frozen=True)
class DeleteLastUsed(Pass):
    """Frees values after their last use; what the caller holds, it keeps, and a backward owns what was saved for it."""

    name: ClassVar[str] = "delete_last_used"
    stage: ClassVar[str] = "executor_fusion"
    after: ClassVar[tuple[str, ...]] = ("claim",)

    def apply(self, trace: Trace, context: PassContext) -> Trace:
        """The trace with a `del` line after each last use."""
        held = () if context.role == "backward" else trace.args  # the backward's are handed over
        lines = freed(trace.bound_symbols, (*trace.outputs, *held))
        return trace.replace(bound_symbols=_after_unpacking(lines))


def _after_unpacking(lines: list[BoundSymbol]) -> list[BoundSymbol]:
    """The lines with what is freed between unpacking lines freed after the last of them, at once."""
    kept: list[BoundSymbol] = []
    waiting: list[Proxy] = []
    for index, bsym in enumerate(lines):
        beside = lines[index - 1 : index + 2] if bsym.sym is prims.DELETE and index else ()
        if any(line.sym is prims.UNPACK_SEQUENCE for line in beside):
            waiting.extend(bsym.inputs)
            continue
        if waiting and bsym.sym is not prims.UNPACK_SEQUENCE:
            kept.append(prims.delete(waiting))
            waiting = []
        kept.append(bsym)
    return [*kept, prims.delete(waiting)] if waiting else kept
