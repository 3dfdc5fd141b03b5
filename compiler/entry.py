"""Entries: the specialisations of a callable, each with its compiled programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tracemill.compiler.calling import CallForm
from tracemill.compiler.codegen import code_of
from tracemill.compiler.guards import Mismatch
from tracemill.compiler.joined import Unjoinable, joined
from tracemill.compiler.pipeline import History
from tracemill.compiler.trace import Program
from tracemill.printers.base import Printer

JOINED = 256
"""Lines up to which an entry's texts are joined: in longer ones the fraction of a microsecond that it saves drowns."""


@dataclass(eq=False)
class Entry:
    """One specialisation.

    prologue: checks a call's arguments and gives the computation's. run: from these to the program's result.
    plain: whether `run` is the texts as they are, and then `rebuild` on what they return.
    call: the function of a whole call, once it is joined; raises Mismatch where the entry does not fit.
    failed: the check that it failed on last. turn: the number of the call at which it was made or found again.
    """

    program: Program
    prologue: Callable[..., tuple[Any, ...]]
    run: Callable[..., Any]
    history: History
    plain: bool = False
    rebuild: Callable[[Any], Any] | None = None
    failed: str = ""
    turn: int = 0
    call: Callable[..., Any] | None = None

    def join(self, form: CallForm, printer_for: Callable[[Any], Printer]) -> None:
        """Makes `call`; at the first hit, so that a first call does not pay for it."""
        if self.call is None:
            try:
                names = [parameter.name for parameter in form.parameters]
                self.call = self._joined(names, printer_for)
            except Unjoinable:
                self.call = _in_turn(self.prologue, self.run)

    def _joined(
        self, parameters: Sequence[str], printer_for: Callable[[Any], Printer]
    ) -> Callable[..., Any]:
        first, *others = (
            trace for role, trace in self.program.traces().items() if role != "backward"
        )
        inlined = others if self.plain else []
        if sum(len(trace.bound_symbols) for trace in (first, *inlined)) > JOINED:
            raise Unjoinable("it is long")
        prologue, *codes = [
            code_of(trace, printer_for(trace.printer)) for trace in (first, *inlined)
        ]
        if self.plain:
            return joined(prologue, codes, self.rebuild, parameters)
        return joined(prologue, self.run, None, parameters)


def _in_turn(prologue: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            inputs = prologue(*args, **kwargs)
        except Exception as error:
            raise Mismatch(str(error)) from error
        return run(*inputs)

    return call
