"""The real environment: recorded calls run for real, on copies of the inputs, where Python needs a value while tracing.

It is started when the first value is asked for. Each recorded call is executed once and in order; a value that depends
on no input and no draw is worked out from the calls that it needs alone.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import Answer
from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.oracle import observe
from tracemill.compiler.proxy import NumberProxy, Proxy, TensorProxy
from tracemill.compiler.random_state import Generator, random_state, set_random_state
from tracemill.compiler.settings import Ambient
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import leaves, proxies, substitute
from tracemill.passes.interpretation.stand_in import interpretation


class RealEnvironment:
    """The values of the recorded program's proxies.

    bound_symbols: the program so far, growing. around: PyTorch's settings around the program. input_of: the real tensor
    or generator of an input's proxy.
    """

    def __init__(
        self,
        bound_symbols: list[BoundSymbol],
        around: Ambient,
        input_of: Callable[[Proxy], Any],
    ) -> None:
        self._bound_symbols = bound_symbols
        self._around = around
        self._input_of = input_of
        self._values: dict[Proxy, Any] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._done = 0
        self._is_whole = False
        self._free: set[Proxy] = set()
        self._judged = 0
        self._generators: list[torch.Generator] = []
        self._random: Any = None

    # Questions

    def is_free(self, value: Any) -> bool:
        """Whether arguments depend on no input and no draw."""
        for bsym in self._bound_symbols[self._judged :]:
            self._judge(bsym)
        self._judged = len(self._bound_symbols)
        return all(proxy in self._free for proxy in proxies(value))

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a call that records nothing."""
        self._advance((args, kwargs))
        with self._running():
            return fn(*self._real(args), **self._real(dict(kwargs)))

    def observe(
        self, fn: Callable[..., Any], args: Any, kwargs: Any, tensors: Sequence[TensorProxy]
    ) -> tuple[Any, Answer]:
        """Executes a call that is recorded next: its result, and what it did."""
        self._advance((args, kwargs))
        grad = torch.is_grad_enabled()
        with self._running():
            models = [_with_grad(self._values[tensor], tensor.meta, grad) for tensor in tensors]
            generators = {
                proxy: self._values[proxy]
                for proxy in proxies((args, kwargs))
                if not isinstance(proxy, TensorProxy)
            }
            args, kwargs = substitute((args, kwargs), generators)
            with torch.set_grad_enabled(grad):
                return observe(fn, args, kwargs, tensors, models)

    def executed(self, bsym: BoundSymbol, result: Any) -> None:
        """Takes note that the bound symbol just recorded was executed, with this result."""
        with internals.DisableTorchFunction(), internals.no_user_modes():
            self._store(bsym, result)
        self._done = len(self._bound_symbols)

    def restart(self) -> None:
        """Forgets every value: other lines stand in the program for some that were executed."""
        for known in (self._values, self._storages, self._free, self._generators):
            known.clear()
        self._done = self._judged = 0
        self._is_whole, self._random = False, None

    # Execution

    def _judge(self, bsym: BoundSymbol) -> None:
        """Follows which values depend on nothing."""
        if not bsym.is_random and all(proxy in self._free for proxy in bsym.inputs):
            self._free.update(bsym.outputs)
            return
        self._free.difference_update(bsym.outputs)
        if bsym.mutates:
            written = {proxy.storage for proxy in bsym.inputs if isinstance(proxy, TensorProxy)}
            self._free = {
                proxy
                for proxy in self._free
                if not (isinstance(proxy, TensorProxy) and proxy.storage in written)
            }

    def _advance(self, wanted: Any) -> None:
        """Executes what was recorded since the last time, as far as `wanted` can need it."""
        free = self.is_free(wanted)
        if not free and not self._is_whole:
            self._is_whole = True
            self._values.clear()
            self._done = 0
        pending = self._bound_symbols[self._done :]
        with self._running():
            for bsym in pending:
                if bsym.sym.impl is not None and (self._is_whole or self._is_free_line(bsym)):
                    for proxy in bsym.inputs:
                        self._load(proxy)
                    result = bsym.sym.impl(*self._real(bsym.args), **self._real(bsym.kwargs))
                    self._store(bsym, result)
            self._done = len(self._bound_symbols)
            for proxy in proxies(wanted):
                self._load(proxy)

    def _is_free_line(self, bsym: BoundSymbol) -> bool:
        return not bsym.is_random and all(proxy in self._values for proxy in bsym.inputs)

    def _store(self, bsym: BoundSymbol, result: Any) -> None:
        for out, value in zip(bsym.flat_outs, leaves(result), strict=False):
            if isinstance(out, Proxy):
                self._values[out] = value.detach() if isinstance(value, torch.Tensor) else value

    def _load(self, proxy: Proxy) -> None:
        if proxy in self._values:
            return
        if isinstance(proxy, NumberProxy):
            self._values[proxy] = proxy.value
            return
        value = self._input_of(proxy)
        if isinstance(value, Generator):
            value = value.clone_state()
            self._generators.append(value)
        else:
            value = self._copy(value)
        self._values[proxy] = value

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy that shares memory with the copies of the tensors that `tensor` shares memory with."""
        if tensor.layout != torch.strided:
            return tensor.detach().clone()
        storage = tensor.untyped_storage()
        copied = self._storages.get(storage._cdata)
        if copied is None:
            copied = self._storages[storage._cdata] = storage.clone()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(copied, tensor.storage_offset(), tensor.shape, tensor.stride())
        made = made.conj() if tensor.is_conj() else made
        return torch.ops.aten._neg_view.default(made) if tensor.is_neg() else made

    def _real(self, value: Any) -> Any:
        return substitute(value, self._values)

    @contextmanager
    def _running(self) -> abc.Generator[None]:
        """Plain PyTorch under the settings around the program, with random states that are the environment's own."""
        before = random_state()
        token = interpretation.set(None)
        try:
            with (
                internals.DisableTorchFunction(),
                internals.no_user_modes(),
                self._around.in_force(),
                torch.no_grad(),
            ):
                if self._random is not None:
                    set_random_state(self._random)
                yield
        finally:
            interpretation.reset(token)
            self._random = random_state()
            set_random_state(before)


def _with_grad(tensor: Any, meta: TensorMeta, grad: bool) -> torch.Tensor:
    """The tensor as autograd sees the value that it is for: a leaf, or the result of something."""
    if not (grad and meta.requires_grad):
        return tensor
    leaf = tensor.detach().requires_grad_()
    with torch.enable_grad():
        return leaf if meta.is_leaf else torch.ops.aten.alias.default(leaf)


def input_of(
    lifted: Mapping[int, tuple[TensorProxy, torch.Tensor]],
    generators: Mapping[int, tuple[Any, torch.Generator]],
    proxy: Proxy,
) -> Any:
    """The real tensor or generator of an input's proxy; no method, lest the interpreter holds itself."""
    for known, tensor in lifted.values():
        if known is proxy:
            return tensor
    for stand_in, generator in generators.values():
        if stand_in.proxy is proxy:
            return generator
    raise LookupError(f"{proxy!r} is no input")
