"""Lowering: a program as a graph of ATen operations, for compilers that take such."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tracemill.compiler.proxy import Proxy
from tracemill.compiler.torch_internals import FakeTensorMode, ShapeEnv, make_fx
from tracemill.compiler.values import leaves, substitute
from tracemill.executors.fusion import Region

Decompositions = Mapping[Any, Callable[..., Any]]


class Input(NamedTuple):
    """An input of a program: shape and stride in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def lowered(
    function: Callable[..., Any], inputs: Sequence[Input], decompositions: Decompositions
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The graph of a function from tensors to a tuple of tensors, and the fakes that it was traced with.

    decompositions: how operations are taken apart, as `torch.fx.experimental.proxy_tensor.make_fx` takes them. Each node
    has the fake that it makes in `meta["val"]`.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with torch.no_grad(), mode:
        fakes = [
            torch.empty_strided(shape, stride, dtype=dtype, device=device)
            for shape, stride, dtype, device in inputs
        ]
        graph = make_fx(function, decomposition_table=dict(decompositions))(*fakes)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph, fakes


def inputs_of(region: Region) -> list[Input]:
    """What the inputs of a region are like."""
    metas = [value.meta for value in region.inputs]  # type: ignore[attr-defined]
    return [Input(meta.shape, meta.stride, meta.dtype, meta.device) for meta in metas]


def function_of(region: Region) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A region as a function that calls its operations one by one."""

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: dict[Proxy, Any] = dict(zip(region.inputs, tensors, strict=True))
        for bsym in region.bound_symbols:
            assert bsym.sym.impl is not None
            made = bsym.sym.impl(*substitute(bsym.args, values), **substitute(bsym.kwargs, values))
            for proxy, value in zip(leaves(bsym.output), leaves(made), strict=True):
                values[proxy] = value
        return tuple(values[proxy] for proxy in region.outputs)

    return run
