"""Traces: straight-line programs that print as one Python function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tracemill.compiler import services
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import proxies

STAGES = ("interpretation", "proxy_renaming", "dce", "autograd_split", "executor_fusion")
"""The named slots of the pipeline, in order."""


class Trace:
    """Arguments, bound symbols and an output; prints as one Python function.

    A pass never edits a trace: it makes a new one with `replace`, and fills it inside `tracemill.tracectx(new)` or from
    a list of bound symbols.

    name: the printed function's name.
    args: proxies, one for each parameter.
    signature: the parameters' kinds and defaults; None when all are positional.
    output: any structure of proxies and constants, or None.
    no_grad: whether the function runs with autograd off.
    notes: comments on the whole trace.
    stage, constructed_by: the stage and the pass that made it.
    printer: the name or object that `text()` and `str()` use; None for the default printer.
    """

    def __init__(
        self,
        name: str = "computation",
        args: Sequence[Proxy] = (),
        bound_symbols: Iterable[BoundSymbol] = (),
        output: Any = None,
        *,
        signature: Sequence[inspect.Parameter] | None = None,
        no_grad: bool = True,
        stage: str = "",
        constructed_by: str = "",
        notes: Sequence[str] = (),
        printer: Any = None,
    ) -> None:
        self.name = name
        self.args = list(args)
        self.bound_symbols = list(bound_symbols)
        self.output = output
        self.signature = signature
        self.no_grad = no_grad
        self.stage = stage
        self.constructed_by = constructed_by
        self.notes = tuple(notes)
        self.printer = printer
        self._scopes: list[list[BoundSymbol]] = []
        self._made_from: Trace | None = None

    def replace(self, **changes: Any) -> Trace:
        """A new trace with some attributes changed; its list of bound symbols is its own."""
        kept = {
            name: getattr(self, name)
            for name in (
                "name",
                "args",
                "bound_symbols",
                "output",
                "signature",
                "no_grad",
                "stage",
                "constructed_by",
                "notes",
                "printer",
            )
        }
        unknown = changes.keys() - kept.keys()
        if unknown:
            raise TypeError(
                f"a trace has no {', '.join(sorted(unknown))}; it has {', '.join(kept)}"
            )
        made = Trace(**(kept | changes))
        made._made_from = self
        return made

    def finished(self, **changes: Any) -> Trace:
        """The trace as a pass leaves it: `replace`, without the memory of what it was made from."""
        made = self.replace(**changes)
        made._made_from = None
        return made

    # Recording

    def push_scope(self, scope: list[BoundSymbol]) -> None:
        """Makes `scope` the list that receives what is recorded from here on."""
        self._scopes.append(scope)

    def pop_scope(self) -> list[BoundSymbol]:
        """Ends the latest scope and returns it."""
        if not self._scopes:
            raise RuntimeError("no scope to pop: every pop_scope needs a push_scope before it")
        return self._scopes.pop()

    @contextmanager
    def scope(self) -> Generator[list[BoundSymbol]]:
        """Collects what is recorded in the block into a list of its own, to be put anywhere."""
        collected: list[BoundSymbol] = []
        self.push_scope(collected)
        try:
            yield collected
        finally:
            self.pop_scope()

    def record(self, bsym: BoundSymbol) -> BoundSymbol:
        """Appends a bound symbol to the current scope."""
        (self._scopes[-1] if self._scopes else self.bound_symbols).append(bsym)
        return bsym

    # Questions

    @property
    def names(self) -> set[str]:
        """The names of the trace's values: exactly those that its text defines."""
        return {proxy.name for proxy in self.values()}

    @property
    def taken_names(self) -> set[str]:
        """The names that a new value must not have: the trace's, and those of what `replace` made it from."""
        names: set[str] = set()
        trace: Trace | None = self
        while trace is not None:
            names |= trace.names
            trace = trace._made_from
        return names

    def values(self) -> Iterator[Proxy]:
        """Every value that the trace defines: its arguments, then outputs of its bound symbols, each once."""
        return iter(dict.fromkeys(self._defined()))

    def _defined(self) -> Iterator[Proxy]:
        yield from self.args
        for bsym in self.bound_symbols:
            yield from bsym.outputs

    @property
    def outputs(self) -> Iterator[Proxy]:
        """The proxies in the output."""
        return iter(proxies(self.output))

    # Text

    def text(self, printer: Any = None) -> str:
        """What a printer, by its name or an object, shows of the trace; None is the trace's own printer.

        That is the program, but for printers that show more than Python, such as "html"; `str(trace)` always is.
        Raises OptionError for an unknown printer, PrinterError, naming it, for one that fails.
        """
        return services.text_of(self, printer)

    def callable(self, printer: Any = None) -> Callable[..., Any]:
        """The Python function that the trace's text defines."""
        return services.callable_of(self, printer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.callable()(*args, **kwargs)

    def __str__(self) -> str:
        return services.source_of(self)

    def __repr__(self) -> str:
        return f"<Trace {self.name}: {len(self.bound_symbols)} bound symbols, {self.stage or 'no stage'}>"

    def _repr_html_(self) -> str:
        return services.html_of(self)


@dataclass(frozen=True)
class Program:
    """The traces of one specialisation.

    prologue: unpacks and checks the inputs, and returns the computation's arguments.
    computation: the program.
    backward: from what was saved and the cotangents to the gradients, or None.
    epilogue: writes back what the program mutated, or None.
    """

    prologue: Trace
    computation: Trace
    backward: Trace | None = None
    epilogue: Trace | None = None

    def replace(self, **changes: Trace | None) -> Program:
        """The program with some of its traces changed."""
        return replace(self, **changes)

    def traces(self) -> dict[str, Trace]:
        """The traces that are there, by role."""
        roles = {
            "prologue": self.prologue,
            "computation": self.computation,
            "backward": self.backward,
            "epilogue": self.epilogue,
        }
        return {role: trace for role, trace in roles.items() if trace is not None}

    @property
    def saved_bytes(self) -> int | None:
        """The bytes that the computation keeps for its backward beyond its inputs, each storage once; None without one."""
        output = self.computation.output
        if self.backward is None or not isinstance(output, tuple) or len(output) != 2:
            return None
        saved = [proxy for proxy in proxies(output[1]) if isinstance(proxy, TensorProxy)]
        given = {arg.storage for arg in self.computation.args if isinstance(arg, TensorProxy)}
        return sum(storage.nbytes for storage in {proxy.storage for proxy in saved} - given)
