"""Output views: where autograd records, views that the caller gets are taken by the epilogue, outside of the split.

A view that an autograd.Function returns may not be written to, and its base does not know of it. Before:

    def computation(x):
      t0 = torch.Tensor.mul(x, 2)
      t1 = torch.Tensor.t(t0)
      return (t0, t1)

After:

    def computation(x):
      t0 = torch.Tensor.mul(x, 2)
      return (None, (t0,))

    def epilogue(t0):
      t1 = torch.Tensor.t(t0)
      return (t0, t1)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tracemill.compiler.answer import NewTensor, Ref
from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol, LineWriter, Symbol
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.values import leaves, proxies
from tracemill.passes.dce import swept


class _Unseen(Symbol):
    """`with torch.no_grad(): t0 = w[0]`: a view that autograd does not see; the first argument is the symbol called."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        called, *args = bsym.args
        call = writer.call(called.bind(*args, output=bsym.output, **bsym.kwargs))
        return ["with torch.no_grad():", f"  {writer.target(bsym.output)} = {call}"]


_UNSEEN = _Unseen("unseen_view")


@dataclass(frozen=True)
class OutputViews(ProgramPass):
    """Takes the views that a program returns or stores in its epilogue, so that they are eager's own."""

    name: ClassVar[str] = "output_views"
    stage: ClassVar[str] = "autograd_split"
    before: ClassVar[tuple[str, ...]] = ("split",)

    def apply(self, program: Program, context: PassContext) -> Program:
        """The program with its views in the epilogue; where autograd does not record it stays as it is."""
        computation, epilogue = program.computation, program.epilogue
        if not torch.is_grad_enabled() or not any(
            getattr(proxy, "requires_grad", False) for proxy in computation.args
        ):
            return program
        before = [] if epilogue is None else epilogue.bound_symbols
        copies = [bsym for bsym in before if bsym.mutates]
        writes = [bsym for bsym in before if not bsym.mutates]
        result = computation.output if epilogue is None else computation.output[0]
        seen = [*proxies(result), *(proxy for bsym in writes for proxy in bsym.inputs)]
        views = _views(computation, seen)
        if not views:
            return program
        made = Trace("epilogue", [], [*copies, *views, *writes], result, no_grad=False)
        made = made.replace(args=needed(made))
        return program.replace(
            computation=swept(computation.replace(output=(None, tuple(made.args)))), epilogue=made
        )


def _views(computation: Trace, seen: Iterable[Proxy]) -> list[BoundSymbol]:
    """The lines that take what is seen as views, in order."""
    made_by = {
        out: bsym
        for bsym in computation.bound_symbols
        if _takes_views(bsym)
        for out in bsym.outputs
    }
    found: set[int] = set()
    wanted = list(seen)
    while wanted:
        bsym = made_by.get(wanted.pop())
        if bsym is not None and id(bsym) not in found:
            found.add(id(bsym))
            wanted.extend(bsym.inputs)
    return [
        bsym if bsym.grad_enabled else _unseen(bsym)
        for bsym in computation.bound_symbols
        if id(bsym) in found
    ]


def _unseen(bsym: BoundSymbol) -> BoundSymbol:
    where: Any = {"source": bsym.source, "module_path": bsym.module_path}
    args = (bsym.sym, *bsym.args)
    return BoundSymbol(
        _UNSEEN, args, bsym.kwargs, bsym.output, subsymbols=(), answer=bsym.answer, **where
    )


def _takes_views(bsym: BoundSymbol) -> bool:
    """Whether a line gives views of a tensor, the only one that it reads, that require grad, and does nothing else."""
    answer = bsym.answer
    if answer is None or bsym.sym.path is None or answer.random:
        return False
    if not bsym.grad_enabled and not any(
        getattr(out, "requires_grad", False) for out in bsym.outputs
    ):
        return False
    specs = leaves(answer.output)
    owners = {spec.storage if isinstance(spec, NewTensor) else None for spec in specs}
    if answer.mutated or len(owners) != 1:
        return False
    kind, position = owners.pop() or ("none", -1)
    read = {
        leaf.index
        for step in answer.body
        for leaf in leaves((step.args, step.kwargs))
        if type(leaf) is Ref
    }
    return kind == "argument" and read.isdisjoint(set(range(answer.arity)) - {position})


def needed(trace: Trace) -> list[Proxy]:
    """What a trace reads and does not make, each once, in order."""
    made = {out for bsym in trace.bound_symbols for out in bsym.outputs} - {
        proxy for bsym in trace.bound_symbols for proxy in bsym.inputs if bsym.mutates
    }
    read = [*(proxy for bsym in trace.bound_symbols for proxy in bsym.inputs), *trace.outputs]
    return list(dict.fromkeys(proxy for proxy in read if proxy not in made))
