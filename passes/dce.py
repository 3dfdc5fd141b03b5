"""Dead-code elimination: what nobody needs is not computed.

Before:

    def computation(x, y):
      t0 = torch.sin(x)
      t1 = torch.cos(x)
      return t1

After:

    def computation(x):
      t1 = torch.cos(x)
      return t1

Kept are what an output needs, writes to a tensor, random draws (removing one changes those after it), checks, and what
may raise an error that the program catches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracemill.compiler import prims
from tracemill.compiler.module_hooks import HookCall
from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.write import Write
from tracemill.passes.interpretation.randomness import READERS


@dataclass(frozen=True)
class DeadCodeElimination(ProgramPass):
    """Removes what no output, write, random draw or check needs, and inputs that are then unused."""

    name: ClassVar[str] = "dce"
    stage: ClassVar[str] = "dce"

    def apply(self, program: Program, context: PassContext) -> Program:
        """The program without dead code; the prologue unpacks only what is used."""
        traces = program.traces()
        prologue = traces.pop("prologue")
        made = {role: swept(trace) for role, trace in traces.items()}
        computation = made["computation"]
        used = {proxy for bsym in computation.bound_symbols for proxy in bsym.inputs}
        used.update(computation.outputs)
        pairs = zip(computation.args, prologue.output, strict=True)
        kept = [pair for pair in pairs if pair[0] in used]
        made["computation"] = computation.replace(args=[arg for arg, _ in kept])
        made["prologue"] = swept(prologue.replace(output=tuple(value for _, value in kept)))
        return program.replace(**made)


def has_effect(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol does more than give its outputs."""
    return (
        isinstance(bsym.sym, (prims.Check, Write, HookCall))
        or bsym.mutates
        or (bsym.is_random and bsym.sym not in READERS)
        or bsym.asserts
        or bsym.sym is prims.UNPACK_SHAPE  # sizes are checked, and a backward may read them
        or (bsym.sym is prims.UNPACK_SEQUENCE and not bsym.output)  # a comment: "(empty sequence)"
    )


def swept(trace: Trace) -> Trace:
    """The trace without what its output and its effects do not need."""
    needed: set[Proxy] = set(trace.outputs)
    kept: list[BoundSymbol] = []
    for bsym in reversed(trace.bound_symbols):
        given = bsym.inputs
        if (
            has_effect(bsym)
            or bsym.caught
            or any(
                proxy in needed and proxy not in given  # `x.to(x.dtype)` gives x
                for proxy in bsym.outputs
            )
        ):
            kept.append(bsym)
            needed.update(given)
    return trace.replace(bound_symbols=kept[::-1])
