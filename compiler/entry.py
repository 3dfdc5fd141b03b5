"""Entries: the specialisations of a callable, each with its compiled programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracemill.compiler.calling import CallForm
from tracemill.compiler.codegen import code_of
from tracemill.compiler.guards import Mismatch
from tracemill.compiler.joined import Unjoinable, joined
from tracemill.compiler.pipeline import History
from tracemill.compiler.tables import Tables
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.unwritten import Facets, by_identity, while_unwritten
from tracemill.printers.base import Printer

JOINED = 256
"""Lines up to which an entry's texts are joined: in longer ones the fraction of a microsecond that it saves drowns."""

LASTING = 64
"""Calls in which one that takes tables for unwritten saves what it costs to make; those that last less are left out."""


@dataclass(eq=False)
class Entry:
    """One specialisation.

    prologue: checks a call's arguments and gives the computation's. run: from these to the program's result.
    plain: whether `run` is the texts as they are, and then `rebuild` on what they return.
    in_eager: whether a call that raises before it has written anything is to run in eager.
    call: the function of a whole call, once it is joined; raises Mismatch where the entry does not fit.
    failed: the check that it failed on last. turn: the number of the call at which it was made or found again.
    checks: the prologue as it is in `call`. tables: the check of the tables that it takes for unwritten; None where it
    reads them. joined_at: the turn of `call`. written_once, written: what was written to soon after that, once and twice.
    """

    program: Program
    prologue: Callable[..., tuple[Any, ...]]
    run: Callable[..., Any]
    history: History
    plain: bool = False
    rebuild: Callable[[Any], Any] | None = None
    in_eager: bool = False
    failed: str = ""
    turn: int = 0
    call: Callable[..., Any] | None = None
    checks: Trace | None = None
    tables: Tables | None = None
    joined_at: int = 0
    written_once: Facets = field(default_factory=dict)
    written: Facets = field(default_factory=dict)

    def join(
        self,
        form: CallForm,
        printer_for: Callable[[Any], Printer],
        turn: int,
        fits: Callable[[], object],
    ) -> None:
        """Makes `call`; at the first hit, so that a first call does not pay for it, and after a write to `tables`.

        To be called after the prologue has passed. turn: the number of the call. fits: runs the prologue once more.
        """
        if self.call is not None and (self.tables is None or self.tables.check()):
            return
        self.checks = self._while_unwritten(turn, fits) or self.program.prologue
        try:
            names = [parameter.name for parameter in form.parameters]
            self.call = self._joined(self.checks, names, printer_for)
        except Unjoinable:
            self.checks, self.tables = self.program.prologue, None
            self.call = _in_turn(self.prologue, self.run)

    def _while_unwritten(self, turn: int, fits: Callable[[], object]) -> Trace | None:
        """The prologue for as long as nobody writes to `tables`, those left out that were written to too soon."""
        if self.tables is not None and turn - self.joined_at < LASTING:
            soon = by_identity(self.tables.written())
            self.written |= {key: soon[key] for key in soon.keys() & self.written_once.keys()}
            self.written_once |= soon
        self.joined_at, self.tables = turn, None
        try:
            found = while_unwritten(self.program.prologue, self.written)
            if found is None or not found[1].check():
                return None
            fits()
        except Exception:  # another thread wrote between this call's prologue and now
            return None
        prologue, self.tables = found
        return prologue

    def _joined(
        self, prologue: Trace, parameters: Sequence[str], printer_for: Callable[[Any], Printer]
    ) -> Callable[..., Any]:
        traces = [prologue]
        if self.plain:
            roles = self.program.traces()
            traces += [roles[role] for role in ("computation", "epilogue") if role in roles]
        if sum(len(trace.bound_symbols) for trace in traces) <= JOINED:
            first, *codes = [code_of(trace, printer_for(trace.printer)) for trace in traces]
            if self.plain:
                return joined(first, codes, self.rebuild, parameters)
        elif self.tables is None:
            raise Unjoinable("it is long")
        else:
            first = code_of(prologue, printer_for(prologue.printer))
        return joined(first, self.run, None, parameters)


def _in_turn(prologue: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            inputs = prologue(*args, **kwargs)
        except Exception as error:
            raise Mismatch(str(error)) from error
        return run(*inputs)

    return call
