"""Symbols: the symbolic sizes that a region is on, and where among its inputs each is found.

Inductor is given each as a number: its cache remembers what was asked of numbers among the inputs, and forgets the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbolic import layout_of
from tracemill.compiler.symbolic_sizes import SymbolicSizes
from tracemill.executors.fusion import Region
from tracemill.executors.lowering import sizes_of

Place = tuple[int, int]
"""An input's position, and the dimension whose size it is."""


def symbols_are_given(region: Region) -> bool:
    """Whether each symbol in the sizes of a region's values is a size of an input, or an input itself."""
    sizes = sizes_of(region)
    if sizes is None:
        return True
    values = {value for bsym in region.bound_symbols for value in (*bsym.inputs, *bsym.outputs)}
    used = {symbol for part in _parts(values, sizes) for symbol in part.free_symbols}
    return used <= {*_places(region), *_numbers(region, sizes)}


def places(region: Region) -> list[Place]:
    """Where to find the symbols that are no inputs themselves."""
    sizes = sizes_of(region)
    if sizes is None:
        return []
    numbers = set(_numbers(region, sizes))
    return [place for symbol, place in _places(region).items() if symbol not in numbers]


def with_sizes(
    call: Callable[[list[Any]], Sequence[Any]], wanted: Sequence[Place]
) -> Callable[[list[Any]], Sequence[Any]]:
    """`call`, given the sizes at these places after the inputs."""
    if not wanted:
        return call

    def run(inputs: list[Any]) -> Sequence[Any]:
        inputs.extend([inputs[position].shape[dim] for position, dim in wanted])
        return call(inputs)

    return run


def _places(region: Region) -> dict[Any, Place]:
    found: dict[Any, Place] = {}
    for position, value in enumerate(region.inputs):
        layout = layout_of(value) if isinstance(value, TensorProxy) else None
        shape: tuple[Any, ...] = () if layout is None else layout.shape
        for dim, size in enumerate(shape):
            if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
                found.setdefault(size.node.expr, (position, dim))
    return found


def _numbers(region: Region, sizes: SymbolicSizes) -> Iterator[Any]:
    numbers = [value for value in region.inputs if not isinstance(value, TensorProxy)]
    return (part for part in _parts(numbers, sizes) if part.is_symbol)


def _parts(values: Iterable[Any], sizes: SymbolicSizes) -> Iterator[Any]:
    """The symbolic sizes, strides and numbers of some values, as expressions of PyTorch's."""
    for value in values:
        layout = layout_of(value) if isinstance(value, TensorProxy) else None
        given = (sizes.given(value),) if layout is None else (*layout.shape, *layout.stride)
        yield from (part.node.expr for part in given if isinstance(part, torch.SymInt))
