"""Functionalise: what the program writes to becomes new values, and inputs are written to at the end, by the epilogue.

Before:

    def computation(x, y):
      v0 = torch.Tensor.__getitem__(x, 0)
      v1 = torch.Tensor.mul_(v0, y)
      v2 = torch.Tensor.sum(x)
      return v2

After:

    def computation(x, y):
      v0 = torch.Tensor.__getitem__(x, 0)
      v3 = torch.mul(v0, y)
      v4 = torch.select_scatter(x, v3, 0, 0)
      v2 = torch.Tensor.sum(v4)
      return (v2, (x, v4))

    def epilogue(x, v4):
      torch.Tensor.copy_(x, v4)

A call that writes to nothing stays one line. Only memory that is written to is replayed, and a program that writes to
nothing is left as it is. A call that has no functional form runs as it is on clones, which become the new values.
Inputs that share memory, one of them written to, are rebuilt as views of one tensor; the prologue checks which do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tracemill.compiler import prims
from tracemill.compiler.answer import NewTensor, tensor_arguments
from tracemill.compiler.errors import MutationError
from tracemill.compiler.meta import Storage
from tracemill.compiler.oracle import STORAGE_READERS, is_pytorch
from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.settings import without_autocast
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.values import leaves
from tracemill.passes.dce import swept
from tracemill.passes.interpretation.mutation import in_place, overlap, write_back
from tracemill.passes.interpretation.mutation.in_place_derivatives import is_differentiable
from tracemill.passes.interpretation.mutation.memory import Base, Memory, NotFunctionalError
from tracemill.passes.interpretation.mutation.overwrites import Overwrites
from tracemill.passes.interpretation.mutation.write_back import RealViews


@dataclass(frozen=True)
class Functionalise(ProgramPass):
    """Replaces writes by new values, and writes what inputs end up holding in the epilogue."""

    name: ClassVar[str] = "functionalise"
    stage: ClassVar[str] = "interpretation"
    after: ClassVar[tuple[str, ...]] = ("acquire",)

    def apply(self, program: Program, context: PassContext) -> Program:
        """The program without writes to inputs or to what autograd sees; one that writes to nothing stays as it is."""
        written = written_storages(program.computation)
        lines = program.computation.bound_symbols
        if not written and all(bsym.sym is not prims.SAME for bsym in lines):
            return program
        names = context.names(*program.traces().values())
        grad = any(bsym.grad_enabled for bsym in lines)
        memory = Memory(lambda: names.fresh("v"), context.sizes, grad=grad)
        replay = Replay(program.computation, written, Overwrites(memory, context.unseen))
        replay.run()
        made = write_back.finished(program, memory, replay.views)
        if context.cache != "same input":
            checks = overlap.checks(made.computation, memory.bases)
            prologue = made.prologue
            made = made.replace(
                prologue=prologue.replace(bound_symbols=[*prologue.bound_symbols, *checks])
            )
        return made.replace(computation=swept(made.computation))


def written_storages(trace: Trace) -> set[Storage]:
    """The memory that a trace's lines write to."""
    return {
        tensor.storage
        for bsym in trace.bound_symbols
        if bsym.answer is not None and bsym.mutates
        for position, tensor in enumerate(tensor_arguments(bsym.args, bsym.kwargs))
        if position in bsym.answer.mutated
    }


class Replay:
    """Goes through a program line by line.

    views: the views of inputs that the program takes, as views of the real inputs.
    """

    def __init__(self, trace: Trace, written: set[Storage], overwrites: Overwrites) -> None:
        self._trace = trace
        self._written = written
        self._given = {arg.storage for arg in trace.args if isinstance(arg, TensorProxy)}
        self._memory = memory = overwrites.memory
        self.views = RealViews(trace, memory)
        self._overwrites = overwrites

    def run(self) -> None:
        """Makes the functional program's lines."""
        self._take_in(self._trace.args, inputs=True)
        for bsym in self._trace.bound_symbols:
            self._memory.now = self._memory.sizes.line = bsym
            self._line(bsym)
            self._take_in(bsym.outputs, inputs=False)
        self._memory.now = self._memory.sizes.line = None
        self._overwrites.mark(self._memory.lines)

    # Memory

    def _take_in(self, proxies: Any, *, inputs: bool) -> None:
        """Takes in tensors that begin a piece of memory which is written to."""
        memory = self._memory
        new = [
            proxy
            for proxy in dict.fromkeys(proxies)
            if isinstance(proxy, TensorProxy)
            and proxy.storage in self._written
            and proxy not in memory
        ]
        if inputs:
            memory.sizes.specialise(overlap.sharing(new))
        for group in overlap.groups(new):
            given = tuple(group) if inputs else ()
            if len(group) == 1:
                memory.add(group[0], given, group[0].storage_offset)
            else:
                self._take_in_group(group, given)

    def _take_in_group(self, group: list[TensorProxy], given: tuple[TensorProxy, ...]) -> None:
        """Tensors that share memory become views of one: of one among them, else of a flat copy of the memory."""
        memory = self._memory
        overlap.refuse_unlike(group)
        start, end = overlap.extent(group)
        whole = next((proxy for proxy in group if overlap.covers(proxy, start, end)), None)
        if whole is None or start != 0:
            flat = memory.emit(
                torch.as_strided, (group[0], (end - start,), (1,), start), {}, grad=False
            )
            whole = memory.emit(torch.clone, (flat,), {}, grad=False)
        memory.add(whole, given, start)
        for proxy in group:
            if proxy is not whole:
                memory.add_part(proxy, whole, proxy.storage_offset - start)

    # Lines

    def _line(self, bsym: BoundSymbol) -> None:
        memory = self._memory
        touched = [proxy for proxy in tensor_arguments(bsym.args, bsym.kwargs) if proxy in memory]
        if bsym.sym is prims.SAME:
            (proxy,) = bsym.args
            if touched:
                memory.alias(bsym.output, proxy)
                self.views.same(bsym.output, proxy)
            else:
                memory.renamed[bsym.output] = memory.renamed.get(proxy, proxy)
            return
        self._overwrites.before(list(dict.fromkeys(map(memory.base, touched))))
        for proxy in touched:
            memory.arrange(proxy)
        mapping = self._mapping(bsym)
        if bsym.mutates:
            self._write(bsym, mapping)
        elif any(self._is_view(out, touched) for out in bsym.outputs):
            self._view(bsym, mapping)
        else:
            self._read(bsym, mapping)

    def _mapping(self, bsym: BoundSymbol) -> dict[Proxy, Any]:
        """What stands in the functional program for the values that a line reads, where that is something else."""
        mapping: dict[Proxy, Any] = {}
        for proxy in dict.fromkeys(bsym.inputs):
            value = memory_value(self._memory, proxy)
            if (
                isinstance(value, TensorProxy)
                and isinstance(proxy, TensorProxy)
                and not self._memory.sizes.same_geometry(value, proxy)
            ):
                raise MutationError(
                    f"a tensor that was written to cannot be brought to its layout again{self._memory.at()}; "
                    "write to a contiguous tensor"
                )
            if value is not proxy:
                mapping[proxy] = value
        return mapping

    def _is_view(self, out: Proxy, touched: list[TensorProxy]) -> bool:
        if not isinstance(out, TensorProxy) or out in touched:
            return False
        return any(proxy.storage is out.storage for proxy in touched)

    def _read(self, bsym: BoundSymbol, mapping: dict[Proxy, Any]) -> None:
        """A call that neither writes nor gives views of memory that is written to."""
        memory = self._memory
        if not mapping:
            memory.lines.append(bsym)
            return
        line = bsym.substitute(mapping)
        if bsym.answer is not None and _merges(bsym, mapping):
            line = self._asked_again(line)
            memory.renamed.update(zip(bsym.outputs, line.outputs, strict=True))
        memory.lines.append(line)

    def _asked_again(self, line: BoundSymbol) -> BoundSymbol:
        """The line of a call of which two arguments have become one."""
        assert line.sym.impl is not None
        with without_autocast(), torch.set_grad_enabled(line.grad_enabled):
            sizes, make = self._memory.sizes, self._memory.new
            answer, output = sizes.ask(line.sym.impl, line.args, line.kwargs, make, {})
        return line.from_bsym(output=output, answer=answer)

    def _view(self, bsym: BoundSymbol, mapping: dict[Proxy, Any]) -> None:
        """A call that gives views: it stays as it is, and functional tensors learn of the views."""
        memory = self._memory
        tensors = tensor_arguments(bsym.args, bsym.kwargs)
        if bsym.sym.impl in STORAGE_READERS:
            overlap.begins(self._memory, tensors)
        specs = leaves(bsym.answer.output) if bsym.answer is not None else []
        try:
            made = memory.run(bsym)
        except NotFunctionalError:
            made = [self._part(out, tensors) for out in bsym.flat_outs]
        line = self._view_line(bsym, mapping, tensors)
        self._overwrites.follow(bsym, line)
        self.views.taken(bsym, line)
        memory.lines.append(line)
        for spec, out, now, tensor in zip(specs, bsym.flat_outs, line.flat_outs, made, strict=True):
            if type(spec) is not NewTensor:
                continue
            of = _in_same_storage(out, tensors)
            if of is not None and of in memory:
                memory.take_view(out, tensor, of, now)
            elif now is not out:
                memory.renamed[out] = now

    def _view_line(
        self, bsym: BoundSymbol, mapping: dict[Proxy, Any], tensors: list[TensorProxy]
    ) -> BoundSymbol:
        if not mapping:
            return bsym
        line = bsym.substitute(mapping)
        if _merges(bsym, mapping):
            return self._asked_again(line)
        now = [mapping.get(tensor, tensor) for tensor in tensors]
        output = self._memory.sizes.again(bsym, now, self._memory.new)
        return line.from_bsym(output=output, answer=bsym.answer)

    def _part(self, out: Any, tensors: list[TensorProxy]) -> Any:
        """The functional tensor of a view that only its geometry tells, such as of `x[i]` for a tensor i."""
        of = _in_same_storage(out, tensors)
        if of is None or of not in self._memory:
            return None
        overlap.begins(self._memory, [of])
        base = self._memory.base(of)
        return self._memory.part(out, base, out.storage_offset - base.start)

    # Writes

    def _write(self, bsym: BoundSymbol, mapping: dict[Proxy, Any]) -> None:
        memory = self._memory
        assert bsym.answer is not None
        tensors = tensor_arguments(bsym.args, bsym.kwargs)
        written = [tensors[position] for position in bsym.answer.mutated]
        overlap.refuse_repeating(bsym, written, memory.at)
        bases = list(dict.fromkeys(map(memory.base, written)))
        before = {base: memory.plain_value(base) for base in bases}
        hidden = [base for base in bases if self._is_hidden(bsym, base, before[base], tensors)]
        grad = bsym.grad_enabled and not hidden
        mark = len(memory.lines)
        try:
            self._write_functionally(bsym, bases, grad=grad)
        except NotFunctionalError:
            for base in bases:
                memory.put(base.proxy, before[base])
            del memory.lines[mark:]
            self._write_on_clones(bsym, mapping, written, bases, grad=grad)
        if hidden and len(hidden) < len(bases):
            raise MutationError(
                f"{bsym.sym.name} writes at once to what autograd sees and what it does not{memory.at()}"
            )
        for base in bases:
            self._overwrites.written(base, mark, bsym, {p: mapping.get(p, p) for p in written})
            if base in hidden:
                memory.hide(base, before[base])
            elif grad and base.inputs and memory.plain_value(base).requires_grad:
                here = [proxy for proxy in written if memory.base(proxy) is base]
                memory.follow(base, [in_place.root_of(p, self._trace.bound_symbols) for p in here])

    def _is_hidden(
        self, bsym: BoundSymbol, base: Base, before: TensorProxy, tensors: list[TensorProxy]
    ) -> bool:
        """Whether autograd does not see a write to what it follows: under no_grad, or to a detached tensor."""
        if not (self._memory.grad and before.requires_grad):
            return False
        assert bsym.answer is not None
        return not bsym.grad_enabled or not any(
            bsym.answer.changed.get(position, tensors[position].meta).requires_grad
            for position in bsym.answer.mutated
            if self._memory.base(tensors[position]) is base
        )

    def _write_functionally(self, bsym: BoundSymbol, bases: list[Base], *, grad: bool) -> None:
        memory = self._memory
        assert bsym.answer is not None
        specs = leaves(bsym.answer.output)
        if any(type(spec) is NewTensor for spec in specs) or not _is_torch(bsym):
            raise NotFunctionalError(
                f"{bsym.sym.name} gives new tensors besides, or is not PyTorch's"
            )
        if write_back.takes_over(bsym, memory, self._given):
            memory.put(*bsym.args[:2])
            return
        if not overlap.counts_right(bsym, bases):
            raise NotFunctionalError(f"{bsym.sym.name} counts from where memory begins")
        if grad and not is_differentiable(bsym, memory.sizes):
            raise NotFunctionalError(f"{bsym.sym.name} is not differentiated in place")
        memory.run(bsym)
        for base in bases:
            memory.settle(base)
        memory.flush(grad=grad)

    def _write_on_clones(
        self,
        bsym: BoundSymbol,
        mapping: dict[Proxy, Any],
        written: list[TensorProxy],
        bases: list[Base],
        *,
        grad: bool,
    ) -> None:
        """The call as it is, on clones of what it writes to."""
        memory = self._memory
        given = tensor_arguments(bsym.args, bsym.kwargs)
        inside = [proxy for proxy in given if proxy in memory and memory.base(proxy) in bases]
        if len(inside) > len(bases):
            raise MutationError(
                f"{bsym.sym.name} has no functional form, and its arguments share memory{memory.at()}; clone one"
            )
        assert bsym.answer is not None
        if any(
            type(spec) is NewTensor and spec.storage[0] == "argument"
            for spec in leaves(bsym.answer.output)
        ):
            raise MutationError(
                f"{bsym.sym.name} writes to its argument and returns a view of it{memory.at()}; use the functional form"
            )
        clones = dict(mapping)
        for proxy in written:
            value = mapping.get(proxy, proxy)
            clone = memory.emit(torch.clone, (value,), {}, grad=grad)
            if memory.sizes.stride(clone) != memory.sizes.stride(proxy):
                clone = memory.emit(torch.ops.aten.copy.default, (value, value), {}, grad=grad)
            clones[proxy] = clone
        memory.lines.append(bsym.substitute(clones))
        for proxy in written:
            memory.put(proxy, clones[proxy])
        for base in bases:
            memory.settle(base)
        memory.flush(grad=grad)


def memory_value(memory: Memory, proxy: Proxy) -> Any:
    """What stands for a value in the functional program."""
    if isinstance(proxy, TensorProxy) and proxy in memory:
        return memory.value(proxy)
    return memory.renamed.get(proxy, proxy)


def _merges(bsym: BoundSymbol, mapping: dict[Proxy, Any]) -> bool:
    tensors = tensor_arguments(bsym.args, bsym.kwargs)
    return len({mapping.get(tensor, tensor) for tensor in tensors}) < len(tensors)


def _in_same_storage(out: Any, tensors: list[TensorProxy]) -> TensorProxy | None:
    if not isinstance(out, TensorProxy):
        return None
    return next((tensor for tensor in tensors if tensor.storage is out.storage), None)


def _is_torch(bsym: BoundSymbol) -> bool:
    inner = getattr(bsym.sym, "inner", bsym.sym)  # of a call under other settings
    return inner.impl is not None and is_pytorch(inner.impl)
