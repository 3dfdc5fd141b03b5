"""Recording by hand: inside `tracectx(trace)`, operations on proxies become bound symbols of the trace.

Recorded are operators, methods and torch functions on proxies, functions that create tensors (`torch.zeros`), and
symbols. What only asks for metadata (`x.shape`, `x.dim()`) is answered, and leaves no line.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tracemill.compiler import context, services
from tracemill.compiler.answer import Answer, NewTensor
from tracemill.compiler.errors import DataDependentError
from tracemill.compiler.meta import Storage
from tracemill.compiler.names import Names
from tracemill.compiler.oracle import ORACLE
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.sizes import sizes_of
from tracemill.compiler.symbol import BoundSymbol, Symbol, symbol
from tracemill.compiler.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    device_constructors,
)
from tracemill.compiler.trace import Trace
from tracemill.compiler.values import leaves, proxies


def answer_of(bsym: BoundSymbol) -> Answer | None:
    """What PyTorch says about a call that was written by hand; None when it refuses the call or needs its data."""
    impl = bsym.sym.impl
    if impl is None:
        return None
    try:
        with torch.set_grad_enabled(bsym.grad_enabled):
            return ORACLE.ask(impl, bsym.args, bsym.kwargs)[0]
    except Exception:  # `verify` says what is wrong with the call
        return None


services.answer_of = answer_of


class TraceRecorder:
    """Records calls on proxies into a trace, and names its new values."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names = Names(trace.taken_names)
        self._seen = len(trace.bound_symbols)
        self._answers: dict[Any, Answer] = {}

    def name(self, wanted: str | None, prefix: str) -> str:
        """`wanted`, with a suffix when it is taken; the next of the series `prefix` when nothing is wanted."""
        self._names.reserve(proxy.name for proxy in self._trace.args)
        added = self._trace.bound_symbols[
            self._seen :
        ]  # lines from elsewhere bring their names with them
        self._names.reserve(proxy.name for bsym in added for proxy in bsym.outputs)
        self._seen += len(added)
        return self._names.fresh(prefix) if wanted is None else self._names.claim(wanted)

    def call(
        self, fn: Callable[..., Any] | Symbol, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Records a call of a torch function or symbol; returns its outputs, or what it says of metadata."""
        operation = fn if isinstance(fn, Symbol) else symbol(fn)
        if operation.meta is not None:
            with self._unrecorded():
                output = operation.meta(*args, **kwargs)
            if operation.vjp is not None and torch.is_grad_enabled():
                _require_grad(output, (args, kwargs))
            self._record(operation, args, kwargs, output)
            return output
        if operation.impl is None:
            raise TypeError(
                f"{operation.name} has neither meta nor impl: what it returns is not known"
            )
        sizes = sizes_of((*leaves(args), *leaves(kwargs)))

        def make(spec: NewTensor, storage: Storage, offset: int) -> TensorProxy:
            return TensorProxy(meta=spec.meta, storage=storage, storage_offset=offset)

        try:
            answer, output = sizes.ask(operation.impl, tuple(args), kwargs, make, self._answers)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise DataDependentError(
                f"{operation.name} needs the data of its arguments, which proxies do not have"
            ) from error
        if answer.is_query:
            sizes.specialise(args, kwargs)
            return answer.output
        self._record(operation, args, kwargs, output, answer)
        return output

    def _record(
        self,
        operation: Symbol,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        output: Any,
        answer: Answer | None = None,
    ) -> None:
        grad = torch.is_grad_enabled()
        self._trace.record(
            BoundSymbol(operation, args, dict(kwargs), output, grad_enabled=grad, answer=answer)
        )

    @contextmanager
    def _unrecorded(self) -> Generator[None]:
        """What a symbol's meta computes on proxies is no part of the trace."""
        with self._trace.scope():
            yield


class _Constructors(TorchFunctionMode):
    """Records functions that create tensors, which have no proxy among their arguments."""

    def __init__(self, recorder: TraceRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in device_constructors():
            return self._recorder.call(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _require_grad(output: Any, arguments: Any) -> None:
    """Lets gradients flow through what a symbol with a derivative of its own makes."""
    given = set(proxies(arguments))
    if not any(isinstance(proxy, TensorProxy) and proxy.requires_grad for proxy in given):
        return
    for out in proxies(output):
        if isinstance(out, TensorProxy) and out not in given and out.dtype.is_floating_point:
            out.meta = out.meta.replace(requires_grad=True, is_leaf=False)


@contextmanager
def tracectx(trace: Trace) -> Generator[Trace]:
    """Records what is called on proxies in the block into `trace`; new values get names that are free in it.

    A trace made by `old.replace(bound_symbols=[])` keeps the old one's names free too, for lines that are taken over.

    Raises, at the call that is at fault, what PyTorch raises for it; DataDependentError for a call that needs data.

    >>> import torch
    >>> trace = Trace("computation", [TensorProxy("x", shape=(3,))])
    >>> with tracectx(trace):
    ...     trace.output = torch.sin(trace.args[0])
    >>> [bsym.sym.name for bsym in trace.bound_symbols]
    ['torch.sin']
    """
    recorder = TraceRecorder(trace)
    token = context.recorder.set(recorder)
    try:
        with _Constructors(recorder):
            yield trace
    finally:
        context.recorder.reset(token)
