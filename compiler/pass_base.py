"""What a pass is: a frozen dataclass with a name, a stage, an order, and one method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from tracemill.compiler.calling import CallForm
from tracemill.compiler.names import Names
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.trace import Program, Trace

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Call:
    """A call to be compiled: how the program is called, a value for each parameter, and what in it is marked."""

    form: CallForm
    values: Sequence[Any]
    marks: Sequence[Any] = ()


@dataclass(eq=False)
class PassContext:
    """What a pass may ask besides its trace; one object for all passes of a compilation.

    call: the call that is compiled.
    cache: the cache mode.
    executors: the executors in order of preference.
    sharp_edges: "allow", "warn" or "error" for calls that no check can keep faithful.
    role: which of the program's traces the pass is given.
    rebuild: from what the computation returns to what the program returns, or None.
    raised: what the program itself raised while it was traced.
    handles: whether the program goes on after errors, which its torch calls may raise for what their tensors hold.
    runs_users_code: whether lines of the program are functions of the user's, whose effects no epilogue holds back.
    printed: writes, each a part, what the program printed while it was traced.
    sizes: how PyTorch is asked about the program's tensors, whose sizes may differ from call to call.
    unseen: the tensors that the program took by `.data`, writes to which no version counter tells.
    fake_mode: the mode of the tensors without data that the program is compiled with; None where they have data.
    derivation: how the program was differentiated, for backwards with fewer cotangents; None where it was not.
    report: facts that the running pass adds to its entry in `last_report`, such as {"recomputed": 3}.
    """

    call: Call
    cache: str = "constant values"
    executors: Sequence[Any] = ()
    role: str = "computation"
    sharp_edges: str = "warn"
    rebuild: Callable[[Sequence[Any]], Any] | None = None
    raised: Exception | None = None
    handles: bool = False
    runs_users_code: bool = False
    printed: list[Callable[[], object]] = field(default_factory=list)
    sizes: Sizes = field(default_factory=Sizes)
    unseen: set[Any] = field(default_factory=set)
    fake_mode: Any = None
    derivation: Any = None
    report: dict[str, Any] = field(default_factory=dict)

    def show(self) -> None:
        """Prints what the program printed: a program that is refused, or left to eager, has printed nothing."""
        for printed in self.printed:
            printed()
        self.printed.clear()

    @property
    def sizes_are_symbolic(self) -> bool:
        """Whether the arguments' sizes are to differ from call to call."""
        return self.cache == "symbolic values"

    def names(self, *traces: Trace) -> Names:
        """An allocator of names that are free in `traces`."""
        return Names(name for trace in traces for name in trace.names)


@dataclass(frozen=True)
class Pass:
    """Takes a trace and gives a new one; a subclass is a frozen dataclass, and its fields are its options.

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
        """The new trace; the one given stays as it is, and may be returned where there is nothing to do."""
        raise NotImplementedError

    def run(self, program: Program, context: PassContext) -> Program:
        """The new program: `apply` on each trace that the pass is for."""
        made: dict[str, Trace] = {}
        for role, trace in program.traces().items():
            if role in self.roles:
                context.role = role
                made[role] = _made(Trace, self.apply(trace, context))
        return program.replace(**made)


@dataclass(frozen=True)
class ProgramPass:
    """A pass that needs prologue, computation, backward and epilogue together.

    name, stage, before, after: as in `Pass`.
    runs_program: whether `apply` runs the user's program, whose errors then reach the caller as they are.
    """

    name: ClassVar[str] = ""
    stage: ClassVar[str] = ""
    before: ClassVar[tuple[str, ...]] = ()
    after: ClassVar[tuple[str, ...]] = ()
    runs_program: ClassVar[bool] = False

    def apply(self, program: Program, context: PassContext) -> Program:
        """The new program."""
        raise NotImplementedError

    def run(self, program: Program, context: PassContext) -> Program:
        """The same as `apply`."""
        return _made(Program, self.apply(program, context))


def _made(kind: type[T], made: Any) -> T:
    if not isinstance(made, kind):
        raise TypeError(f"apply returned {made!r}, not a {kind.__name__}")
    return made


AnyPass = Pass | ProgramPass
