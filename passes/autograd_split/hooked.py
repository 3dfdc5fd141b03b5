"""Hooked links: what a module with backward hooks takes and gives; the hooks are called as the backward goes by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler.meta import Storage
from tracemill.compiler.module_hooks import HookCall, Hooked
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol, Symbol, symbol
from tracemill.passes.autograd_split.links import UNNAMED, Gradients, unnamed

Cotangents = tuple[TensorProxy | None, ...]
Emit = Callable[[BoundSymbol], object]


class HookedLink:
    """The link of a line that marks what a hooked module takes or gives.

    arrived: for each module's call, the cotangents of its results, which the hooks on its arguments are given too.
    """

    def __init__(self, bsym: BoundSymbol, arrived: dict[object, Cotangents], sizes: Sizes) -> None:
        assert isinstance(bsym.sym, Hooked)
        self.bsym = bsym
        self._sym = bsym.sym
        self._arrived = arrived
        self._sizes = sizes
        self.outputs = tuple(out for out in bsym.output if out.requires_grad)
        self.wanted = tuple(dict.fromkeys(tensor for tensor in bsym.args if tensor.requires_grad))

    def backward(
        self,
        cotangents: Mapping[TensorProxy, TensorProxy],
        arrived: dict[TensorProxy, TensorProxy],
        emit: Emit,
    ) -> Gradients:
        given = tuple(cotangents.get(out) for out in self.bsym.output)
        if self._sym.gives:
            made = self._called("output_hooks", self._sym.hooks.on_outputs, given, (), emit)
            self._arrived[self._sym.hooks] = made
        else:
            made = self._filled(given, emit)
            results = self._arrived.pop(self._sym.hooks, None)
            if (
                results is not None
            ):  # else it came round the module's results: PyTorch calls no hooks
                on_inputs = self._sym.hooks.on_inputs
                made = self._called("input_hooks", on_inputs, made, (results,), emit)
        return {
            tensor: gradient
            for tensor, gradient in zip(self.bsym.args, made, strict=True)
            if gradient is not None
        }

    def _called(
        self,
        name: str,
        impl: Callable[..., Any],
        given: Cotangents,
        more: tuple[Any, ...],
        emit: Emit,
    ) -> Cotangents:
        made = tuple(None if cotangent is None else _like(cotangent) for cotangent in given)
        owner = self.bsym.module_path or type(self._sym.hooks.module).__name__.lower()
        sym = HookCall(f"{owner.replace('.', '_')}_{name}", impl=impl)
        output = tuple(proxy for proxy in made if proxy is not None)
        self._emit(emit, sym, (given, *more), {}, output)
        return made

    def _filled(self, given: Cotangents, emit: Emit) -> Cotangents:
        """Zeros for the arguments that no gradient came to: PyTorch's own function before the hooks makes them."""
        made: list[TensorProxy | None] = []
        for out, cotangent in zip(self.bsym.output, given, strict=True):
            if cotangent is None and out.requires_grad:
                settings = {"dtype": out.dtype, "device": out.device}
                answer, cotangent = self._sizes.ask(torch.zeros, (out.shape,), settings, unnamed)
                self._emit(emit, symbol(torch.zeros), (out.shape,), settings, cotangent, answer)
            made.append(cotangent)
        return tuple(made)

    def _emit(
        self, emit: Emit, sym: Symbol, args: Any, kwargs: Any, output: Any, answer: Any = None
    ) -> None:
        emit(
            BoundSymbol(
                sym,
                args,
                kwargs,
                output,
                answer=answer,
                source=self.bsym.source,
                module_path=self.bsym.module_path,
                differentiates=self.bsym,
            )
        )

    def saved(self, outputs: Iterable[TensorProxy]) -> Collection[TensorProxy] | None:
        return None

    def also_needed(self, subsets: Iterable[Sequence[TensorProxy]]) -> Iterable[Proxy]:
        return ()

    def forward(self) -> Sequence[BoundSymbol]:
        return [self.bsym]


def _like(cotangent: TensorProxy) -> TensorProxy:
    meta = cotangent.meta
    return cotangent.changed(UNNAMED, meta=meta, storage=Storage(meta.nbytes))
