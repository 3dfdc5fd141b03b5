"""What traces and symbols ask of the layers above them.

The layers import one way, yet `symbol(...)` must ask the oracle for its outputs and `trace.text()` must find a
printer. Each upper layer installs its part here when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def _missing(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("import tracemill, not its parts: the upper layers are not installed yet")


text_of: Callable[..., str] = _missing
"""`text_of(trace, printer)`: the trace's text by a printer (a name, an object or None)."""

source_of: Callable[..., str] = _missing
"""`source_of(trace)`: the program that the trace's own printer writes."""

html_of: Callable[..., str] = _missing
"""`html_of(trace)`: the trace as HTML, for notebooks."""

callable_of: Callable[..., Callable[..., Any]] = _missing
"""`callable_of(trace, printer)`: the Python function that the trace's text defines."""

answer_of: Callable[..., Any] = _missing
"""`answer_of(bsym)`: what PyTorch says about a call that was written by hand; None when it cannot say."""

jit_again: Callable[..., Any] = _missing
"""`jit_again(module, options)`: a copy of a jitted module's original, jitted with the same options."""

registries: dict[str, Any] = {}
"""The registries of printers, passes and executors, by kind."""
