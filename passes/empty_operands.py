"""Empty operands: what is joined with nothing is a copy.

Before, where a key-value cache begins with an empty tensor:

    def computation(x):
      t0 = torch.tensor([])
      t1 = torch.sin(x)
      t2 = torch.cat([t0, t1], dim=-2)
      t3 = torch.cat([t0, x], dim=-2)
      return (t2, t3)

After:

    def computation(x):
      t0 = torch.tensor([])
      t2 = torch.sin(x)
      t3 = torch.clone(x, memory_format=torch.contiguous_format)
      return (t2, t3)

A copy is made where somebody could tell it from what it copies. A join whose result would else have another dtype or
layout stays, and so does one that gives an empty tensor its gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tracemill.compiler.answer import Answer, NewTensor
from tracemill.compiler.meta import Storage
from tracemill.compiler.pass_base import Pass, PassContext
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.sizes import sizes_of
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.compiler.symbolic import layout_of
from tracemill.compiler.trace import Trace
from tracemill.compiler.values import leaves

_JOINS = frozenset(
    map(symbol, (torch.cat, torch.concat, torch.concatenate, torch.ops.aten.cat.default))
)


@dataclass(frozen=True)
class EmptyOperands(Pass):
    """Drops the operands of `cat` that are empty, and makes a copy of what is joined with nothing else."""

    name: ClassVar[str] = "empty_operands"
    stage: ClassVar[str] = "dce"
    before: ClassVar[tuple[str, ...]] = ("dce",)

    def apply(self, trace: Trace, context: PassContext) -> Trace:
        """The trace with joins of what there is."""
        lines = list(trace.bound_symbols)
        copies: list[int] = []
        for number, bsym in enumerate(lines):
            if bsym.sym in _JOINS:
                lines[number] = made = _joined(bsym)
                if made.sym not in _JOINS:
                    copies.append(number)
        if lines == list(trace.bound_symbols):
            return trace
        return trace.replace(bound_symbols=_without(copies, lines, trace))


def _joined(bsym: BoundSymbol) -> BoundSymbol:
    """A join of the operands that are not empty; the line as it is where that would be something else."""
    operands = bsym.args[0] if bsym.args else bsym.kwargs.get("tensors")
    dim = bsym.kwargs.get("dim", bsym.kwargs.get("axis", [*bsym.args, 0, 0][1]))
    out = bsym.output
    if not isinstance(operands, (list, tuple)) or type(dim) is not int or bsym.mutates:
        return bsym
    kept = [value for value in operands if not _is_empty(value, dim)]
    if not kept or len(kept) == len(operands) > 1 or not isinstance(out, TensorProxy):
        return bsym
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    if len(kept) == 1:
        layout = {"memory_format": torch.contiguous_format}
        calls.append((symbol(torch.clone), (kept[0],), layout))
    if len(kept) < len(operands):
        given = {"dim": dim} if bsym.sym.impl is not torch.ops.aten.cat.default else {}
        calls.append((bsym.sym, (kept,) if given else (kept, dim), given))
    for sym, args, kwargs in calls:
        answer, made = _asked(sym.impl, args, kwargs, grad=bsym.grad_enabled)
        if _are_alike(made, out):
            return bsym.from_bsym(sym=sym, args=args, kwargs=kwargs, answer=answer)
    return bsym


def _is_empty(value: Any, dim: int) -> bool:
    """Whether an operand has nothing to join, at whatever sizes; PyTorch passes over vectors of no elements."""
    if not isinstance(value, TensorProxy) or value.requires_grad or not value.sizes:
        return False
    size = value.sizes[0 if len(value.sizes) == 1 else dim]
    return type(size) is int and size == 0


def _asked(fn: Any, args: Any, kwargs: Any, *, grad: bool) -> tuple[Answer, TensorProxy]:
    """What PyTorch says of a call, and a tensor like the one that it gives."""

    def make(spec: NewTensor, storage: Storage, offset: int) -> TensorProxy:
        return TensorProxy(meta=spec.meta, storage=storage, storage_offset=offset)

    with torch.set_grad_enabled(grad):
        return sizes_of(leaves(args)).ask(fn, args, kwargs, make, {})


def _are_alike(one: TensorProxy, other: TensorProxy) -> bool:
    layouts = [layout and layout.key for layout in map(layout_of, (one, other))]
    return one.meta == other.meta and layouts[0] == layouts[1]


def _without(copies: Sequence[int], lines: list[BoundSymbol], trace: Trace) -> list[BoundSymbol]:
    """The lines without copies of a value that nobody else has: the line that makes it makes the copy's."""
    made_by = {value: n for n, bsym in enumerate(lines) for value in bsym.made}
    values = list(_values(lines, trace))
    readers = Counter(value for bsym in lines for value in bsym.inputs)
    readers.update(trace.outputs)
    tensors = {value for value in values if isinstance(value, TensorProxy)}
    sharing: Counter[Storage] = Counter(value.storage for value in tensors)
    dropped: set[int] = set()
    for number in copies:
        copy, value = lines[number].output, lines[number].args[0]
        maker = made_by.get(value)
        if maker is None or readers[value] > 1 or sharing[value.storage] > 1:
            continue
        if _are_alike(value, copy) and _may_give(lines[maker], lines[number]):
            lines[maker] = lines[maker].substitute({value: copy})
            made_by[copy] = maker
            dropped.add(number)
    return [bsym for n, bsym in enumerate(lines) if n not in dropped]


def _values(lines: Sequence[BoundSymbol], trace: Trace) -> Iterator[Proxy]:
    yield from trace.args
    for bsym in lines:
        yield from bsym.inputs
        yield from bsym.outputs


def _may_give(maker: BoundSymbol, copy: BoundSymbol) -> bool:
    """Whether a line may make what is copied of it: an operation of PyTorch's, of the same part of the program."""
    is_operation = maker.sym.path is not None and maker.is_recorded
    overwritten = maker.overwritten or copy.overwritten
    return is_operation and maker.region == copy.region and not overwritten
