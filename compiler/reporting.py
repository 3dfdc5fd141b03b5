"""Traces as errors show them: the text with a line marked, never at the price of the error itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracemill.compiler.trace import Trace
from tracemill.printers.base import INDENT
from tracemill.printers.default import DefaultPrinter

SHOWN = 60
"""How many lines of a long trace an error shows."""


def marked(trace: Trace, index: int | None, fault: str) -> str:
    """The trace's text with `fault` below the line of the bound symbol `index`, or below the last line."""
    try:
        code = DefaultPrinter().code(trace)
    except Exception:
        lines = whole_text(trace).splitlines()
        return "\n".join([*excerpt(lines), f"{INDENT}# ^^^ {fault}"])
    lines = code.source.splitlines()
    number = len(lines) if index is None else code.lines[index]
    lines.insert(number, f"{INDENT}# ^^^ {fault}")
    return "\n".join(excerpt(lines, number))


def text_for_error(trace: Trace) -> str:
    """The trace's own text, long ones cut; never raises."""
    return "\n".join(excerpt(whole_text(trace).splitlines()))


def whole_text(trace: Trace, printer: Any = None) -> str:
    """The trace's whole text by a printer, by the default one where that one fails; never raises."""
    try:
        return str(trace) if printer is None else trace.text(printer)
    except Exception as error:
        note = f"# {error}".splitlines()[0]
    try:
        return f"{note}\n{DefaultPrinter().code(trace).source}"
    except Exception as error:
        lines = [f"# cannot be printed: {type(error).__name__}: {error}", f"{trace.name}:"]
        return "\n".join(lines + [f"{INDENT}{bsym!r}" for bsym in trace.bound_symbols]) + "\n"


def excerpt(lines: Sequence[str], around: int = 0) -> list[str]:
    """At most `SHOWN` lines, those about number `around` among them, with a note of what is left out."""
    if len(lines) <= SHOWN:
        return list(lines)
    start = max(0, min(around - SHOWN * 3 // 4, len(lines) - SHOWN))
    end = start + SHOWN
    above = [f"# ... {start} more lines above"] if start else []
    below = [f"# ... {len(lines) - end} more lines below"] if end < len(lines) else []
    return [*above, *lines[start:end], *below]
