"""What a pass is: a frozen dataclass with a name, a stage, an order, and one method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tracemill.compiler.calling import CallForm
from tracemill.compiler.names import Names
from tracemill.compiler.trace import Program, Trace


@dataclass(frozen=True)
class Call:
    """A call to be compiled: how the program is called, and a value for each parameter."""

    form: CallForm
    values: Sequence[Any]


@dataclass
class PassContext:
    """What a pass may ask besides its trace.

    call: the call that is compiled.
    cache: the cache mode.
    executors: the executors in order of preference.
    role: which of the program's traces the pass is given.
    rebuild: from what the computation returns to what the program returns, or None.
    report: facts for `last_report`, by pass.
    """

    call: Call
    cache: str = "constant values"
    executors: Sequence[Any] = ()
    role: str = "computation"
    rebuild: Callable[[Sequence[Any]], Any] | None = None
    report: dict[str, Any] = field(default_factory=dict)

    def names(self, *traces: Trace) -> Names:
        """An allocator of names that are free in `traces`."""
        return Names(name for trace in traces for name in trace.names)


@dataclass(frozen=True)
class Pass:
    """Takes a trace and gives a new one; the fields of a subclass are its options.

    name: unique among all passes.
    stage: the slot of the pipeline it runs in.
    before, after: names of passes of its stage that it must precede or follow.
    roles: which of the program's traces it is given.
    """

    name: ClassVar[str] = ""
    stage: ClassVar[str] = ""
    before: ClassVar[tuple[str, ...]] = ()
    after: ClassVar[tuple[str, ...]] = ()
    roles: ClassVar[tuple[str, ...]] = ("computation", "backward")

    def apply(self, trace: Trace, context: PassContext) -> Trace:
        """The new trace."""
        raise NotImplementedError

    def run(self, program: Program, context: PassContext) -> Program:
        """The new program: `apply` on each trace that the pass is for."""
        made: dict[str, Trace] = {}
        for role, trace in program.traces().items():
            if role in self.roles:
                context.role = role
                made[role] = self.apply(trace, context)
        return program.replace(**made)


@dataclass(frozen=True)
class ProgramPass:
    """A pass that needs prologue, computation, backward and epilogue together."""

    name: ClassVar[str] = ""
    stage: ClassVar[str] = ""
    before: ClassVar[tuple[str, ...]] = ()
    after: ClassVar[tuple[str, ...]] = ()

    def apply(self, program: Program, context: PassContext) -> Program:
        """The new program."""
        raise NotImplementedError

    def run(self, program: Program, context: PassContext) -> Program:
        """The same as `apply`."""
        return self.apply(program, context)


AnyPass = Pass | ProgramPass
