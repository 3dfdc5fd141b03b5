"""Sizes: how PyTorch is asked on behalf of one trace. Here every size is a number; `symbolic_sizes` lets them differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import Answer, NewTensor
from tracemill.compiler.meta import Storage
from tracemill.compiler.models import stand_in_for
from tracemill.compiler.oracle import ORACLE, plain_like
from tracemill.compiler.proxy import NumberProxy, TensorProxy
from tracemill.compiler.signature import CallKey
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import SymbolicTensorProxy, layout_of, while_tracing

Make = Callable[[NewTensor, Storage, int], TensorProxy]
"""Makes the proxy of a call's new output."""


Way = Callable[[], AbstractContextManager[Any]]
"""A block to ask PyTorch in."""


class Sizes:
    """Asks PyTorch on fakes that have a proxy's sizes, and gives what it says in values of the trace.

    mode: the fakes' own; None for those of the thread. line: the line on whose behalf PyTorch is asked.
    """

    is_symbolic = False
    derivatives: Any = None
    """The derivatives that are told for these sizes alone, for `derivative.derivatives_for`."""
    ways: tuple[Way, ...] = (nullcontext,)
    """The blocks to ask in, one after another until PyTorch answers."""

    def __init__(self, mode: internals.FakeTensorMode | None = None) -> None:
        self._mode = mode
        self.line: BoundSymbol | None = None

    @property
    def mode(self) -> internals.FakeTensorMode:
        """The mode that the fakes live in."""
        return self._mode or ORACLE.fake_mode

    # From the trace to PyTorch

    def model(self, proxy: TensorProxy) -> torch.Tensor:
        """A fake tensor like a proxy."""
        return stand_in_for(proxy, self.mode)

    def given(self, number: Any) -> Any:
        """A number of the trace as PyTorch is given it; other values as they are."""
        return while_tracing(number)

    def key(self) -> CallKey:
        """Builds the key of a call."""
        return CallKey()

    @property
    def named(self) -> Collection[NumberProxy]:
        """The numbers that differ from call to call."""
        return ()

    # From PyTorch to the trace

    def number(self, value: Any) -> Any:
        """What PyTorch gave as the trace has it: a number that differs from call to call, or the value itself."""
        return value

    def like(self, proxy: TensorProxy, fake: torch.Tensor) -> TensorProxy:
        """A proxy with the sizes and strides of a fake; its metadata is the fake's already."""
        return proxy

    # Calls

    def ask(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        make: Make,
        local: dict[Any, Answer] | None = None,
    ) -> tuple[Answer, Any]:
        """What PyTorch says of a call, and the call's output, its new tensors made by `make`."""
        answer, tensors = ORACLE.ask(fn, args, kwargs, local)
        return answer, answer.instantiate(tensors, make)

    def making(self, make: Make, answer: Answer, layouts: Sequence[Any] | None) -> Make:
        """`make`, for outputs of these layouts, None for those that are not symbolic."""
        return make

    def again(self, bsym: BoundSymbol, tensors: Sequence[TensorProxy], make: Make) -> Any:
        """The output of a line on other tensors, alike in sizes and strides."""
        answer = bsym.answer
        assert answer is not None
        layouts = [
            layout_of(out) if isinstance(out, TensorProxy) else None for out in bsym.flat_outs
        ]
        return answer.instantiate(tensors, self.making(make, answer, layouts))

    def cotangent(self, out: TensorProxy) -> TensorProxy:
        """A proxy of the cotangent of an output: dense, and of the same strides where the output is."""
        return TensorProxy("t", meta=plain_like(out.meta))

    def specialise(self, *values: Any) -> None:
        """Makes every size and number in some values one that each call must have."""

    def refuse_unchecked(self) -> None:
        """Raises UnsupportedError when something was asked of the sizes that the prologue does not check."""

    def same_geometry(self, one: TensorProxy, other: TensorProxy) -> bool:
        """Whether two tensors differ in nothing but what autograd sees of them."""
        seen = {"requires_grad": False, "is_leaf": True}
        return one.meta.replace(**seen) is other.meta.replace(**seen)

    def stride(self, proxy: TensorProxy) -> tuple[Any, ...]:
        """The strides of a tensor, as fakes have them."""
        return proxy.meta.stride


CONSTANT = Sizes()
"""Sizes that are numbers, for whoever records by hand."""


def sizes_of(values: Iterable[Any]) -> Sizes:
    """The sizes of the trace that some values belong to."""
    owners = (value.owner for value in values if type(value) is SymbolicTensorProxy)
    found = next(owners, CONSTANT)
    assert isinstance(found, Sizes)
    return found
