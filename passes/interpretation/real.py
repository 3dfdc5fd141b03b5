"""The real environment: recorded calls run for real, where Python needs a value while tracing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import leaves, proxies, substitute


class ValueUnknown(Exception):
    """Raised for a value that the environment cannot work out; `proxy` is what it lacks."""

    def __init__(self, proxy: Proxy, reason: str) -> None:
        super().__init__(reason)
        self.proxy = proxy
        self.reason = reason


class RealEnvironment:
    """Values of the recorded program that depend on no input, each recorded call executed once and in order."""

    def __init__(self, bound_symbols: list[BoundSymbol]) -> None:
        self._bound_symbols = bound_symbols
        self._done = 0
        self._values: dict[Proxy, torch.Tensor] = {}
        self._spoilt: dict[Any, str] = {}

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a call on values that depend on no input; raises ValueUnknown for others."""
        self._advance()
        for proxy in proxies((args, kwargs)):
            self._require(proxy)
        with _eager():
            return fn(*substitute(args, self._values), **substitute(dict(kwargs), self._values))

    def _require(self, proxy: Proxy) -> None:
        if proxy not in self._values:
            raise ValueUnknown(proxy, self._spoilt.get(proxy, "an input"))

    def _advance(self) -> None:
        """Executes what was recorded since the last time and depends on no input."""
        for bsym in self._bound_symbols[self._done :]:
            inputs = list(bsym.inputs)
            unknown = [proxy for proxy in inputs if proxy not in self._values]
            if unknown or bsym.is_random:
                reason = self._spoilt.get(unknown[0], "an input") if unknown else "a random draw"
                self._spoil(bsym, reason)
                continue
            with _eager():
                result = bsym.sym.impl(
                    *substitute(bsym.args, self._values), **substitute(bsym.kwargs, self._values)
                )
            for out, value in zip(bsym.flat_outs, leaves(result), strict=False):
                if isinstance(out, Proxy):
                    self._values[out] = value
        self._done = len(self._bound_symbols)

    def _spoil(self, bsym: BoundSymbol, reason: str) -> None:
        """Marks the outputs as unknown, and what shares memory with an argument that the call writes to."""
        for proxy in bsym.outputs:
            self._spoilt[proxy] = reason
            self._values.pop(proxy, None)
        if not bsym.mutates:
            return
        written = [
            self._values[proxy].untyped_storage()._cdata
            for proxy in bsym.inputs
            if proxy in self._values
        ]
        for proxy, value in list(self._values.items()):
            if value.untyped_storage()._cdata in written:
                self._spoilt[proxy] = reason
                del self._values[proxy]


def _eager() -> ExitStack:
    """Plain PyTorch: no modes, no interpretation, no autograd."""
    stack = ExitStack()
    stack.enter_context(internals.DisableTorchFunction())
    stack.enter_context(internals.no_user_modes())
    stack.enter_context(torch.no_grad())
    return stack
