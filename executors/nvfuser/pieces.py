"""Pieces: lines that could be one region, cut into those that nvFuser compiles in sensible time.

Lines that values do not connect become kernels of their own also where one definition has them all; in definitions of
their own, those that do the same, such as the updates of an optimiser's parameters, share theirs. The time to compile a
kernel grows with more than the number of its operations: of a chain, in seconds of one core, 100 take 1.3, 200 take 3.2,
and 400 take 11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from networkx.utils import UnionFind

from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol

MOST_OPERATIONS = 200
"""Of how many ATen operations a region is, unless a user wants others."""

APART = "its parts share no values"

Piece = list[BoundSymbol]


def connected(lines: Sequence[BoundSymbol]) -> list[Piece]:
    """The lines by which of them read what others make or read, single numbers apart.

    Random draws are one piece: they are made in their order.
    """
    joined: UnionFind[int] = UnionFind(range(len(lines)))
    first: dict[Proxy, int] = {}
    drawn: int | None = None
    for number, bsym in enumerate(lines):
        for value in (*bsym.inputs, *bsym.outputs):
            if value in first:
                joined.union(number, first[value])
            elif value in bsym.outputs or _is_large(value):
                first[value] = number
        if bsym.is_random:
            drawn = number if drawn is None else drawn
            joined.union(number, drawn)
    groups = sorted(map(sorted, joined.to_sets()))
    return [[lines[number] for number in group] for group in groups]


def cut(lines: Sequence[BoundSymbol], most: int) -> Iterator[Piece]:
    """The lines in as few pieces of at most so many operations as there can be, of about equal length."""
    total = sum(map(operations, lines))
    target = total / max(1, -(-total // most))
    piece: Piece = []
    count = 0
    for bsym in lines:
        more = operations(bsym)
        if piece and (count + more > most or count >= target):
            yield piece
            piece, count = [], 0
        piece.append(bsym)
        count += more
    yield piece


def operations(bsym: BoundSymbol) -> int:
    """How many ATen operations a line does."""
    return len(bsym.operations)


def _is_large(value: Proxy) -> bool:
    return isinstance(value, TensorProxy) and value.meta.numel > 1
