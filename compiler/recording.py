"""Recording by hand: inside `tracectx(trace)`, operations on proxies become bound symbols of the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tracemill.compiler import context
from tracemill.compiler.errors import DataDependentError
from tracemill.compiler.names import Names
from tracemill.compiler.oracle import ORACLE, NewTensor
from tracemill.compiler.proxy import Storage, TensorProxy
from tracemill.compiler.symbol import BoundSymbol, Symbol, symbol
from tracemill.compiler.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from tracemill.compiler.trace import Trace


class TraceRecorder:
    """Records calls on proxies into a trace, and names its new values."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names = Names(trace.names)

    def name(self, wanted: str | None, prefix: str) -> str:
        """`wanted`, with a suffix when it is taken; the next of the series `prefix` when nothing is wanted."""
        self._names.reserve(proxy.name for proxy in self._trace.args)
        return self._names.fresh(prefix) if wanted is None else self._names.claim(wanted)

    def call(
        self, fn: Callable[..., Any] | Symbol, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Records a call of a torch function or symbol; returns its outputs, or what it says of metadata."""
        operation = fn if isinstance(fn, Symbol) else symbol(fn)
        if operation.meta is not None:
            with self._unrecorded():
                output = operation.meta(*args, **kwargs)
            self._trace.record(BoundSymbol(operation, args, dict(kwargs), output))
            return output
        if operation.impl is None:
            raise TypeError(
                f"{operation.name} has neither meta nor impl: what it returns is not known"
            )
        try:
            answer, tensors = ORACLE.ask(operation.impl, tuple(args), kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise DataDependentError(
                f"{operation.name} needs the data of its arguments, which proxies do not have"
            ) from error
        if answer.is_query:
            return answer.output

        def make(spec: NewTensor, storage: Storage, offset: int) -> TensorProxy:
            return TensorProxy(meta=spec.meta, storage=storage, storage_offset=offset)

        output = answer.instantiate(tensors, make)
        self._trace.record(BoundSymbol(operation, args, dict(kwargs), output, answer=answer))
        return output

    @contextmanager
    def _unrecorded(self) -> Iterator[None]:
        """What a symbol's meta computes on proxies is no part of the trace."""
        with self._trace.scope():
            yield


@contextmanager
def tracectx(trace: Trace) -> Iterator[Trace]:
    """Records what is called on proxies in the block into `trace`.

    >>> import torch
    >>> trace = Trace("computation", [TensorProxy("x", shape=(3,))])
    >>> with tracectx(trace):
    ...     trace.output = torch.sin(trace.args[0])
    >>> [bsym.sym.name for bsym in trace.bound_symbols]
    ['torch.sin']
    """
    token = context.recorder.set(TraceRecorder(trace))
    try:
        yield trace
    finally:
        context.recorder.reset(token)
