"""Redundant views: a view that lies in memory as another value does is that value.

Before, in the backward of a linear layer:

    def backward(saved_for_backward, cotangents):
      ...
      t6 = torch.t(weight)
      t7 = torch.t(t6)
      t8 = torch.mm(t5, t7)

After:

    def backward(saved_for_backward, cotangents):
      ...
      t8 = torch.mm(t5, weight)

What the caller gets stays a tensor of its own; so does a gradient, where it would else be a value that was saved.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tracemill.compiler import prims
from tracemill.compiler.answer import NewTensor, tensor_arguments
from tracemill.compiler.pass_base import Pass, PassContext
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import is_symbolic, layout_of
from tracemill.compiler.trace import Trace
from tracemill.compiler.values import proxies, substitute

_ATEN = torch.ops.aten
_STAYING = frozenset(
    {
        *(_ATEN.t.default, _ATEN.transpose.int, _ATEN.permute.default, _ATEN.detach.default),
        *(_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.expand.default),
        *(_ATEN.unsqueeze.default, _ATEN.squeeze.default, _ATEN.squeeze.dim, _ATEN.alias.default),
    }
)
"""Views that begin where their argument does, for whatever sizes."""


@dataclass(frozen=True)
class RedundantViews(Pass):
    """Takes the value that a view is the same as, and drops the views that nobody needs then."""

    name: ClassVar[str] = "redundant_views"
    stage: ClassVar[str] = "executor_fusion"
    before: ClassVar[tuple[str, ...]] = ("claim",)

    def apply(self, trace: Trace, context: PassContext) -> Trace:
        """The trace without views that lead back to what there is."""
        if not trace.no_grad:
            return trace  # autograd is to see each operation
        outputs = set(trace.outputs)
        made: set[Proxy] = set()
        bases: dict[Proxy, Proxy] = {}
        first: dict[Hashable, TensorProxy] = {}
        mapping: dict[Proxy, Any] = {}
        lines: list[BoundSymbol] = []
        for bsym in trace.bound_symbols:
            bsym = bsym.substitute(mapping) if mapping else bsym
            pair = _view(bsym)
            if pair is not None:
                view, of = pair
                base = bases.setdefault(view, bases.get(of, of))
                first.setdefault((base, _lies(of)), of)
                known = first.setdefault((base, _lies(view)), view)
                if known is not view and (view not in outputs or known in made):
                    mapping[view] = known
                    continue
            lines.append(bsym)
            if context.role == "backward" and bsym.sym is not prims.UNPACK_SEQUENCE:
                made.update(bsym.outputs)
        if not mapping:
            return trace
        output = substitute(trace.output, mapping)
        return trace.replace(bound_symbols=_needed(lines, proxies(output)), output=output)


def _view(bsym: BoundSymbol) -> tuple[TensorProxy, TensorProxy] | None:
    """A line's result and the argument that it is a view of, from the same element on; None for any other line."""
    out, answer = bsym.output, bsym.answer
    if not isinstance(out, TensorProxy) or bsym.sym.path is None or answer is None:
        return None
    spec = answer.output
    if answer.mutated or answer.random or type(spec) is not NewTensor:
        return None
    kind, position = spec.storage
    moves = spec.offset != 0 or (is_symbolic(out) and not _STAYING.issuperset(bsym.operations))
    if kind != "argument" or moves:
        return None
    return out, tensor_arguments(bsym.args, bsym.kwargs)[position]


def _lies(tensor: TensorProxy) -> Hashable:
    """How a tensor lies in memory: equal for those that are the same but for where they begin and for autograd."""
    meta, layout = tensor.meta, layout_of(tensor)
    sizes = (meta.shape, meta.stride) if layout is None else layout._replace(offset=0).key
    return meta.dtype, meta.layout, meta.conj, meta.neg, sizes


def _needed(lines: Sequence[BoundSymbol], outputs: Iterable[Proxy]) -> list[BoundSymbol]:
    """The lines without views that no other line and no output takes."""
    needed, kept = set(outputs), list[BoundSymbol]()
    for bsym in reversed(lines):
        if _view(bsym) is None or bsym.output in needed:
            kept.append(bsym)
            needed.update(bsym.inputs)
    return kept[::-1]
