"""Compilation: a program of ATen operations, made one function by Inductor."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from tracemill.compiler import torch_internals
from tracemill.executors.inductor.remembered import Remembered, Run, without_headers
from tracemill.executors.inductor.vector_instructions import VECTOR_INSTRUCTIONS
from tracemill.executors.lowering import Fakes, lowered

Prepared = tuple[Callable[..., Any], Fakes]

_lock = threading.Lock()
"""torch.fx and Inductor work at one graph at a time in a process."""

PARALLEL_FROM = 8192
"""Elements from which on a loop is given to several threads: with fewer, waking them takes longer than they save."""


def settings_for(
    chosen: Mapping[str, Any], *, many_kernels: bool, inputs_are_checked: bool
) -> dict[str, Any]:
    """Settings of `torch._inductor.config`, by dotted name; those that are `chosen` count.

    many_kernels: whether it pays to call the kernels from C++, which takes longer to compile. inputs_are_checked: whether
    the inputs are known to be as they were traced, so that the function need not look again.
    """
    inductor = torch_internals.inductor()
    chunk = max(inductor.config.cpp.min_chunk_size, PARALLEL_FROM // torch.get_num_threads())
    return {
        "cpp_wrapper": many_kernels,
        "cpp.min_chunk_size": chunk,
        # half types are rounded where eager rounds them
        "emulate_precision_casts": inductor.rounds_half_types,
        "size_asserts": not inputs_are_checked,
        "alignment_asserts": not inputs_are_checked,
        "triton.cudagraphs": False,
        **chosen,
    }


def function_for(
    prepare: Callable[[], Prepared], settings: Mapping[str, Any], description: str | None
) -> Run:
    """Inductor's function for a program, from a list of its inputs, which it empties, to the outputs.

    prepare: makes the program and its inputs, where they are needed. description: as `Remembered` takes it.
    """
    with _inductor(settings):
        memory = Remembered(description)

        def make() -> Run:
            found = memory.load()
            if found is None:
                made = _compiled(*prepare())
                memory.keep(made)
                found = made.current_callable
            return found

        return VECTOR_INSTRUCTIONS.assumed(make)


def compiled(function: Callable[..., Any], fakes: Fakes, settings: Mapping[str, Any]) -> Any:
    """What Inductor makes of a function: `current_callable` takes the inputs in a list, which it empties.

    The outputs, a sequence, have the strides that the function gives them.
    """
    with _inductor(settings):
        return VECTOR_INSTRUCTIONS.assumed(lambda: _compiled(function, fakes))


def loaded(key: str, path: str, settings: Mapping[str, Any]) -> Run:
    """The function of a module that Inductor wrote in another process, with these settings."""
    inductor = torch_internals.inductor()
    with _lock, inductor.config.patch(dict(settings)), without_headers():
        return VECTOR_INSTRUCTIONS.assumed(lambda: inductor.load(key, path))


@contextmanager
def _inductor(settings: Mapping[str, Any]) -> Generator[None]:
    """Inductor has these settings in the block, which is the only one at work."""
    with (
        _lock,
        warnings.catch_warnings(action="ignore"),  # of how code is generated: not the user's affair
        torch.no_grad(),
        torch_internals.no_autocast(),
        torch_internals.inductor().config.patch(dict(settings)),
    ):
        yield


def _compiled(function: Callable[..., Any], fakes: Fakes) -> Any:
    inductor = torch_internals.inductor()
    graph = lowered(function, fakes, inductor.decompositions())
    output = graph.graph.output_node()
    results: Any = output.args[0]
    output.meta["user_visible_output_idxs"] = list(range(len(results)))
    inductor.record_strides(graph)
    with inductor.tracing(inductor.TracingContext(fakes.mode)):
        return inductor.compile(
            graph, fakes.inputs, is_inference=True, cpp_wrapper=inductor.config.cpp_wrapper
        )
