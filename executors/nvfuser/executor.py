"""The executor: which lines nvFuser runs, and how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch

from tracemill.compiler.answer import Answer
from tracemill.compiler.errors import OptionError
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol, FusedSymbol
from tracemill.compiler.trace import Trace
from tracemill.executors.fusion import FusionExecutor, Region
from tracemill.executors.lowering import fakes_of, function_of, lowered
from tracemill.executors.nvfuser.attention import ATTENTION, Flash
from tracemill.executors.nvfuser.decompositions import decompositions
from tracemill.executors.nvfuser.fused import Fused
from tracemill.executors.nvfuser.library import DATA_TYPES, is_available
from tracemill.executors.nvfuser.pieces import (
    APART,
    MOST_OPERATIONS,
    connected,
    cut,
    operations,
)
from tracemill.executors.nvfuser.registry import OPTIONS, Untranslatable


class NvFuserExecutor(FusionExecutor):
    """Runs regions of operations on CUDA tensors by nvFuser.

    options: families of operations that it takes too, of "matmul", "linear", "attention" and "scatter", for which
    PyTorch's own kernels are mostly the better choice. strict: whether a region that nvFuser cannot compile or run is an error;
    else PyTorch runs it, with a warning. most_operations: of how many ATen operations a region is, since nvFuser's time to
    compile grows faster than they do. Raises OptionError for an unknown family, and for regions of no operations.

    device_type: where the tensors of its regions are. function: what makes a graph a function.
    """

    name: ClassVar[str] = "nvfuser"
    takes_random: ClassVar[bool] = True
    takes_symbolic: ClassVar[bool] = True
    device_type: ClassVar[str] = "cuda"
    function: ClassVar[type[Fused]] = Fused

    def __init__(
        self,
        options: Iterable[str] = (),
        *,
        strict: bool = False,
        most_operations: int = MOST_OPERATIONS,
    ) -> None:
        self.options = frozenset(options)
        self.strict = strict
        self.most_operations = most_operations
        if most_operations < 1:
            raise OptionError(f"nvfuser's most_operations is 1 at least, not {most_operations!r}")
        unknown = self.options.difference(OPTIONS)
        if unknown:
            raise OptionError(
                f"nvfuser has no option {', '.join(map(repr, sorted(unknown)))}; it has {', '.join(map(repr, OPTIONS))}"
            )
        self._reasons: WeakKeyDictionary[Answer, str] = WeakKeyDictionary()

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether nothing hinders."""
        return not self.obstacle(bsym)

    def obstacle(self, bsym: BoundSymbol) -> str:
        """Why a line cannot be in a region: it is on no CUDA tensor, or no definition of it alone can be written."""
        tensors = [
            value for value in (*bsym.inputs, *bsym.outputs) if isinstance(value, TensorProxy)
        ]
        if not any(tensor.device.type == self.device_type for tensor in tensors):
            return f"on no {self.device_type} tensor"
        for tensor in tensors:
            if tensor.dtype not in DATA_TYPES:
                return f"of {tensor.dtype}"
            if tensor.device.type != self.device_type and tensor.shape:
                return f"on {tensor.device} too"
            if tensor.meta.layout != torch.strided:
                return f"of {tensor.meta.layout}"
            if tensor.meta.neg:  # nvFuser reads memory as it is
                return "of a tensor with the negative bit"
        if any(_is_empty(value) for value in bsym.inputs) or all(map(_is_empty, bsym.outputs)):
            return "of no elements"
        if not is_available():
            return "nvFuser does not load"
        answer = bsym.answer
        if answer is None or bsym.sym.path is None:
            return "no operation of PyTorch's"
        if answer not in self._reasons:
            self._reasons[answer] = self._tried(bsym)
        return self._reasons[answer]

    def split(self, lines: Sequence[BoundSymbol]) -> Iterator[Sequence[BoundSymbol]]:
        """The lines that values connect, which are on one GPU, in pieces of `most_operations`."""
        for piece in connected(lines):
            yield from cut(piece, self.most_operations)

    def why_split(self, lines: Sequence[BoundSymbol]) -> str:
        """Whether they are cut where no value is shared, or are too many."""
        pieces = connected(lines)
        too_many = any(sum(map(operations, piece)) > self.most_operations for piece in pieces)
        reasons = {
            APART: len(pieces) > 1,
            f"it has more than {self.most_operations} operations": too_many,
        }
        return " and ".join(reason for reason, holds in reasons.items() if holds)

    def _tried(self, bsym: BoundSymbol) -> str:
        outputs = tuple(value for value in bsym.outputs if isinstance(value, TensorProxy))
        try:
            self.fused(Region(bsym.sym.name, self.name, (bsym,), bsym.inputs, outputs)).definition()
        except Untranslatable as reason:
            return str(reason)
        except Exception as error:  # of an operation's own code, which is no straight line on fakes
            return f"not decomposed by PyTorch: {type(error).__name__}: {error}"
        return ""

    def fused(self, region: Region) -> Fused:
        """A region as a function."""
        with Flash() if "attention" in self.options else nullcontext():
            function = function_of(region, called=[ATTENTION])
            module = lowered(function, fakes_of(region), decompositions(self.options))
        return self.function(
            region.name,
            module,
            options=self.options,
            strict=self.strict,
            checked=region.inputs_are_checked,
        )

    def fuse(self, region: Region) -> BoundSymbol:
        """The line that runs a region; its definition is written here, its kernels are compiled when it first runs."""
        function = self.fused(region)
        function.definition()
        return region.bind(function)


def _is_empty(value: Proxy) -> bool:
    return isinstance(value, TensorProxy) and 0 in value.meta.shape


def definitions(trace: Trace) -> dict[str, str]:
    """The definitions of a trace's regions, as the Python that nvFuser prints, by name of the region."""
    return {
        bsym.sym.name: str(bsym.sym.impl)
        for bsym in trace.bound_symbols
        if isinstance(bsym.sym, FusedSymbol) and isinstance(bsym.sym.impl, Fused)
    }
