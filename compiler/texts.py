"""What a trace answers about itself through printers: its text, and the function that the text defines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracemill.compiler import services
from tracemill.compiler.codegen import compile_trace
from tracemill.compiler.specialise import printer_for
from tracemill.compiler.trace import Trace


def text_of(trace: Trace, printer: Any = None) -> str:
    """The trace's text by a printer's name or object."""
    return printer_for(printer).code(trace).source


def callable_of(trace: Trace, printer: Any = None) -> Callable[..., Any]:
    """The function that the trace's text defines."""
    return compile_trace(trace, printer_for(printer))


services.text_of = text_of
services.callable_of = callable_of
