"""verbose: the default, and for each line where it comes from and the ATen operations that it does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from tracemill.compiler.symbol import BoundSymbol, FusedSymbol
from tracemill.compiler.symbolic import SymbolicTensorProxy
from tracemill.compiler.trace import Trace
from tracemill.printers.base import Writer
from tracemill.printers.default import DefaultPrinter, body


class VerbosePrinter(DefaultPrinter):
    """The program with types, source lines, module paths and the ATen operations of each line."""

    name: ClassVar[str] = "verbose"

    def before(
        self, bsym: BoundSymbol, previous: BoundSymbol | None, trace: Trace
    ) -> Iterable[str]:
        where = _origin(bsym)
        if where and (previous is None or where != _origin(previous)):
            yield from ("", *where) if previous is not None else where

    def after(self, bsym: BoundSymbol, trace: Trace, writer: Writer) -> Iterable[str]:
        yield from super().after(bsym, trace, writer)
        values = (*bsym.inputs, *bsym.outputs)
        if bsym.subsymbols and any(isinstance(value, SymbolicTensorProxy) for value in values):
            yield "  for the sizes of the call that was traced:"
        if not isinstance(bsym.sym, FusedSymbol):
            yield from body(bsym, writer)


def _origin(bsym: BoundSymbol) -> tuple[str, ...]:
    if bsym.source is None:
        return ()
    module = (f"module {bsym.module_path}",) if bsym.module_path else ()
    return (*module, f"{bsym.source}  {bsym.source.text}")
