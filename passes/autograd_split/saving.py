"""Saving: the forward saves what a cut says, and the backward makes the rest from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracemill.compiler.answer import tensor_arguments
from tracemill.compiler.meta import Storage
from tracemill.compiler.oracle import ORACLE
from tracemill.compiler.pass_base import PassContext
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.compiler.trace import Program
from tracemill.passes.autograd_split.halves import Halves
from tracemill.passes.autograd_split.min_cut import MinimumCut, count_bytes
from tracemill.passes.autograd_split.restoring import producers, restored

_MASKS = (torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli.Tensor)
"""Draw zeros and ones, of whatever type; a byte holds each."""

_TO: Any = torch.Tensor.to


def masks(halves: Halves) -> dict[TensorProxy, BoundSymbol]:
    """The values that are zeros and ones, with the lines that draw them."""
    return {
        bsym.output: bsym
        for bsym in halves.computation.bound_symbols
        if isinstance(bsym.output, TensorProxy)
        and bsym.output.dtype.is_floating_point
        and not bsym.output.requires_grad
        and any(op in _MASKS for op in bsym.operations[-1:])
    }


def saving(
    program: Program, context: PassContext, recomputable: Callable[[BoundSymbol], bool]
) -> Program:
    """The program with as few bytes saved as can be when only `recomputable` lines may run again."""
    kept = context.derivation.kept if context.derivation is not None else ()
    halves = Halves.of(program, kept).unrestored()
    drawn = masks(halves)

    def cost(proxy: TensorProxy) -> int:
        return proxy.meta.numel if proxy in drawn else proxy.storage.nbytes

    cut = MinimumCut(halves, recomputable, cost, written_inputs(program))
    lines = list(halves.computation.bound_symbols)
    made_by = producers(lines)
    saved: set[Proxy] = {*cut.saved, *halves.computation.args}
    names = context.names(program.prologue, *filter(None, (program.computation, program.backward)))
    known = unpackings(halves)
    for mask in [mask for mask in drawn if mask in saved and mask not in known]:
        packing = _as_bool(mask, drawn[mask], names.fresh("t"))
        lines.insert(lines.index(drawn[mask]) + 1, packing)
    halves = halves.replace(computation=halves.computation.replace(bound_symbols=lines))
    packed = {mask: line for mask, line in unpackings(halves).items() if mask in saved}
    made_by.update(packed)
    saved = {packed[value].args[0] if value in packed else value for value in saved}
    backward = restored(halves.lines, halves.gradients, made_by, saved)
    held = [packed[base].args[0] if base in packed else base for base in map(cut.base, kept)]
    extra = tuple(base for base in held if base in saved)
    return halves.replace(lines=tuple(backward), kept=extra).program(program)


def written_inputs(program: Program) -> set[Proxy]:
    """The inputs that the epilogue writes to."""
    lines = () if program.epilogue is None else program.epilogue.bound_symbols
    return {
        tensors[position]
        for bsym in lines
        if bsym.answer is not None
        for tensors in [tensor_arguments(bsym.args, bsym.kwargs)]
        for position in bsym.answer.mutated
    }


def _as_bool(mask: TensorProxy, drawn: BoundSymbol, name: str) -> BoundSymbol:
    """The line that makes a mask a bool, called `name`."""
    with torch.no_grad():
        answer, _ = ORACLE.ask(_TO, (mask, torch.bool), {})
    meta = answer.output.meta
    packed = mask.changed(name, meta=meta, storage=Storage(meta.nbytes))
    where: dict[str, Any] = {"source": drawn.source, "module_path": drawn.module_path}
    return BoundSymbol(symbol(_TO), (mask, torch.bool), {}, packed, answer=answer, **where)


def unpackings(halves: Halves) -> dict[Proxy, BoundSymbol]:
    """For each mask that the forward packs as bool, the line that makes the mask of it again."""
    drawn = masks(halves)
    found: dict[Proxy, BoundSymbol] = {}
    for bsym in halves.computation.bound_symbols:
        if bsym.sym.impl is _TO and bsym.args[0] in drawn and bsym.args[1:] == (torch.bool,):
            mask, packed = bsym.args[0], bsym.output
            with torch.no_grad():
                answer, _ = ORACLE.ask(_TO, (packed, mask.dtype), {})
            where: dict[str, Any] = {"source": bsym.source, "module_path": bsym.module_path}
            found[mask] = BoundSymbol(
                symbol(_TO), (packed, mask.dtype), {}, mask, answer=answer, **where
            )
    return found


def bytes_saved(program: Program) -> int:
    """The bytes that a program keeps for its backward beyond its inputs."""
    computation = program.computation
    return count_bytes(Halves.of(program).saved, computation.args)
