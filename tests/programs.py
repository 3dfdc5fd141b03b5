"""What tests ask of a jitted function's printed programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tracemill as tm


def last_traces(jitted: Callable[..., Any]) -> Iterator[tm.Trace]:
    """Every trace of the last call: of prologue, computation, backward, epilogue, all stages."""
    yield from tm.last_prologue_traces(jitted)
    yield from tm.last_traces(jitted)
    yield from tm.last_backward_traces(jitted) or ()
    yield from tm.last_epilogue_traces(jitted) or ()


def last_texts(jitted: Callable[..., Any]) -> list[str]:
    """Every trace of the last call as a program, in the words of every printer."""
    printers = [tm.printers.get(name) for name in sorted(tm.printers.names())]
    return [printer.code(trace).source for trace in last_traces(jitted) for printer in printers]


def computation_inputs(jitted: Callable[..., Any], *args: Any, **kwargs: Any) -> Sequence[Any]:
    """What the computation is called with for these arguments: what the prologue returns."""
    return tm.last_prologue_traces(jitted)[-1].callable()(*args, **kwargs)


def run_text(text: str, inputs: Sequence[Any], name: str = "computation") -> Any:
    """Run a printed program in an empty namespace: its text alone must be enough."""
    namespace: dict[str, Any] = {}
    exec(compile(text, f"<{name}>", "exec"), namespace)
    return namespace[name](*inputs)
