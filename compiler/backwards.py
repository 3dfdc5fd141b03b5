"""Makes the backwards of a specialisation: the one for all cotangents at once, the others when a call needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tracemill.compiler import prims
from tracemill.compiler.autograd_function import Backwards, Part, bare
from tracemill.compiler.meta import contiguous_stride
from tracemill.compiler.ordering import RegisteredPass
from tracemill.compiler.pass_base import Call, Pass, PassContext
from tracemill.compiler.pipeline import History, PrinterOf, run
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import is_symbolic
from tracemill.compiler.trace import Program
from tracemill.passes.autograd_split.fewer_cotangents import with_fewer_cotangents
from tracemill.passes.autograd_split.halves import Halves
from tracemill.passes.autograd_split.replay import replay


def backwards_of(
    program: Program,
    context: PassContext,
    history: History,
    passes: Sequence[RegisteredPass],
    printer_of: PrinterOf,
) -> Backwards | None:
    """The backwards of a compiled program; None when it has none."""
    if program.backward is None:
        return None
    derivation = context.derivation
    context = replace(
        context, call=Call(context.call.form, ())
    )  # the call's tensors are not to live on
    split = [step.program for step in history.steps if step.stage != "executor_fusion"][-1]
    assert split is not None
    later = [
        registered
        for registered in passes
        if registered.item.stage == "executor_fusion"
        or (registered.item.stage == "autograd_split" and isinstance(registered.item, Pass))
    ]

    def make(part: Part) -> Callable[..., Any]:
        begun = with_fewer_cotangents(
            split, derivation, part.defined, part.ends, to_ends=part.to_ends
        )
        made = run(later, context, History(), printer_of, begun)
        context.sizes.refuse_unchecked()
        assert made.backward is not None
        return bare(made.backward)

    def again() -> Callable[..., Any]:
        return replay(derivation.trace).callable()

    cotangents = Halves.of(split).cotangents
    elementwise = _reads_elementwise(Halves.of(program))
    whole, sources = bare(program.backward), derivation.sources()
    return Backwards(cotangents, whole, elementwise, make, again, sources)


def _reads_elementwise(halves: Halves) -> bool:
    """Whether cotangents are read element by element, into results of the layout that contiguous operands give.

    Then one number that is expanded, as a sum's derivative hands it on, will do as it is.
    """
    cotangents = set(halves.cotangents)
    readers = (
        bsym
        for bsym in halves.lines
        if bsym.sym is not prims.DELETE and not cotangents.isdisjoint(bsym.inputs)
    )
    return cotangents.isdisjoint(halves.gradients) and all(map(_is_elementwise, readers))


def _is_elementwise(bsym: BoundSymbol) -> bool:
    tensors = [proxy for proxy in (*bsym.inputs, *bsym.outputs) if isinstance(proxy, TensorProxy)]
    return (
        bsym.sym.path is not None
        and len(bsym.operations) == 1
        and torch.Tag.pointwise in bsym.operations[0].tags
        and not bsym.mutates
        and all(
            is_symbolic(proxy) is False and proxy.meta.stride == contiguous_stride(proxy.meta.shape)
            for proxy in tensors
        )
    )
