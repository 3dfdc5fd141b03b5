"""Dependencies: which lines of a trace must stay after which, by values, by memory and by effects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tracemill.compiler import prims
from tracemill.compiler.answer import tensor_arguments
from tracemill.compiler.meta import Storage
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.passes.dce import has_effect


def dependencies(lines: Sequence[BoundSymbol]) -> list[set[int]]:
    """For each line, the earlier lines that it must come after.

    A line follows those that make its values; a write to memory follows all that touched that memory, and is followed
    by all that touch it later; effects, draws and operations that nothing is known about keep their order; and what
    stood below a check stays below it, since it may only be right on that path.
    """
    return _Dependencies().of(lines)


class _Dependencies:
    """What the lines so far have left behind."""

    def __init__(self) -> None:
        self._made_by: dict[Proxy, int] = {}
        self._written: dict[Storage, int] = {}
        self._touched: defaultdict[Storage, set[int]] = defaultdict(set)
        self._effect: int | None = None
        self._check: int | None = None

    def of(self, lines: Sequence[BoundSymbol]) -> list[set[int]]:
        return [self._add(index, bsym) for index, bsym in enumerate(lines)]

    def _add(self, index: int, bsym: BoundSymbol) -> set[int]:
        found = {self._made_by[value] for value in bsym.inputs if value in self._made_by}
        found.update(self._by_memory(index, bsym))
        if self._check is not None:
            found.add(self._check)
        if is_ordered(bsym):
            if self._effect is not None:
                found.add(self._effect)
            self._effect = index
        if isinstance(bsym.sym, prims.Check):
            self._check = index
        for value in bsym.outputs:
            self._made_by[value] = index
        return found

    def _by_memory(self, index: int, bsym: BoundSymbol) -> Iterator[int]:
        written = set(_written(bsym))
        values = (*bsym.inputs, *bsym.outputs)
        for storage in {value.storage for value in values if isinstance(value, TensorProxy)}:
            if storage in self._written:
                yield self._written[storage]
            if storage in written:
                yield from self._touched[storage]
                self._written[storage] = index
                self._touched[storage] = set()
            self._touched[storage].add(index)


def _written(bsym: BoundSymbol) -> Iterator[Storage]:
    if bsym.mutates and bsym.answer is not None:
        tensors = tensor_arguments(bsym.args, bsym.kwargs)
        yield from (tensors[position].storage for position in bsym.answer.mutated)


def is_ordered(bsym: BoundSymbol) -> bool:
    """Whether a line does, or may do, something that others of its kind must see in order."""
    unknown = bsym.sym.path is None and bsym.sym.impl is not None and bsym.sym is not prims.SAME
    return has_effect(bsym) or bsym.is_random or unknown
