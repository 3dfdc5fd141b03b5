"""Symbolic inputs: sizes and numbers of arguments that differ from call to call, with the lines that name sizes."""

from __future__ import annotations

import math
from typing import Any

import torch

from tracemill.compiler import prims
from tracemill.compiler import torch_internals as internals
from tracemill.compiler.errors import OptionError
from tracemill.compiler.marks import SIZES, Mark, Tree
from tracemill.compiler.meta import hint
from tracemill.compiler.names import Names
from tracemill.compiler.proxy import NumberProxy, Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import Layout, known
from tracemill.compiler.symbolic_sizes import SymbolicSizes, integer


class SymbolicInputs:
    """Makes the marked sizes and numbers of arguments symbolic.

    lines: the prologue's lines that name sizes.
    """

    def __init__(self, sizes: SymbolicSizes, names: Names) -> None:
        self.lines: list[BoundSymbol] = []
        self._sizes = sizes
        self._names = names
        self._named: dict[str, Any] = {}

    def tensor(self, proxy: TensorProxy, tensor: torch.Tensor, marks: Tree) -> TensorProxy:
        """The proxy of a tensor whose marked sizes are symbolic, those of 0 and 1 excepted."""
        sizes = self._sizes
        dims = _dims(marks, tensor)
        if not dims:
            return proxy
        source = self._source()
        dynamic = [
            internals.DimDynamic.DUCK if dim in dims else internals.DimDynamic.STATIC
            for dim in range(tensor.dim())
        ]
        shape, stride, _ = sizes.env.create_symbolic_sizes_strides_storage_offset(
            torch.empty_strided(tensor.shape, tensor.stride(), device="meta"),
            source,
            symbolic_context=internals.StatelessSymbolicContext(dynamic_sizes=dynamic),
        )
        for dim, mark in dims.items():
            self._hold(shape[dim], mark)
        offset = proxy.storage_offset  # a number, whatever the sizes are; checked where it was read
        layout = Layout(tuple(map(known, shape)), tuple(map(known, stride)), offset)
        for dim, size in enumerate(layout.shape):
            if type(size) is not int and size.node.expr not in sizes.numbers:
                sizes.name(size, integer(self._name(dims[dim]), size))
        result = sizes.proxy(proxy, layout)
        if result is not proxy:
            sizes.inputs.append((result, source))
            named = tuple(sizes.number(size) for size in layout.shape)
            new = tuple(size if isinstance(size, Proxy) else None for size in named)
            self.lines.append(prims.UNPACK_SHAPE.bind(result, output=self._unseen(new)))
        return result

    def number(self, proxy: NumberProxy, value: int | float, mark: Mark) -> Any:
        """What the program gets for a marked number; the number itself where it is a constant."""
        if not mark.covers(value) or (type(value) is float and not _is_usual(value)):
            return value
        env, source = self._sizes.env, self._source()
        dynamic = internals.DimDynamic.DYNAMIC
        symbol = env.create_unspecified_symbol(value, source, dynamic)
        make = env.create_symintnode if type(value) is int else env.create_symfloatnode
        made = make(symbol, hint=value, source=source)
        self._sizes.inputs.append((proxy, source))
        self._hold(made, mark)
        self._sizes.name(made, proxy)
        return made

    def _source(self) -> Any:
        return internals.LocalSource(f"x{len(self._sizes.inputs)}")

    def _name(self, mark: Mark) -> str:
        return self._names.claim(mark.name) if mark.name else self._names.fresh("i")

    def _unseen(self, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
        """The sizes that no earlier line names."""
        seen = {size for line in self.lines for size in line.outputs}
        seen.update(value for value, _ in self._sizes.inputs if isinstance(value, NumberProxy))
        return tuple(None if size in seen else size for size in sizes)

    def _hold(self, value: Any, mark: Mark) -> None:
        """Holds a size or number to what is said of it: its range, and to be what others of its name are."""
        if mark.least is not None and mark.least > 2:
            bool(value >= mark.least)
        if mark.most is not None:
            bool(value <= mark.most)
        first = self._named.setdefault(mark.name, value) if mark.name else value
        if not bool(first == value):
            raise OptionError(
                f"cache marks two values by the name {mark.name!r}, yet they are {hint(first)} and {hint(value)}; "
                "give them names of their own"
            )


def _dims(marks: Tree, tensor: torch.Tensor) -> dict[int, Mark]:
    """The marks of a tensor's dimensions that are symbolic."""
    if marks == SIZES:
        return {dim: Mark() for dim in range(tensor.dim())}
    if not isinstance(marks, dict):
        return {}
    found: dict[int, Mark | None] = marks
    return {
        dim: mark
        for dim, mark in found.items()
        if mark is not None and mark.covers(tensor.shape[dim])
    }


def _is_usual(value: float) -> bool:
    """Whether a float is neither zero, whose sign == does not tell, nor infinite, nor nan."""
    return value != 0.0 and math.isfinite(value)
