"""Overwrites: what a line read or made, and so may have kept for its backward, is written to afterwards.

    y = x.exp()
    y.data.mul_(2)    # the backward of exp reads what y holds then
    with torch.no_grad():
      y.mul_(2)       # the backward of exp raises: y is another version

Functional programs know neither; lines are told here, and the chain rule asks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tracemill.compiler.meta import Storage
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbol import BoundSymbol, Overwritten
from tracemill.passes.interpretation.mutation.memory import Base, Memory

_PUTTING = (
    torch.select_scatter,
    torch.slice_scatter,
    torch.diagonal_scatter,
    torch.as_strided_scatter,
)
"""How a value gets a part that a view of it was written."""


@dataclass(frozen=True)
class _Overwrite:
    """A write to a base.

    begin, end: its lines in the functional program. past: what the base held before; parts: what views of it were written
    before. own: the values in place of which it writes, of which autograd keeps copies. seen: whether a version counter
    tells. line: the user's.
    """

    base: Base
    begin: int
    end: int
    past: tuple[TensorProxy, ...]
    parts: tuple[TensorProxy, ...]
    own: frozenset[Any]
    seen: bool
    line: BoundSymbol

    def reaches(self, proxy: TensorProxy, index: int) -> bool:
        """Whether it writes to a value after the line at `index` has kept it."""
        return index < self.begin or (index < self.end and proxy not in self.own)


@dataclass
class Overwrites:
    """The writes of a program, in order.

    unseen: the tensors that the program took by `.data`, which have a version counter of their own.
    """

    memory: Memory
    unseen: set[TensorProxy]
    _writes: list[_Overwrite] = field(default_factory=list)
    _values: dict[Base, list[TensorProxy]] = field(default_factory=dict)
    _parts: dict[Base, list[TensorProxy]] = field(default_factory=dict)
    _untold: dict[Base, list[TensorProxy]] = field(default_factory=dict)

    def follow(self, bsym: BoundSymbol, line: BoundSymbol) -> None:
        """Takes note of a call that gives views, now by `line`: those of what was taken by `.data` are unseen too."""
        given = {proxy.storage for proxy in _tensors(bsym.inputs) if proxy in self.unseen}
        for out, now in zip(bsym.flat_outs, line.flat_outs, strict=True):
            if isinstance(out, TensorProxy) and (out in self.unseen or out.storage in given):
                self.unseen.update((out, now))

    def before(self, bases: list[Base]) -> None:
        """Takes note of what these hold as a line comes to them."""
        for base in bases:
            value, known = self.memory.plain_value(base), self._values.setdefault(base, [])
            if value not in known:
                known.append(value)

    def written(
        self, base: Base, begin: int, line: BoundSymbol, own: Mapping[TensorProxy, Any]
    ) -> None:
        """Takes note that `line`, whose own lines begin at `begin`, wrote to a base.

        own: the tensors that it writes to, each with the value that it had.
        """
        memory = self.memory
        value = memory.plain_value(base)
        past = [other for other in self._values.pop(base, []) if other is not value]
        past = [*self._untold.pop(base, ()), *past]
        here = [proxy for proxy in own if memory.base(proxy) is base]
        seen = _is_declared(line) and any(proxy not in self.unseen for proxy in here)
        base.versioned = base.versioned or seen
        if not seen:
            self._untold[base] = past  # a later write may tell of what this one does not
        once = [own[proxy] for proxy in here if line.flat_args.count(proxy) == 1]
        parts, end = tuple(self._parts.pop(base, ())), len(memory.lines)
        self._writes.append(
            _Overwrite(base, begin, end, tuple(past), parts, frozenset(once), seen, line)
        )
        known = {other.storage for other in (value, *past)}
        put = _put_into(value, memory.lines[begin:])
        self._parts[base] = [part for part in put if part.storage not in known]

    def mark(self, lines: list[BoundSymbol]) -> None:
        """Tells each line that autograd differentiates which of its values were written to after it."""
        by_storage: dict[Storage, list[_Overwrite]] = {}
        for write in self._writes:
            for storage in {value.storage for value in (*write.past, *write.parts)}:
                by_storage.setdefault(storage, []).append(write)
        for index, line in enumerate(lines if by_storage else ()):
            if line.grad_enabled and any(out.requires_grad for out in _tensors(line.outputs)):
                found = [
                    self._overwritten(proxy, later)
                    for proxy in dict.fromkeys(_tensors((*line.inputs, *line.outputs)))
                    if (
                        later := [
                            w for w in by_storage.get(proxy.storage, ()) if w.reaches(proxy, index)
                        ]
                    )
                ]
                if found:
                    lines[index] = line.from_bsym(overwritten=tuple(found))

    def _overwritten(self, proxy: TensorProxy, later: list[_Overwrite]) -> Overwritten:
        telling = next((write for write in later if write.seen), later[0])
        if telling.seen and proxy not in self.unseen:
            return Overwritten(proxy, None, telling.line.source, True)
        whole = any(_are_alike(proxy, value) for value in telling.past)
        now = self.memory.plain_value(telling.base) if whole else None
        return Overwritten(proxy, now, telling.line.source, False)


def _is_declared(line: BoundSymbol) -> bool:
    """Whether version counters tell of a line's write: of a batch norm's to its statistics they may not."""
    return not line.operations or any(op._schema.is_mutable for op in line.operations)


def _put_into(value: TensorProxy, lines: Sequence[BoundSymbol]) -> list[TensorProxy]:
    """What was put into a value by lines that write to views of it."""
    made_by = {out: line for line in lines for out in line.outputs}
    found: dict[TensorProxy, None] = {}
    coming = [value]
    while coming:
        out = coming.pop()
        line = made_by.get(out)
        given = [] if line is None else [t for t in _tensors(line.inputs) if t not in found]
        if line is not None and (
            line.sym.impl in _PUTTING or any(tensor.storage is out.storage for tensor in given)
        ):
            found.update(dict.fromkeys(given))
            coming.extend(given)
    return list(found)


def _tensors(values: Iterable[Any]) -> Iterator[TensorProxy]:
    return (value for value in values if isinstance(value, TensorProxy))


def _are_alike(proxy: TensorProxy, other: TensorProxy) -> bool:
    """Whether two tensors are the same part of a memory."""
    return proxy.storage is other.storage and (
        (proxy.meta.shape, proxy.meta.stride, proxy.storage_offset)
        == (other.meta.shape, other.meta.stride, other.storage_offset)
    )
