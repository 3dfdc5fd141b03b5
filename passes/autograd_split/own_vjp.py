"""Links of symbols that bring their own derivative: `Symbol("mine.scale", vjp=...)`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.recording import tracectx
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace
from tracemill.passes.autograd_split.links import UNNAMED, Gradients


class OwnVjpLink:
    """A link whose backward is what the symbol's `vjp` records; `compiler/symbol.py` says what it is given."""

    def __init__(self, bsym: BoundSymbol) -> None:
        self.bsym = bsym
        self._tensors = [leaf for leaf in bsym.flat_args if isinstance(leaf, TensorProxy)]
        given = set(self._tensors)
        self.wanted = tuple(
            dict.fromkeys(tensor for tensor in self._tensors if tensor.requires_grad)
        )
        self.outputs = tuple(
            out
            for out in bsym.outputs
            if isinstance(out, TensorProxy)
            and out not in given
            and (out.dtype.is_floating_point or out.dtype.is_complex)
        )

    def backward(
        self,
        cotangents: Mapping[TensorProxy, TensorProxy],
        arrived: dict[TensorProxy, TensorProxy],
        emit: Callable[[BoundSymbol], object],
    ) -> Gradients:
        given = tuple(
            cotangents.get(out) for out in self.bsym.outputs if isinstance(out, TensorProxy)
        )
        known = {
            *self.bsym.inputs,
            *self.bsym.outputs,
            *(item for item in given if item is not None),
        }
        scratch = Trace("backward", list(known))
        with tracectx(scratch):
            made = self._vjp(given)
        for bsym in scratch.bound_symbols:
            for out in bsym.outputs:
                if out not in known:
                    known.add(out)
                    out._name = UNNAMED
            emit(self._placed(bsym))
        sums: dict[TensorProxy, TensorProxy] = {}
        for tensor, gradient in zip(self._tensors, made, strict=True):
            if gradient is not None and tensor in self.wanted:
                sums[tensor] = (
                    gradient if tensor not in sums else self._sum(sums[tensor], gradient, emit)
                )
        return sums

    def _vjp(self, cotangents: tuple[Any, ...]) -> Sequence[Any]:
        sym = self.bsym.sym
        assert sym.vjp is not None
        made = sym.vjp(cotangents, self.bsym.output, *self.bsym.args, **self.bsym.kwargs)
        found = [made] if made is None or isinstance(made, TensorProxy) else list(made)
        wrong = [item for item in found if item is not None and not isinstance(item, TensorProxy)]
        if wrong or len(found) != len(self._tensors):
            raise TypeError(
                f"the vjp of {sym.name} returned {made!r}; it must return a gradient or None for each of the "
                f"{len(self._tensors)} tensor arguments"
            )
        return found

    def _sum(
        self, one: TensorProxy, other: TensorProxy, emit: Callable[[BoundSymbol], object]
    ) -> TensorProxy:
        scratch = Trace("backward", [one, other])
        with tracectx(scratch):
            total: Any = torch.add(one, other)  # type: ignore[call-overload]
        total._name = UNNAMED
        emit(self._placed(scratch.bound_symbols[0]))
        return total

    def _placed(self, line: BoundSymbol) -> BoundSymbol:
        """A line of the backward that knows where it comes from."""
        return line.from_bsym(
            source=self.bsym.source, module_path=self.bsym.module_path, differentiates=self.bsym
        )

    def saved(self, outputs: Iterable[TensorProxy]) -> Collection[TensorProxy] | None:
        return None

    def also_needed(self, subsets: Iterable[Sequence[TensorProxy]]) -> Iterable[Proxy]:
        if len(self.outputs) == 1:
            return ()
        return (*self.bsym.inputs, *self.bsym.outputs)

    def forward(self) -> Sequence[BoundSymbol]:
        return [self.bsym]
