"""What TRACEMILL_PRINT and TRACEMILL_DUMP do: observers of passes, through the hooks that everybody uses.

TRACEMILL_PRINT=dce prints, to stderr, each trace that a pass of stage `dce` made, as it is made. Other forms: a pass's
name; `dce:verbose`, with a printer; several, `acquire,dce:minimal`; `*` for all.

TRACEMILL_DUMP=folder writes a folder for each compilation: a file for each pass and trace, a difference to the trace
before, and `index.txt`.
"""

from __future__ import annotations

import difflib
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from tracemill.compiler.errors import OptionError
from tracemill.compiler.names import identifier
from tracemill.compiler.pass_base import AnyPass, PassContext
from tracemill.compiler.plugins import PASSES, PLUGINS, PRINTERS, hookimpl
from tracemill.compiler.reporting import whole_text
from tracemill.compiler.trace import STAGES, Program, Trace


class PrintTraces:
    """Prints to stderr the new traces of the stages and passes asked for."""

    def __init__(self, asked: str) -> None:
        """asked: the value of TRACEMILL_PRINT; raises OptionError for an unknown stage, pass or printer."""
        self._printers: dict[str, str | None] = {}
        known = (*STAGES, *PASSES.names(), "*")
        for part in asked.split(","):
            name, _, printer = part.strip().partition(":")
            if name not in known:
                raise OptionError(
                    f"TRACEMILL_PRINT: unknown stage or pass {name!r}; the known ones are {', '.join(known)}"
                )
            if printer:
                PRINTERS.get(printer)
            self._printers[name] = printer or None

    @hookimpl
    def tracemill_after_pass(
        self, pass_: AnyPass, before: Program, program: Program, context: PassContext
    ) -> None:
        asked = next(
            (name for name in (pass_.name, pass_.stage, "*") if name in self._printers), None
        )
        if asked is None:
            return
        old = before.traces()
        for role, trace in program.traces().items():
            if trace is not old.get(role):
                where = f"{program_name(context)}: {role} after {pass_.name}, stage {pass_.stage}"
                text = whole_text(trace, self._printers[asked])
                print(f"# {where}\n{text}", file=sys.stderr)


@dataclass
class _Compilation:
    folder: Path
    steps: Iterator[int]


@dataclass(eq=False)
class DumpTraces:
    """Writes every trace after every pass into a folder of its own for each compilation."""

    folder: Path
    _compilations: WeakKeyDictionary[PassContext, _Compilation] = field(
        default_factory=WeakKeyDictionary
    )

    @hookimpl
    def tracemill_after_pass(
        self,
        pass_: AnyPass,
        before: Program,
        program: Program,
        seconds: float,
        context: PassContext,
    ) -> None:
        compilation = self._compilations.get(context)
        if compilation is None:
            folder = new_folder(self.folder, program_name(context))
            compilation = self._compilations[context] = _Compilation(folder, iter(range(10_000)))
        step, old = next(compilation.steps), before.traces()
        index = [f"{step:02} {pass_.stage} / {pass_.name}  {seconds * 1e3:.2f} ms"]
        for role, trace in program.traces().items():
            name = f"{step:02}_{pass_.name}_{role}"
            (compilation.folder / f"{name}.py").write_text(whole_text(trace), encoding="utf-8")
            difference = line_difference(old.get(role), trace)
            if difference:
                path = compilation.folder / f"{name}.diff"
                path.write_text("\n".join(difference) + "\n", encoding="utf-8")
            index.append(f"   {name}.py  {summary(old.get(role), trace)}")
        with (compilation.folder / "index.txt").open("a", encoding="utf-8") as file:
            file.write("\n".join(index) + "\n")


def program_name(context: PassContext) -> str:
    """The name of the program that is compiled."""
    target: Any = context.call.form.target
    return getattr(target, "__name__", None) or type(target).__name__


def new_folder(parent: Path, name: str) -> Path:
    """A new folder `000_name`, numbered after those that are there, also when two processes ask at once."""
    parent.mkdir(parents=True, exist_ok=True)
    number = sum(1 for _ in parent.iterdir())
    while True:
        folder = parent / f"{number:03}_{identifier(name)}"
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def line_difference(old: Trace | None, new: Trace) -> list[str]:
    """The lines that differ, in `diff -u0` form: comments do not count."""
    if old is new:
        return []
    before = whole_text(old, "minimal").splitlines() if old is not None else []
    after = whole_text(new, "minimal").splitlines()
    return list(difflib.unified_diff(before, after, "before", "after", lineterm="", n=0))


def summary(old: Trace | None, new: Trace) -> str:
    """How many operations there are, and which ones came and went."""
    if old is new:
        return f"{len(new.bound_symbols)} operations, left alone"
    before = operations(old) if old is not None else Counter[str]()
    after = operations(new)
    changes = [f"-{count} {name}" for name, count in sorted((before - after).items())]
    changes += [f"+{count} {name}" for name, count in sorted((after - before).items())]
    counts = f"{before.total()} -> {after.total()} operations"
    return f"{counts}: {', '.join(changes)}" if changes else counts


def operations(trace: Trace) -> Counter[str]:
    """How often each operation stands in a trace."""
    return Counter(bsym.sym.name for bsym in trace.bound_symbols)


_MAKERS: dict[str, Callable[[str], Any]] = {
    "TRACEMILL_PRINT": PrintTraces,
    "TRACEMILL_DUMP": lambda asked: DumpTraces(Path(asked)),
}
_lock = threading.Lock()
_current: dict[str, tuple[str, Any]] = {}


def follow_environment() -> None:
    """Registers an observer for each of the two variables that is set, and takes out those that are not any more."""
    for variable, make in _MAKERS.items():
        asked = os.environ.get(variable, "")
        if asked == _current.get(variable, ("", None))[0]:
            continue
        with _lock:
            _, observer = _current.pop(variable, ("", None))
            if observer is not None:
                PLUGINS.unregister(observer)
            if asked:
                observer = make(asked)
                PLUGINS.register(observer, variable, "tracemill")
                _current[variable] = asked, observer
