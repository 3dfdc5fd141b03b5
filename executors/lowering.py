"""Lowering: a region as a graph of ATen operations, for compilers that take such."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.torch_internals import FakeTensorMode, ShapeEnv, make_fx
from tracemill.compiler.values import leaves, substitute
from tracemill.executors.fusion import Region

Decompositions = Mapping[Any, Callable[..., Any]]


def lowered(
    region: Region, decompositions: Decompositions
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """A region's graph, from its inputs to a tuple of its outputs, and the fakes that it was traced with.

    decompositions: how operations are taken apart, as `torch.fx.experimental.proxy_tensor.make_fx` takes them. Each node
    has the fake that it makes in `meta["val"]`.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with torch.no_grad(), mode:
        fakes = [_fake(value) for value in region.inputs]
        graph = make_fx(_function(region), decomposition_table=dict(decompositions))(*fakes)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph, fakes


def _fake(value: Proxy) -> torch.Tensor:
    assert isinstance(value, TensorProxy)
    meta = value.meta
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)


def _function(region: Region) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The region as a function that calls its operations one by one."""

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: dict[Proxy, Any] = dict(zip(region.inputs, tensors, strict=True))
        for bsym in region.bound_symbols:
            assert bsym.sym.impl is not None
            made = bsym.sym.impl(*substitute(bsym.args, values), **substitute(bsym.kwargs, values))
            for proxy, value in zip(leaves(bsym.output), leaves(made), strict=True):
                values[proxy] = value
        return tuple(values[proxy] for proxy in region.outputs)

    return run
