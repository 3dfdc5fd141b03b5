"""What a trace answers about itself through printers: its text, and the function that the text defines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracemill.compiler import services
from tracemill.compiler.codegen import code_of, compile_trace, printed
from tracemill.compiler.specialise import printer_for
from tracemill.compiler.trace import Trace
from tracemill.printers.base import Printer
from tracemill.printers.html import HtmlPrinter


def text_of(trace: Trace, printer: Any = None) -> str:
    """The trace's text by a printer's name or object, by the trace's own where none is given."""
    chosen = _printer(trace, printer)
    return printed(trace, chosen, chosen.text)


def source_of(trace: Trace) -> str:
    """The program that the trace's own printer writes."""
    return code_of(trace, _printer(trace, None)).source


def callable_of(trace: Trace, printer: Any = None) -> Callable[..., Any]:
    """The function that the trace's text defines."""
    return compile_trace(trace, _printer(trace, printer))


def _printer(trace: Trace, asked: Any) -> Printer:
    return printer_for(trace.printer if asked is None else asked)


def html_of(trace: Trace) -> str:
    """The trace for a notebook: the program that its own printer writes, by the printer `html`."""
    own = _printer(trace, None)
    return text_of(trace, own if isinstance(own, HtmlPrinter) else HtmlPrinter(own))


def install() -> None:
    """Lets traces answer."""
    services.text_of = text_of
    services.source_of = source_of
    services.html_of = html_of
    services.callable_of = callable_of
