"""Code generation: the function that a trace's text defines."""

from __future__ import annotations

import ast
import itertools
import linecache
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from tracemill.compiler.errors import PrinterError, UnsupportedError
from tracemill.compiler.symbol import Symbol
from tracemill.compiler.trace import Trace
from tracemill.printers.base import Code, Printer

T = TypeVar("T")

_numbers = itertools.count()


def compile_code(code: Code, name: str, printer: Printer) -> Callable[..., Any]:
    """The function `name` that the code's text defines.

    Raises PrinterError when the text is not Python, or defines no such function.
    """
    try:
        return define(code, name)
    except (SyntaxError, KeyError) as error:
        raise PrinterError(
            f"the text of printer {printer.name!r} does not define {name!r}: "
            f"{type(error).__name__}: {error}\n{code.source}"
        ) from error


def define(code: Code, name: str, tree: ast.Module | None = None) -> Callable[..., Any]:
    """The function `name` of the code's text, or of a tree whose lines are the text's.

    The text's lines are in `linecache`, so tracebacks and pdb show them; they go when the function goes.
    """
    file = f"<tracemill {name} {next(_numbers)}>"
    namespace: dict[str, Any] = dict(code.bound)
    exec(compile(code.source if tree is None else tree, file, "exec"), namespace)
    function = namespace.pop(name)  # whose globals these are: freed when the last caller lets it go
    lines = code.source.splitlines(keepends=True)
    linecache.cache[file] = (len(code.source), None, lines, file)
    weakref.finalize(getattr(function, "__wrapped__", function), linecache.cache.pop, file, None)
    return function


def compile_trace(trace: Trace, printer: Printer) -> Callable[..., Any]:
    """The function that a trace's text by `printer` defines.

    Raises UnsupportedError for an operation that has no implementation and was claimed by no executor.
    """
    for bsym in trace.bound_symbols:
        if bsym.sym.impl is None and type(bsym.sym).lines is Symbol.lines:
            raise UnsupportedError(
                f"{bsym.sym.name} has no implementation, and none of the executors runs it; "
                "give its Symbol an impl, or ask for an executor that has one"
            )
    return compile_code(code_of(trace, printer), trace.name, printer)


def code_of(trace: Trace, printer: Printer) -> Code:
    """A trace's program by `printer`; raises PrinterError, naming the printer, when it fails."""
    return printed(trace, printer, printer.code)


def printed(trace: Trace, printer: Printer, method: Callable[[Trace], T]) -> T:
    """What a method of `printer` makes of a trace; raises PrinterError, naming the printer, when it fails."""
    try:
        return method(trace)
    except Exception as error:
        kind = type(printer)
        raise PrinterError(
            f"printer {printer.name!r} ({kind.__module__}.{kind.__qualname__}) failed on the {trace.name}: "
            f"{type(error).__name__}: {error}"
        ) from error
