"""Replay: the program before its split, as a trace that runs line by line under autograd, for gradients of gradients.

Before, where the second line was under `torch.no_grad()`:

    def computation(x):
      t0 = torch.sin(x)
      t1 = torch.cos(t0)
      return t1

After:

    def computation(x):
      t0 = torch.sin(x)
      t2 = torch.cos(t0)
      t1 = t2.detach()
      return t1
"""

from __future__ import annotations

from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.module_hooks import Hooked
from tracemill.compiler.names import Names
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace
from tracemill.compiler.values import substitute
from tracemill.passes.autograd_split.opaque import DETACHED


def replay(trace: Trace) -> Trace:
    """The trace for autograd; raises UnsupportedError for one that draws random numbers, which would be others."""
    names = Names(trace.names)
    lines: list[BoundSymbol] = []
    for bsym in trace.bound_symbols:
        if isinstance(bsym.sym, Hooked):
            raise UnsupportedError(
                "create_graph=True runs the jitted function's program again, where the backward hooks of "
                f"{bsym.module_path or 'its module'} would not be called; call the function without jit"
            )
        if bsym.is_random:
            where = "" if bsym.source is None else f" at {bsym.source.file}:{bsym.source.line}"
            raise UnsupportedError(
                f"create_graph=True runs the jitted function's program again, and {bsym.sym.name}{where} would draw "
                "other random numbers; call the function without jit where gradients of gradients are wanted"
            )
        lines.extend(_under_autograd(bsym, names))
    return trace.replace(bound_symbols=lines, no_grad=False)


def _under_autograd(bsym: BoundSymbol, names: Names) -> list[BoundSymbol]:
    """A line, with what it made detached where autograd did not record it."""
    given = set(bsym.inputs)
    if not any(getattr(proxy, "requires_grad", False) for proxy in given):
        return [bsym]
    cut: dict[Proxy, Proxy] = {
        out: out.renamed(names.fresh(out.prefix))
        for out in bsym.outputs
        if isinstance(out, TensorProxy) and not out.requires_grad and out not in given
    }
    if not cut or bsym.sym.vjp is not None:
        return [bsym]
    return [
        bsym.from_bsym(output=substitute(bsym.output, cut)),
        *(DETACHED.bind(new, output=old) for old, new in cut.items()),
    ]
