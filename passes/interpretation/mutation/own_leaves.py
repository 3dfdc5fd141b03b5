"""A program's own leaves: tensors that it makes require grad, to which gradients flow and go no further.

Inside they need no more than to be known as such. Outside somebody would ask them for their gradient, which the compiled
program does not keep.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracemill.compiler import prims
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import proxies


def own_leaves(lines: Iterable[BoundSymbol]) -> dict[Proxy, BoundSymbol]:
    """The leaves, each with the line that makes it."""
    return {
        line.output: line
        for line in lines
        if line.sym is prims.SAME
        and isinstance(line.output, TensorProxy)
        and line.output.meta.is_leaf
    }


def refuse_outside(lines: Iterable[BoundSymbol], arguments: Iterable[Proxy], result: Any) -> None:
    """Raises UnsupportedError where the result holds a leaf of the program's own, or requires grad by such leaves alone."""
    own = own_leaves(lines)
    if not own:
        return
    outs = [out for out in proxies(result) if getattr(out, "requires_grad", False)]
    for out in outs:
        if out in own:
            raise _refusal(own[out], "returns or keeps it; use the result of a computation with it")
    if outs and not any(getattr(given, "requires_grad", False) for given in arguments):
        line = next(iter(own.values()))
        raise _refusal(
            line, "has no input that does; run it under torch.no_grad, or detach its result"
        )


def _refusal(line: BoundSymbol, reason: str) -> UnsupportedError:
    source = line.source
    where = "" if source is None else f" at {source.file}:{source.line}: {source.text}"
    return UnsupportedError(f"the program makes a tensor require grad{where}, and {reason}")
