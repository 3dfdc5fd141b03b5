"""Compilation: a graph of ATen operations, made one function by Inductor."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler import torch_internals
from tracemill.executors.fusion import Region
from tracemill.executors.inductor.vector_probe import vector_settings
from tracemill.executors.lowering import lowered

_lock = threading.Lock()
"""torch.fx and Inductor work at one graph at a time in a process."""


def compiled(
    region: Region, settings: Mapping[str, Any], *, many_kernels: bool = False
) -> Callable[[list[Any]], Sequence[Any]]:
    """The function from a list of the region's inputs, which it empties, to its outputs.

    settings: of `torch._inductor.config`, by dotted name. many_kernels: whether it pays to call the kernels from C++, which
    takes longer to compile. Inputs that are known to be as they were traced are not checked again, and outputs have the
    strides that they were traced with.
    """
    inductor = torch_internals.inductor()
    checks = not region.checked.issuperset(region.inputs)
    chosen = {
        "cpp_wrapper": many_kernels,
        "emulate_precision_casts": True,  # half types are rounded where eager rounds them
        "size_asserts": checks,
        "alignment_asserts": checks,
        "triton.cudagraphs": False,
    }
    with (
        _lock,
        warnings.catch_warnings(action="ignore"),  # of how code is generated: not the user's affair
        torch.no_grad(),
        inductor.config.patch(chosen | vector_settings() | dict(settings)),
    ):
        graph, fakes = lowered(region, inductor.decompositions())
        output = graph.graph.output_node()
        output.meta["user_visible_output_idxs"] = list(range(len(region.outputs)))
        inductor.record_strides(graph)
        with inductor.tracing(inductor.TracingContext(fakes[0].fake_mode if fakes else None)):
            wrapper = inductor.config.cpp_wrapper
            made = inductor.compile(graph, fakes, is_inference=True, cpp_wrapper=wrapper)
    return made.current_callable
