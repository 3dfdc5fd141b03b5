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

import functools
from dataclasses import dataclass
from typing import ClassVar

import torch

from tracemill.compiler import prims
from tracemill.compiler.answer import makes_views
from tracemill.compiler.module_hooks import HookCall
from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.torch_internals import OpOverload
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.write import Write
from tracemill.passes.interpretation.randomness import READERS

_ATEN = torch.ops.aten
_COPIES = frozenset({_ATEN.clone, _ATEN._to_copy, _ATEN.copy, _ATEN.cat, _ATEN.stack})
_DIVISIONS = frozenset(
    {_ATEN.div, _ATEN.floor_divide, _ATEN.remainder, _ATEN.fmod, _ATEN.divide, _ATEN.pow}
)
"""Elementwise operations that raise for some integers, such as 0."""


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


def may_raise(bsym: BoundSymbol) -> bool:
    """Whether what a line raises may depend on what its tensors hold."""
    return bool(bsym.inputs) and (
        bsym.answer is None or any(map(_may_raise_for_data, bsym.operations))
    )


@functools.cache
def _may_raise_for_data(op: OpOverload) -> bool:
    """Whether an operation looks at its tensors' values: views do not, nor do copies, nor most elementwise ones."""
    if makes_views(op) or op.overloadpacket in _COPIES:
        return False
    return torch.Tag.pointwise not in op.tags or op.overloadpacket in _DIVISIONS


def swept(trace: Trace) -> Trace:
    """The trace without what its output and its effects do not need."""
    needed: set[Proxy] = set(trace.outputs)
    kept: list[BoundSymbol] = []
    for bsym in reversed(trace.bound_symbols):
        given = bsym.inputs
        if (
            has_effect(bsym)
            or (bsym.caught and may_raise(bsym))
            or any(
                proxy in needed and proxy not in given  # `x.to(x.dtype)` gives x
                for proxy in bsym.outputs
            )
        ):
            kept.append(bsym)
            needed.update(given)
    return trace.replace(bound_symbols=kept[::-1])
