"""Specialisations: the programs that one jitted callable has, and how a call finds its own."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.backwards import backwards_of
from tracemill.compiler.call_key import call_key
from tracemill.compiler.calling import CallForm
from tracemill.compiler.collection import collection_deferred
from tracemill.compiler.entry import Entry
from tracemill.compiler.errors import (
    DataDependentError,
    OptionError,
    UninitialisedError,
    UnsupportedError,
)
from tracemill.compiler.guards import Mismatch, OtherPath
from tracemill.compiler.marks import SIZES, Marks
from tracemill.compiler.ordering import RegisteredPass, passes_for
from tracemill.compiler.pass_base import AnyPass, Call, PassContext
from tracemill.compiler.paths import (
    has_effects,
    may_run_in_eager,
    on_its_path,
    too_many_paths,
    unsteady,
)
from tracemill.compiler.pipeline import History, run
from tracemill.compiler.plugins import EXECUTORS, PRINTERS
from tracemill.compiler.recompilation import Recompilations
from tracemill.compiler.runner import runner_of, runs_as_it_reads
from tracemill.compiler.settings import is_somebody_elses, run_without_autocast
from tracemill.compiler.trace import STAGES
from tracemill.passes.interpretation.stand_in import interpretation
from tracemill.printers.base import Printer

CACHE_MODES = ("constant values", "symbolic values", "same input", "no caching")
SHARP_EDGES = ("allow", "warn", "error")


class CacheInfo(NamedTuple):
    """How calls found their specialisations.

    hits: calls that ran an existing one. misses: calls that made one. entries: how many there are.
    """

    hits: int
    misses: int
    entries: int


@dataclass(frozen=True)
class Options:
    """The options of `jit`, checked."""

    printer: Any = "default"
    executors: tuple[Any, ...] | None = None
    passes: tuple[AnyPass, ...] = ()
    disable_passes: tuple[str, ...] = ()
    cache: Any = "constant values"
    sharp_edges: str = "warn"
    paths: int = 32
    entries: int = 128
    keep_traces: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.cache, str):
            _one_of("cache mode", self.cache, CACHE_MODES)
        elif not isinstance(self.cache, Mapping):
            raise OptionError(f"cache is {self.cache!r}; it is a mode or marks of the arguments")
        Marks(self.cache)
        _one_of("sharp_edges", self.sharp_edges, SHARP_EDGES)
        if self.entries < 1:
            raise OptionError(f"entries must be at least 1, not {self.entries}")
        if isinstance(self.printer, Mapping):
            for stage in self.printer:
                _one_of("stage", stage, (*STAGES, "*"))
        for stage in STAGES:
            self.printer_of(stage)
        self.resolved_passes()

    @property
    def mode(self) -> str:
        """The cache mode: that of a mapping is symbolic values."""
        return self.cache if isinstance(self.cache, str) else SIZES

    def printer_of(self, stage: str) -> Printer:
        """The printer of a stage's traces; raises OptionError for an unknown one."""
        chosen = self.printer
        if isinstance(chosen, Mapping):
            chosen = chosen.get(stage, chosen.get("*", "default"))
        return printer_for(chosen)

    def resolved_passes(self) -> list[RegisteredPass]:
        """The passes in order, those of the executors included; raises what `passes_for` and unknown executors raise."""
        own = [
            item
            for executor in self.resolved_executors()
            for item in getattr(executor, "passes", ())
        ]
        return passes_for([*self.passes, *own], self.disable_passes)

    def resolved_executors(self) -> list[Any]:
        """The executors in order of preference, torch last; raises OptionError for an unknown one."""
        asked = self.executors
        if asked is None:
            asked = ("nvfuser",) if "nvfuser" in EXECUTORS.registered() else ()
        found = [EXECUTORS.get(item) if isinstance(item, str) else item for item in asked]
        torch_executor = EXECUTORS.get("torch")
        return found if torch_executor in found else [*found, torch_executor]


def printer_for(asked: Any) -> Printer:
    """A printer by name or object; None is the default one. Raises OptionError for what is no printer."""
    if isinstance(asked, Printer):
        return asked
    if asked is None or isinstance(asked, str):
        return PRINTERS.get(asked or "default")
    raise OptionError(f"{asked!r} is neither a printer's name nor a tracemill.Printer")


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise OptionError(
            f"unknown {what} {value!r}; the known ones are {', '.join(map(repr, known))}"
        )


class _LeftToEager(Exception):
    """Raised where a call is not compiled: the program itself raised, its cause, or fails one check again and again."""


@dataclass(eq=False)
class Specialisations:
    """The specialisations of one callable.

    latest: the entry that ran last, if it has run before; tried first. history: the steps of the latest compilation or hit.
    """

    target: Callable[..., Any]
    options: Options
    entries: dict[Any, list[Entry]] = field(default_factory=dict)
    latest: Entry | None = None
    history: History = field(default_factory=History)
    hits: int = 0
    misses: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._take_form()

    def _take_form(self) -> None:
        """Looks at the target's parameters, as they are now."""
        self.form = CallForm(self.target)
        self._marks = Marks(self.options.cache)
        self._marks.check_names(self.form)
        self._name = getattr(self.target, "__qualname__", type(self.target).__qualname__)
        self._recompilations = Recompilations(
            self._name, [p.name for p in self.form.parameters], self.options.paths
        )

    def call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], tried: Entry | None = None
    ) -> Any:
        """A call that the latest entry does not fit: runs another one, or makes it.

        tried: an entry whose computation took another path with these arguments.
        """
        if (
            interpretation.get() is not None
            or internals.functorch_interpreter()
            or is_somebody_elses()
        ):
            return self.target(*args, **kwargs)  # inlined into what is traced or transformed
        with self._lock:
            if not self.form.is_current():  # another function, or one with other parameters
                self.entries.clear()
                self._take_form()
        values = self.form.bind(*args, **kwargs)
        others = [] if tried is None else [tried]
        latest = ""
        while True:
            try:
                entry, inputs, is_new = self._entry_for(values, args, kwargs, others, latest)
            except _LeftToEager as left:
                error = left.__cause__
                break
            try:
                return entry.run(*inputs)
            except OtherPath as other:
                latest = str(other)
                if is_new:
                    raise DataDependentError(unsteady(latest)) from None
                self.hits -= 1  # counted by whichever runs instead
                others.append(entry)
            except Exception as failure:
                if not entry.in_eager or has_effects(failure):
                    raise
                error = None
                break
        return self._in_eager(args, kwargs, error)

    def _in_eager(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Any) -> Any:
        """A call of a program that raised, `error` where it was traced: it goes on, or has the effects before, as eager."""
        result = self.target(*args, **kwargs)
        if error is not None and not isinstance(error, UninitialisedError):
            warnings.warn(
                f"{self._name} raises {type(error).__name__} when it is traced, not when it is called: {error}. "
                "This call was not compiled",
                stacklevel=3,
            )
        return result

    def _entry_for(
        self,
        values: tuple[Any, ...],
        args: Any,
        kwargs: Any,
        others: list[Entry],
        latest: str,
    ) -> tuple[Entry, Any, bool]:
        """The entry for a call, none of `others`; what its prologue gave; whether it was made just now."""
        with self._lock:
            if self.latest is not None:
                self.latest.turn = self.hits + self.misses  # it may have run many times since
            key = self._key(values)
            entry, inputs = self._find(key, args, kwargs, others)
            is_new = entry is None
            if entry is None:
                if len(others) >= self.options.paths:
                    raise DataDependentError(too_many_paths(self.options.paths, latest))
                if not others and not self._note(key):
                    raise _LeftToEager
                with collection_deferred():
                    entry = self._compile(values)
                self.misses += 1
                if self.options.cache != "no caching":
                    self._keep(key, entry)
                try:
                    inputs = entry.prologue(*args, **kwargs)
                except Mismatch as changed:
                    raise UnsupportedError(
                        f"{changed} is not what it was when the program was traced just now: tracing it, or another "
                        "thread, changed it in a way that is not seen"
                    ) from None
            else:
                self.hits += 1
                turn = self.hits + self.misses
                entry.join(self.form, printer_for, turn, lambda: entry.prologue(*args, **kwargs))
                self.latest = entry
            entry.turn = self.hits + self.misses
            self.history = entry.history
            return entry, inputs, is_new

    def _key(self, values: tuple[Any, ...]) -> Any:
        if self.options.cache == "same input":
            return None
        return call_key(values, self._marks.of(self.form, values))

    def _find(
        self, key: Any, args: Any, kwargs: Any, others: Sequence[Entry]
    ) -> tuple[Entry | None, Any]:
        known = self.entries.get(key, [])
        for entry in reversed(known):
            if any(entry is other for other in others):
                continue
            try:
                inputs = entry.prologue(*args, **kwargs)
            except (Mismatch, LookupError, AttributeError, TypeError) as error:
                entry.failed = str(error)
                continue
            known.remove(entry)
            known.append(entry)  # the one that ran last is tried first
            return entry, inputs
        return None, ()

    def _note(self, key: Any) -> bool:
        """Takes note of what a call of this kind is compiled for; whether it is to be."""
        known = self.entries.get(key)
        if known is None:
            self._recompilations.new_kind(key)
            return True
        return self._recompilations.failed_check(known[-1].failed, self.hits)

    def _keep(self, key: Any, entry: Entry) -> None:
        """Keeps an entry; past the limit the one goes that was made or found again longest ago."""
        entry.turn = self.hits + self.misses
        self.entries.setdefault(key, []).append(entry)
        if sum(map(len, self.entries.values())) > self.options.entries:
            oldest = min(self.entries, key=lambda kind: self.entries[kind][0].turn)
            del self.entries[oldest][0]
            if not self.entries[oldest]:
                del self.entries[oldest]

    def context_for(self, values: tuple[Any, ...]) -> PassContext:
        """What the passes are told of a call with these values, one for each parameter."""
        return PassContext(
            Call(self.form, values, self._marks.of(self.form, values)),
            self.options.mode,
            self.options.resolved_executors(),
            sharp_edges=self.options.sharp_edges,
        )

    def _compile(self, values: tuple[Any, ...]) -> Entry:
        self.history = history = History()
        self.latest = None  # so that the next hit says which history is its own
        context = self.context_for(values)
        passes = self.options.resolved_passes()
        printer_of = self.options.printer_of
        try:
            program = run(passes, context, history, printer_of)
        except Exception as error:
            if error is context.raised:
                raise _LeftToEager from error
            raise
        prologue = program.prologue.callable()
        names = [proxy.name for proxy in program.prologue.args]
        if names != [parameter.name for parameter in self.form.parameters]:
            prologue = _renaming(prologue, self.form, names)
        backwards = backwards_of(program, context, history, passes, printer_of)
        if not self.options.keep_traces:
            history.keep_last()
        plain = runner_of(program, context.rebuild, backwards)
        in_eager = not context.runs_users_code and may_run_in_eager(
            program, handles=context.handles
        )
        plain_or_not = run_without_autocast(plain)
        runner = on_its_path(program, plain_or_not, handles=in_eager and context.handles)
        if context.fake_mode is not None:
            runner = _within(context.fake_mode, runner)
        is_plain = runner is plain and runs_as_it_reads(program, backwards)
        context.show()
        return Entry(program, prologue, runner, history, is_plain, context.rebuild, in_eager)

    @property
    def cache_info(self) -> CacheInfo:
        """Hits, misses and entries so far."""
        return CacheInfo(self.hits, self.misses, sum(map(len, self.entries.values())))


def _within(mode: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` on tensors without data: what it makes of numbers alone is of their kind too."""

    def run_on_fakes(*inputs: Any) -> Any:
        with mode:
            return run(*inputs)

    return run_on_fakes


def _renaming(
    prologue: Callable[..., Any], form: CallForm, names: Sequence[str]
) -> Callable[..., Any]:
    """The prologue for callers who use the program's own parameter names, one of which no text may have (`input`)."""

    def renamed(*args: Any, **kwargs: Any) -> Any:
        return form.apply(prologue, form.bind(*args, **kwargs), names)

    return renamed
