"""The pipeline: passes in their order, each taking the program a step further, every step kept."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from tracemill.compiler import observers
from tracemill.compiler.errors import PassError, TraceError, UnsupportedError
from tracemill.compiler.ordering import RegisteredPass
from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.plugins import PLUGINS
from tracemill.compiler.reporting import text_for_error
from tracemill.compiler.settings import without_autocast
from tracemill.compiler.trace import Program, Trace
from tracemill.passes.verify import verify, verify_program

PrinterOf = Callable[[str], Any]
"""From a stage to the printer of its traces."""


@dataclass(frozen=True)
class Step:
    """One pass that ran: the program it made, and what it cost.

    program: None where it is not kept. seconds: wall time. symbols: bound symbols of all traces, before and after.
    saved_bytes: what the program keeps for its backward. facts: what the pass says of its work.
    """

    name: str
    stage: str
    program: Program | None
    seconds: float
    symbols: tuple[int, int]
    saved_bytes: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class History:
    """The steps of one specialisation, oldest first; after an error, those that were done."""

    steps: list[Step] = field(default_factory=list)

    def traces(self, role: str) -> list[Trace]:
        """The traces of a role, one for each step that has it."""
        programs = [step.program for step in self.steps if step.program is not None]
        found = [program.traces().get(role) for program in programs]
        return [trace for trace in found if trace is not None]

    def keep_last(self) -> None:
        """Forgets the programs of all steps but the last."""
        self.steps[:-1] = [replace(step, program=None) for step in self.steps[:-1]]


def run(
    passes: Sequence[RegisteredPass],
    context: PassContext,
    history: History,
    printer_of: PrinterOf = lambda stage: None,
    program: Program | None = None,
) -> Program:
    """Runs passes on a program, an empty one unless it is given; each step is added to `history` as soon as it is done.

    Traces are verified after passes that are not tracemill's own, after all where TRACEMILL_VERIFY=1, after none where
    it is 0.

    Raises TraceError for an ill-formed trace, and PassError when a pass fails otherwise; both name the pass and its
    plugin, and show the trace. What the user's program raises, and UnsupportedError, reach the caller as they are.
    """
    program = program or Program(Trace("prologue"), Trace("computation"))
    observers.follow_environment()
    verified = os.environ.get("TRACEMILL_VERIFY")
    for registered in passes:
        item = registered.item
        before = program
        PLUGINS.notify("tracemill_before_pass", pass_=item, program=before, context=context)
        context.report = {}
        begun = time.perf_counter()
        program = _run_one(registered, before, context, printer_of)
        seconds = time.perf_counter() - begun
        if verified == "1" or (verified != "0" and not registered.is_ours):
            _verify_step(registered, before, program)
        history.steps.append(
            Step(
                item.name,
                item.stage,
                program,
                seconds,
                (_size(before), _size(program)),
                program.saved_bytes,
                context.report,
            )
        )
        PLUGINS.notify(
            "tracemill_after_pass",
            pass_=item,
            before=before,
            program=program,
            seconds=seconds,
            context=context,
        )
    return program


def _run_one(
    registered: RegisteredPass, program: Program, context: PassContext, printer_of: PrinterOf
) -> Program:
    item = registered.item
    given = program.traces()
    lines = {role: tuple(trace.bound_symbols) for role, trace in given.items()}
    ambient = nullcontext() if item.stage == "interpretation" else without_autocast()
    try:
        with ambient:  # the lines have their casts by then, and run without
            made = item.run(program, context)
        for role, trace in given.items():
            if len(lines[role]) != len(trace.bound_symbols) or not all(
                map(operator.is_, lines[role], trace.bound_symbols)
            ):
                trace.bound_symbols[:] = lines[role]
                raise TypeError(
                    f"it edited the {role} that it was given; make another with trace.replace(...)"
                )
    except UnsupportedError:
        raise
    except Exception as error:
        if isinstance(item, ProgramPass) and item.runs_program:
            raise  # the user's own
        raise PassError(_failure(registered, program, context, error)) from error
    return _stamped(item.stage, item.name, program, made, printer_of(item.stage))


def _failure(
    registered: RegisteredPass, program: Program, context: PassContext, error: Exception
) -> str:
    role = context.role if context.role in program.traces() else "computation"
    trace = program.traces()[role]
    return (
        f"{_by(registered)} failed: {type(error).__name__}: {error}\n"
        f"The {role} that it was given (earlier ones: tracemill.last_traces):\n{text_for_error(trace)}"
    )


def _by(registered: RegisteredPass) -> str:
    item = registered.item
    return f"pass {item.name!r} of stage {item.stage}, of {registered.owner},"


def _stamped(stage: str, name: str, before: Program, made: Program, printer: Any) -> Program:
    """The program with its new traces knowing where they come from; those that the pass left alone stay themselves.

    Where the stage has a printer of its own, that is what all its traces print by: the last stage's text is what runs.
    """
    old = before.traces()
    stamped: dict[str, Trace] = {}
    for role, trace in made.traces().items():
        if trace is not old.get(role):
            stamped[role] = trace.finished(stage=stage, constructed_by=name, printer=printer)
        elif trace.printer is not printer:
            stamped[role] = trace.finished(stage=stage, printer=printer)
    return made.replace(**stamped)


def _verify_step(registered: RegisteredPass, before: Program, program: Program) -> None:
    old = before.traces()
    try:
        for role, trace in program.traces().items():
            if trace is not old.get(role):
                verify(trace, old.get(role))
        verify_program(program)
    except TraceError as error:
        raise TraceError(f"{error}\nmade by {_by(registered).rstrip(',')}") from None


def _size(program: Program) -> int:
    return sum(len(trace.bound_symbols) for trace in program.traces().values())
