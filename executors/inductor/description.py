"""Descriptions: what a region does, as a text that is the same in each process, to find its code by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tracemill.compiler.answer import NewTensor, Ref, SameTensor, tensor_arguments
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.torch_internals import OpOverload
from tracemill.compiler.values import leaves, map_leaves
from tracemill.executors.fusion import Region
from tracemill.executors.lowering import consists_of_operations, inputs_of, sizes_of

_CONSTANTS = (
    *(int, float, complex, bool, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def described(region: Region) -> str | None:
    """All that a region's code depends on: its ATen operations, their constants, and what its inputs are like.

    None where the sizes differ from call to call, where a constant is an object, and for other devices than the CPU.
    """
    inputs = inputs_of(region)
    if sizes_of(region) is not None or any(each.device.type != "cpu" for each in inputs):
        return None
    try:
        return "\n".join(_Describing(region).lines([repr(tuple(each)) for each in inputs]))
    except Indescribable:
        return None


class Indescribable(ValueError):
    """Raised for a constant whose text would not tell it from others."""


class _Describing:
    """Writes values by the number of their first occurrence."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._numbers: dict[Proxy, str] = {}
        for value in region.inputs:
            self._number(value)

    def lines(self, inputs: list[str]) -> Iterator[str]:
        yield from inputs
        for bsym in self._region.bound_symbols:
            yield from (
                self._operations(bsym) if consists_of_operations(bsym) else self._itself(bsym)
            )
        yield repr([self._number(value) for value in self._region.outputs])

    def _number(self, value: Proxy) -> str:
        return self._numbers.setdefault(value, f"%{len(self._numbers)}")

    def _itself(self, bsym: BoundSymbol) -> Iterator[str]:
        """A line that is one ATen operation."""
        if not isinstance(bsym.sym.impl, OpOverload):
            raise Indescribable(bsym.sym.name)
        arguments = map_leaves(self._leaf, (bsym.args, bsym.kwargs, bsym.output))
        yield f"{bsym.sym.impl} {arguments}"

    def _operations(self, bsym: BoundSymbol) -> Iterator[str]:
        """A line by its operations; values inside are known by their place in it."""
        answer = bsym.answer
        assert answer is not None
        yield repr([self._number(value) for value in tensor_arguments(bsym.args, bsym.kwargs)])
        for fn, *arguments in answer.body:
            yield f"{fn} {map_leaves(self._leaf, arguments)}"
        specs = zip(leaves(answer.output), leaves(bsym.output), strict=True)
        yield repr(
            [
                (self._number(out), spec.index if type(spec) is NewTensor else spec.position)
                for spec, out in specs
                if type(spec) in (NewTensor, SameTensor)
            ]
        )

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, Proxy):
            return self._number(leaf)
        if type(leaf) is Ref or isinstance(leaf, _CONSTANTS):
            return leaf
        raise Indescribable(repr(leaf))
