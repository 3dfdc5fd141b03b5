"""Proxy renaming: the names that people read.

Before:

    def computation(x, fc_weight):
      v3 = torch.nn.functional.linear(x, fc_weight)
      v4 = torch.relu(v3)
      return v4

After:

    def computation(x, fc_weight):
      t0 = torch.nn.functional.linear(x, fc_weight)
      t1 = torch.relu(t0)
      return t1

Parameters of the signature and the program's own tensors keep their names; other values are numbered, each kind in a
series of its own (t tensors, i ints, f floats, b bools, C collections), the same value alike in every trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracemill.compiler.names import Names
from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.proxy import AnyProxy, Proxy
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.values import substitute


@dataclass(frozen=True)
class ProxyRenaming(ProgramPass):
    """Numbers the values that have no name of their own: t0, t1, i0, C0."""

    name: ClassVar[str] = "proxy_renaming"
    stage: ClassVar[str] = "proxy_renaming"

    def apply(self, program: Program, context: PassContext) -> Program:
        """The program with readable names, consistent across its traces."""
        traces = program.traces()
        kept = [*program.prologue.args, *program.computation.args]
        kept += program.prologue.values()  # named after the signature and the paths already
        if (
            program.epilogue is not None
        ):  # objects that it makes or names are named after their classes
            kept += [value for value in program.epilogue.values() if isinstance(value, AnyProxy)]
        names, known = Names(proxy.name for proxy in kept), set(kept)
        mapping: dict[Proxy, Proxy] = {}
        for trace in traces.values():
            for proxy in trace.values():
                if proxy not in known and proxy not in mapping:
                    mapping[proxy] = proxy.renamed(names.fresh(proxy.prefix))
        return program.replace(**{role: renamed(trace, mapping) for role, trace in traces.items()})


def renamed(trace: Trace, mapping: dict[Proxy, Proxy]) -> Trace:
    """The trace on the values that `mapping` gives, the others as they are."""
    return trace.replace(
        args=[mapping.get(proxy, proxy) for proxy in trace.args],
        bound_symbols=[bsym.substitute(mapping) for bsym in trace.bound_symbols],
        output=substitute(trace.output, mapping),
    )
