"""How a program's compiled traces run as one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracemill.compiler.autograd_function import Backwards, differentiable
from tracemill.compiler.paths import note_effects
from tracemill.compiler.trace import Program, Trace


def runner_of(
    program: Program,
    rebuild: Callable[[Sequence[Any]], Any] | None,
    backwards: Backwards | None = None,
) -> Callable[..., Any]:
    """The function from the prologue's results to what the user's program returns.

    rebuild: from what the computation returns to what the program returns; None when they are the same.
    backwards: of a program whose result requires grad.
    """
    if backwards is not None:
        computation = differentiable(program, backwards)
    else:
        computation = program.computation.callable()
    if backwards is None and not _needs_no_grad(program.computation):
        computation = getattr(computation, "__wrapped__", computation)
    if program.epilogue is not None:
        return _with_epilogue(computation, program.epilogue, rebuild)
    if rebuild is None:
        return computation
    build = rebuild

    def run(*inputs: Any) -> Any:
        return build(computation(*inputs))

    return run


def _with_epilogue(
    computation: Callable[..., Any],
    epilogue: Trace,
    rebuild: Callable[[Sequence[Any]], Any] | None,
) -> Callable[..., Any]:
    """The computation returns its result and the epilogue's arguments; nothing is written before it is done.

    An epilogue that returns something takes views of what was computed: that is the program's result.
    """
    finish = epilogue.callable()
    takes_views = epilogue.output is not None

    def run(*inputs: Any) -> Any:
        result, written = computation(*inputs)
        try:
            finished = finish(*written)
        except Exception as error:
            note_effects(error)
            raise
        if takes_views:
            result = finished
        return result if rebuild is None else rebuild(result)

    return run


def runs_as_it_reads(program: Program, backwards: Backwards | None) -> bool:
    """Whether the program's texts run as they are, one after the other, under the modes that the call finds."""
    epilogue = program.epilogue
    return (
        backwards is None
        and not _needs_no_grad(program.computation)
        and (epilogue is None or not _needs_no_grad(epilogue))
    )


def _needs_no_grad(trace: Trace) -> bool:
    """Whether autograd would record: the prologue checks that grad mode and requires_grad are as now."""
    return (
        trace.no_grad
        and torch.is_grad_enabled()
        and any(getattr(proxy, "requires_grad", False) for proxy in trace.args)
    )
