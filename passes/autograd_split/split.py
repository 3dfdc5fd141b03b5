"""Split: a program whose result requires grad becomes a forward and a backward.

Before:

    def computation(x, y):
      t0 = torch.Tensor.mul(x, y)
      t1 = torch.sin(t0)
      return t1

After:

    def computation(x, y):
      t0 = torch.Tensor.mul(x, y)
      t1 = torch.sin(t0)
      return (t1, ((x, y, t0), ()))

    def backward(saved_for_backward, cotangents):
      C0, C1, = saved_for_backward
      t2, = cotangents
      x, y, t0, = C0
      t3 = torch.cos(t0)
      t4 = torch.mul(t2, t3)
      t5 = torch.mul(t4, y)
      t6 = torch.mul(t4, x)
      return (t5, t6)

A line whose backward reads values from inside it (a layer norm's mean) is opened one level; views are made again in the
backward instead, so that `linear` stays one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tracemill.compiler.answer import NewTensor
from tracemill.compiler.meta import Storage
from tracemill.compiler.names import Names
from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.compiler.trace import Program, Trace
from tracemill.passes.autograd_split.chain import Derivation, name_values
from tracemill.passes.autograd_split.halves import Halves


@dataclass(frozen=True)
class Split(ProgramPass):
    """Gives a program whose result requires grad a backward; leaves others as they are."""

    name: ClassVar[str] = "split"
    stage: ClassVar[str] = "autograd_split"

    def apply(self, program: Program, context: PassContext) -> Program:
        """The program with its backward."""
        names, sizes = context.names(*program.traces().values()), context.sizes
        derivation, halves = _derived(program.computation, names, sizes)
        if not derivation.outputs:
            return program
        lost = _lost(program, halves)
        if lost:
            cloned = _on_clones(program.computation, lost, names, sizes)
            derivation, halves = _derived(cloned, names, sizes)
        context.derivation = derivation
        missing = _missing(halves, sizes)
        if missing:
            derivation.take(missing)
            halves = halves.given(missing)
            output = (*program.prologue.output, *missing)
            program = program.replace(prologue=program.prologue.replace(output=output))
        return halves.program(program)


def _missing(halves: Halves, sizes: Sizes) -> list[Proxy]:
    """The sizes that differ from call to call and that only the backward reads."""
    read = {*halves.kept, *(proxy for bsym in halves.lines for proxy in bsym.inputs)}
    read.update(proxy for bsym in halves.computation.bound_symbols for proxy in bsym.inputs)
    read.difference_update(halves.computation.args)
    return [size for size in sizes.named if size in read]


def _derived(computation: Trace, names: Names, sizes: Sizes) -> tuple[Derivation, Halves]:
    derivation = Derivation(computation, sizes)
    chained = derivation.backward(derivation.outputs)
    kept = derivation.kept = derivation.also_needed()
    forward = derivation.forward()
    name_values(forward, (), names)
    name_values(chained.lines, chained.cotangents, names)
    computation = computation.replace(bound_symbols=forward)
    return derivation, Halves(
        computation, chained.cotangents, chained.lines, chained.gradients, kept
    )


def _lost(program: Program, halves: Halves) -> list[TensorProxy]:
    """The inputs that the backward reads, and that the epilogue writes to while autograd looks on."""
    lines = () if program.epilogue is None else program.epilogue.bound_symbols
    written = [bsym.args[0] for bsym in lines if bsym.mutates and bsym.grad_enabled]
    read = {proxy.storage for proxy in halves.saved if isinstance(proxy, TensorProxy)}
    return [proxy for proxy in dict.fromkeys(written) if proxy.storage in read]


def _on_clones(
    computation: Trace, inputs: Sequence[TensorProxy], names: Names, sizes: Sizes
) -> Trace:
    """The computation on clones of some of its inputs, which its backward reads when they are not what they were."""
    lines: list[BoundSymbol] = []
    clones: dict[Proxy, Any] = {}

    def make(spec: NewTensor, storage: Storage, offset: int) -> TensorProxy:
        name = names.fresh("t")
        return TensorProxy(name, meta=spec.meta, storage=storage, storage_offset=offset)

    for proxy in inputs:
        answer, clones[proxy] = sizes.ask(torch.clone, (proxy,), {}, make)
        lines.append(BoundSymbol(symbol(torch.clone), (proxy,), {}, clones[proxy], answer=answer))
    lines += [bsym.substitute(clones) for bsym in computation.bound_symbols]
    return computation.replace(bound_symbols=lines)
