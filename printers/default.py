"""default: where the trace comes from, the arguments' types, and a type beside each result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from tracemill.compiler import prims
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol, FusedSymbol
from tracemill.compiler.trace import Trace
from tracemill.printers.base import INDENT, Printer, Writer, named


def typed(proxy: Proxy) -> str:
    """A value with its type, as comments show it."""
    return f'{proxy.name}: "{proxy.type_string}"'


class DefaultPrinter(Printer):
    """The program with a type beside each result."""

    name: ClassVar[str] = "default"
    decorated: ClassVar[bool] = True

    def header(self, trace: Trace) -> Iterable[str]:
        if trace.stage:
            yield f"{trace.stage}: constructed by {trace.constructed_by}"

    def on_arguments(self, trace: Trace) -> Iterable[str]:
        return map(typed, trace.args)

    def beside(self, bsym: BoundSymbol, trace: Trace) -> str:
        made = new_values(bsym)
        return typed(made[0]) if len(made) == 1 and not _is_unpack(bsym) else ""

    def after(self, bsym: BoundSymbol, trace: Trace, writer: Writer) -> Iterable[str]:
        made = new_values(bsym)
        if len(made) > 1 or _is_unpack(bsym):
            yield from map(typed, made)
        if _is_unpack(bsym) and not made:
            yield f"{bsym.args[0].name} (empty sequence)"
        if isinstance(bsym.sym, FusedSymbol):
            yield from body(bsym, writer)

    def on_bound(self, name: str, note: str) -> Iterable[str]:
        yield f"{name}: {note}"


def body(bsym: BoundSymbol, writer: Writer) -> Iterable[str]:
    """The lines of what a bound symbol consists of, as details below its own line, with their types."""
    for inner in bsym.subsymbols:
        for line in inner.sym.lines(inner, writer):
            types = ", ".join(map(typed, inner.outputs))
            *rest, last = line.splitlines()
            yield from (f"{INDENT}{part}" for part in rest)
            yield f"{INDENT}{last}  # {types}" if types else f"{INDENT}{last}"


def _is_unpack(bsym: BoundSymbol) -> bool:
    return bsym.sym in (prims.UNPACK_SEQUENCE, prims.UNPACK_SHAPE)


def new_values(bsym: BoundSymbol) -> list[Any]:
    """The values that a bound symbol defines: its outputs that are no arguments of it."""
    output, given = bsym.output, bsym.inputs
    if output is None:
        return []
    if isinstance(output, Proxy):
        return [] if output in given else [output]
    return [proxy for proxy in named(output) if proxy not in given]
