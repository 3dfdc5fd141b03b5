"""Lifetimes: after which line a value is needed no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracemill.compiler import prims
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol


def freed(lines: Sequence[BoundSymbol], kept: Iterable[Proxy]) -> list[BoundSymbol]:
    """The lines with a `del` after each value's last use; `kept` are needed to the end."""
    alive = set(kept)
    reversed_lines: list[BoundSymbol] = []
    for bsym in reversed(lines):
        touched = dict.fromkeys([*bsym.inputs, *bsym.outputs])
        dead = [proxy for proxy in touched if proxy not in alive]
        if dead:
            reversed_lines.append(prims.delete(dead, of=bsym))
            alive.update(dead)
        reversed_lines.append(bsym)
    return reversed_lines[::-1]
