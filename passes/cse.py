"""Common subexpressions: what is computed twice is computed once.

Before:

    def computation(x):
      t0 = torch.sin(x)
      t1 = torch.sin(x)
      t2 = torch.add(t0, t1)
      return t2

After:

    def computation(x):
      t0 = torch.sin(x)
      t2 = torch.add(t0, t0)
      return t2

Never merged: values that require grad (their gradients would be summed in another order than eager's), random draws,
writes and values that are written to, calls under different grad modes, constants that only compare equal (1, True and
1.0; 0.0 and -0.0), and tensors that the caller gets, which must stay two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tracemill.compiler import prims
from tracemill.compiler.meta import Storage
from tracemill.compiler.pass_base import Pass, PassContext
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.signature import CallKey
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace
from tracemill.compiler.values import substitute


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Computes equal calls once."""

    name: ClassVar[str] = "cse"
    stage: ClassVar[str] = "dce"
    after: ClassVar[tuple[str, ...]] = ("dce",)

    def apply(self, trace: Trace, context: PassContext) -> Trace:
        """The trace with each repeated call replaced by the first one's outputs."""
        apart = _kept_apart(trace)
        first: dict[Any, BoundSymbol] = {}
        mapping: dict[Proxy, Proxy] = {}
        kept: list[BoundSymbol] = []
        for bsym in trace.bound_symbols:
            if mapping:
                bsym = bsym.substitute(mapping)
            key = None if _is_unique(bsym, apart) else _key(bsym)
            known = first.setdefault(key, bsym) if key is not None else bsym
            if known is bsym:
                kept.append(bsym)
            else:
                mapping.update(zip(bsym.outputs, known.outputs, strict=True))
        return trace.replace(bound_symbols=kept, output=substitute(trace.output, mapping))


def _kept_apart(trace: Trace) -> set[Storage]:
    """The memory that the caller gets or that is written to."""
    tensors: list[Proxy] = list(trace.outputs)
    for bsym in trace.bound_symbols:
        if bsym.mutates:
            tensors.extend(bsym.inputs)
    return {tensor.storage for tensor in tensors if isinstance(tensor, TensorProxy)}


def _is_unique(bsym: BoundSymbol, apart: set[Storage]) -> bool:
    if (
        isinstance(bsym.sym, prims.Check)
        or bsym.sym.path is None
        or bsym.is_random
        or bsym.mutates
        or bsym.answer is None
    ):
        return True
    values = [*bsym.outputs, *bsym.inputs]
    made = [value for value in values if isinstance(value, TensorProxy)]
    if any(value.requires_grad for value in bsym.outputs if isinstance(value, TensorProxy)):
        return True  # its gradients would be summed in another order, or in a lower precision, than eager's
    return not made or any(value.storage in apart for value in made)


def _key(bsym: BoundSymbol) -> Any:
    key = _ValueKey()
    return bsym.sym, bsym.grad_enabled, key.of(bsym.args), key.of(bsym.kwargs)


class _ValueKey(CallKey):
    """A key in which tensors count as themselves, not as their metadata."""

    def _tensor(self, proxy: TensorProxy) -> Any:
        return proxy

    def _number(self, number: Any) -> Any:
        return number
