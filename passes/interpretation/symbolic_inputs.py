"""Symbolic inputs: arguments whose sizes differ from call to call, with the prologue's lines that name these."""

from __future__ import annotations

import torch

from tracemill.compiler import prims
from tracemill.compiler import torch_internals as internals
from tracemill.compiler.names import Names
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import Layout, known
from tracemill.compiler.symbolic_sizes import SymbolicSizes, integer


class SymbolicInputs:
    """Makes the sizes of arguments symbolic.

    lines: the prologue's lines that name sizes.
    """

    def __init__(self, sizes: SymbolicSizes, names: Names) -> None:
        self.lines: list[BoundSymbol] = []
        self._sizes = sizes
        self._names = names

    def tensor(self, proxy: TensorProxy, tensor: torch.Tensor) -> TensorProxy:
        """The proxy of a tensor whose sizes are symbolic, those of 0 and 1 excepted."""
        sizes = self._sizes
        source = internals.LocalSource(f"x{len(sizes.inputs)}")
        context = internals.StatelessSymbolicContext(
            dynamic_sizes=[internals.DimDynamic.DUCK] * tensor.dim()
        )
        like = torch.empty_strided(tensor.shape, tensor.stride(), device="meta")
        shape, stride, _ = sizes.env.create_symbolic_sizes_strides_storage_offset(
            like, source, symbolic_context=context
        )
        offset = proxy.storage_offset  # a number, whatever the sizes are; checked where it was read
        layout = Layout(tuple(map(known, shape)), tuple(map(known, stride)), offset)
        for size in layout.shape:
            if type(size) is not int:
                sizes.name(size, integer(self._names.fresh("i"), size))
        result = sizes.proxy(proxy, layout)
        if result is proxy:
            return proxy
        sizes.inputs.append((result, source))
        named = tuple(sizes.number(size) for size in layout.shape)
        if any(isinstance(size, Proxy) for size in named):
            self.lines.append(prims.UNPACK_SHAPE.bind(result, output=named))
        return result
