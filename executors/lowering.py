"""Lowering: a program as a graph of ATen operations, for compilers that take such."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from tracemill.compiler.answer import NewTensor, Ref, SameTensor, tensor_arguments
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import SymbolicTensorProxy
from tracemill.compiler.symbolic_sizes import SymbolicSizes
from tracemill.compiler.torch_internals import (
    FakeTensorMode,
    OpOverload,
    ShapeEnv,
    make_fx,
    no_autocast,
)
from tracemill.compiler.values import leaves, map_leaves
from tracemill.executors.fusion import Region

Decompositions = Mapping[Any, Callable[..., Any]]


class Fakes(NamedTuple):
    """The inputs of a program as fakes, numbers that differ from call to call as symbolic ones, and the fakes' mode."""

    inputs: list[Any]
    mode: FakeTensorMode


class Input(NamedTuple):
    """A tensor of fixed sizes: shape and stride in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def fakes_like(inputs: Iterable[Input]) -> Fakes:
    """Fakes of tensors of fixed sizes."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        made = [
            torch.empty_strided(shape, stride, dtype=dtype, device=device)
            for shape, stride, dtype, device in inputs
        ]
    return Fakes(made, mode)


def lowered(
    function: Callable[..., Any], fakes: Fakes, decompositions: Decompositions
) -> torch.fx.GraphModule:
    """The graph of a function from tensors and numbers to a tuple of tensors.

    decompositions: how operations are taken apart, as `torch.fx.experimental.proxy_tensor.make_fx` takes them. Each node
    has the fake that it makes in `meta["val"]`.
    """
    with torch.no_grad(), no_autocast(), fakes.mode:  # the program has its casts
        graph = make_fx(function, decomposition_table=dict(decompositions))(*fakes.inputs)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def inputs_of(region: Region) -> list[Input]:
    """What the inputs of a region of fixed sizes are like."""
    metas = [value.meta for value in region.inputs if isinstance(value, TensorProxy)]
    return [Input(meta.shape, meta.stride, meta.dtype, meta.device) for meta in metas]


def sizes_of(region: Region) -> SymbolicSizes | None:
    """The symbolic sizes that a region is on; None where its sizes are fixed."""
    values = [value for bsym in region.bound_symbols for value in (*bsym.inputs, *bsym.outputs)]
    owners = (value.owner for value in values if isinstance(value, SymbolicTensorProxy))
    owner = next(owners, None)
    return owner if isinstance(owner, SymbolicSizes) else None


def fakes_of(region: Region) -> Fakes:
    """Fakes of a region's inputs; symbolic sizes are those of the trace, which collects what is asked of them."""
    sizes = sizes_of(region)
    if sizes is None:
        return fakes_like(inputs_of(region))
    made = [
        sizes.model(value).detach() if isinstance(value, TensorProxy) else sizes.given(value)
        for value in region.inputs
    ]
    return Fakes(made, sizes.mode)


def function_of(
    region: Region, called: Collection[Callable[..., Any]] = ()
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A region as a function that calls its operations one by one; where its sizes are fixed, the ATen operations.

    called: functions that are called themselves all the same.
    """
    sizes = sizes_of(region)

    def run(*inputs: Any) -> tuple[torch.Tensor, ...]:
        values: dict[Any, Any] = dict(zip(region.inputs, inputs, strict=True))
        for bsym in region.bound_symbols:
            by_line = (
                sizes is not None or bsym.sym.impl in called or not consists_of_operations(bsym)
            )
            values |= _by_line(bsym, values, sizes) if by_line else _by_operations(bsym, values)
        return tuple(values[proxy] for proxy in region.outputs)

    return run


def consists_of_operations(bsym: BoundSymbol) -> bool:
    """Whether a line is more than one ATen operation itself, and those that PyTorch recorded make its values.

    They do not where one of them reads what was made of Python's numbers, as `torch.tensor` does, and where arguments
    that were two when PyTorch was asked have become one.
    """
    answer = bsym.answer
    if answer is None or isinstance(bsym.sym.impl, OpOverload):
        return False
    known = set(range(len(tensor_arguments(bsym.args, bsym.kwargs))))
    if len(known) != answer.arity:
        return False
    for _, args, kwargs, output in answer.body:
        if not known.issuperset(_refs((args, kwargs))):
            return False
        known.update(_refs(output))
    made = (spec.index for spec in leaves(answer.output) if type(spec) is NewTensor)
    return known.issuperset(made)


def _refs(structure: Any) -> Iterator[int]:
    return (leaf.index for leaf in leaves(structure) if type(leaf) is Ref)


def _by_line(
    bsym: BoundSymbol, values: Mapping[Any, Any], sizes: SymbolicSizes | None
) -> dict[Any, Any]:
    """What a line makes, by proxy, computed by its own implementation."""

    def real(leaf: Any) -> Any:
        if isinstance(leaf, TensorProxy) or sizes is None:
            return values.get(leaf, leaf) if isinstance(leaf, Proxy) else leaf
        return sizes.given(leaf)

    assert bsym.sym.impl is not None
    args, kwargs = map_leaves(real, (bsym.args, bsym.kwargs))
    return dict(zip(leaves(bsym.output), leaves(bsym.sym.impl(*args, **kwargs)), strict=True))


def _by_operations(bsym: BoundSymbol, values: Mapping[Any, Any]) -> dict[Any, Any]:
    """What a line makes, by proxy, computed by the ATen operations that it consists of."""
    assert bsym.answer is not None
    given = tensor_arguments(bsym.args, bsym.kwargs)
    found: dict[int, Any] = {position: values[value] for position, value in enumerate(given)}

    def real(leaf: Any) -> Any:
        return found[leaf.index] if type(leaf) is Ref else leaf

    for fn, args, kwargs, output in bsym.answer.body:
        made = fn(*map_leaves(real, args), **map_leaves(real, kwargs))
        for ref, value in zip(leaves(output), leaves(made), strict=True):
            if type(ref) is Ref:
                found[ref.index] = value
    return {
        out: found[spec.index if type(spec) is NewTensor else spec.position]
        for spec, out in zip(leaves(bsym.answer.output), leaves(bsym.output), strict=True)
        if type(spec) in (NewTensor, SameTensor)
    }
