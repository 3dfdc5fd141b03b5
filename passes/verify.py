"""Verify: says what is wrong with a trace; no pass, but run after each of them in tests.

An error shows the trace with the fault below its line:

    def computation(x):
      # x: "cpu f32[3]"
      t1 = torch.sin(t0)  # t1: "cpu f32[3]"
      # ^^^ 't0' is used but not defined here, or freed already
      return t1
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from tracemill.compiler import prims
from tracemill.compiler.answer import Answer
from tracemill.compiler.errors import TraceError
from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.names import RESERVED
from tracemill.compiler.oracle import ORACLE
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.reporting import marked
from tracemill.compiler.signature import CallKey
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.values import leaves

Fault = tuple[int | None, str]
"""The index of the faulty bound symbol, None for the trace as a whole, and what is wrong."""


def verify(trace: Trace, previous: Trace | None = None) -> None:
    """Raises TraceError, with the trace and the faulty line marked, when a trace is not well formed.

    Every name is defined once and before its use, a freed value is not used, and outputs are as the oracle says.
    previous: a trace that was verified already; what PyTorch says of the lines that are its own is not asked again.
    """
    if previous is not None and _is_copy(trace, previous):
        return
    known = set() if previous is None else {id(bsym) for bsym in previous.bound_symbols}
    for index, fault in _faults(trace, known):
        raise TraceError(f"ill-formed trace: {fault}\n{marked(trace, index, fault)}")


def _is_copy(trace: Trace, other: Trace) -> bool:
    return (
        trace.output is other.output
        and len(trace.bound_symbols) == len(other.bound_symbols)
        and all(map(operator.is_, trace.bound_symbols, other.bound_symbols))
        and len(trace.args) == len(other.args)
        and all(map(operator.is_, trace.args, other.args))
    )


def verify_program(program: Program) -> None:
    """Raises TraceError when a program's traces do not fit each other.

    The prologue returns as many values as the computation takes, and the backward unpacks as many as the computation
    saved for it.
    """
    given, taken = program.prologue.output, program.computation.args
    if isinstance(given, tuple) and len(given) != len(taken):
        fault = f"the prologue returns {len(given)} values, and the computation takes {len(taken)}"
        raise TraceError(f"ill-formed program: {fault}\n{marked(program.prologue, None, fault)}")
    if program.backward is not None:
        for index, fault in _backward_faults(program.computation, program.backward):
            text = marked(program.backward, index, fault)
            raise TraceError(f"ill-formed program: {fault}\n{text}")


def _faults(trace: Trace, known: set[int]) -> Iterator[Fault]:
    defined: dict[str, Proxy] = {}
    for proxy in trace.args:
        if proxy.name in defined:
            yield None, f"two arguments are named {proxy.name!r}"
        yield from ((None, fault) for fault in _name_faults(proxy))
        defined[proxy.name] = proxy
    for index, bsym in enumerate(trace.bound_symbols):
        yield from ((index, fault) for fault in _line_faults(bsym, defined))
        if id(bsym) not in known:
            yield from ((index, fault) for fault in _metadata_faults(bsym))
    yield from ((None, fault) for fault in _use_faults(trace.outputs, defined))


def _line_faults(bsym: BoundSymbol, defined: dict[str, Proxy]) -> Iterator[str]:
    inputs = list(bsym.inputs)
    yield from _use_faults(inputs, defined)
    if bsym.sym is prims.DELETE:
        for proxy in inputs:
            defined.pop(proxy.name, None)
    given = set(inputs)
    for proxy in dict.fromkeys(bsym.outputs):
        if proxy not in given:
            if proxy.name in defined:
                yield f"{proxy.name!r} is defined twice"
            yield from _name_faults(proxy)
        defined[proxy.name] = proxy


def _name_faults(proxy: Proxy) -> Iterator[str]:
    if not proxy.name.isidentifier() or proxy.name in RESERVED:
        yield f"no value can be named {proxy.name!r}"


def _use_faults(used: Any, defined: dict[str, Proxy]) -> Iterator[str]:
    for proxy in used:
        known = defined.get(proxy.name)
        if known is None:
            yield f"{proxy.name!r} is used but not defined here, or freed already"
        elif known is not proxy:
            yield f"{proxy.name!r} is used for two different values"


def _metadata_faults(bsym: BoundSymbol) -> Iterator[str]:
    answer, strict = (bsym.answer if bsym.is_recorded else None), bsym.grad_enabled
    if answer is None or _is_stale(bsym, answer):
        if bsym.sym.path is None or bsym.sym.impl is None:
            return  # no operation of PyTorch, or an executor's own
        answer, strict = None, False
        try:
            with torch.set_grad_enabled(bsym.grad_enabled):
                answer, _ = ORACLE.ask(bsym.sym.impl, bsym.args, bsym.kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return
        except Exception as error:
            reason = str(error).split("\n")[0]
            yield f"{bsym.sym.name} cannot take these arguments: {type(error).__name__}: {reason}"
            return
    yield from _output_faults(bsym, answer, strict=strict)


def _is_stale(bsym: BoundSymbol, answer: Answer) -> bool:
    """Whether a pass changed the arguments since PyTorch was asked."""
    if answer.asked is None:
        return False
    key = CallKey()
    args = key.of(bsym.args)
    return (args, key.of(bsym.kwargs) if bsym.kwargs else None) != answer.asked


def _output_faults(bsym: BoundSymbol, answer: Answer, *, strict: bool) -> Iterator[str]:
    specs = leaves(answer.output)
    outs = bsym.flat_outs
    if len(specs) != len(outs):
        yield f"{bsym.sym.name} gives {len(specs)} outputs, not {len(outs)}"
        return
    for spec, out in zip(specs, outs, strict=True):
        meta = getattr(spec, "meta", None)
        if isinstance(out, TensorProxy) and meta is not None and not _agree(out.meta, meta, strict):
            yield f"{out.name!r} is recorded as {_described(out.meta)}, but {bsym.sym.name} gives {_described(meta)}"


def _agree(recorded: TensorMeta, said: TensorMeta, strict: bool) -> bool:
    """Whether metadata is as PyTorch says; where a pass wrote the line, autograd's part is left to it."""
    if strict or recorded is said:
        return recorded is said
    seen: dict[str, Any] = {"requires_grad": recorded.requires_grad, "is_leaf": recorded.is_leaf}
    if _tells(recorded) == _tells(said):
        seen["stride"] = recorded.stride
    return recorded is said.replace(**seen)


def _tells(meta: TensorMeta) -> Any:
    """The strides that matter: not those of one element, or none, in which kernels and fakes differ."""
    return meta.numel and [s for s, n in zip(meta.stride, meta.shape, strict=True) if n != 1]


def _described(meta: TensorMeta) -> str:
    return f'"{meta.type_string}" with strides {meta.stride}'


def _backward_faults(computation: Trace, backward: Trace) -> Iterator[Fault]:
    """What is wrong between `return outputs, saved_for_backward` and the backward's unpacking of the latter."""
    output = computation.output
    if not isinstance(output, tuple) or len(output) != 2 or not isinstance(output[1], tuple):
        yield (
            None,
            "there is a backward, but the computation does not return (outputs, saved_for_backward)",
        )
        return
    if not backward.args or backward.args[0].name != "saved_for_backward":
        yield None, "the backward's first argument is not 'saved_for_backward'"
        return
    arrived: dict[Proxy, Any] = {backward.args[0]: output[1]}
    for index, bsym in enumerate(backward.bound_symbols):
        collection = bsym.args[0] if bsym.sym is prims.UNPACK_SEQUENCE else None
        if not isinstance(collection, Proxy) or collection not in arrived:
            continue
        sent, made = arrived[collection], bsym.output
        if len(sent) != len(made):
            yield (
                index,
                f"the computation saves {len(sent)} values here, and the backward unpacks {len(made)}",
            )
            return
        arrived.update(
            (proxy, value)
            for proxy, value in zip(made, sent, strict=True)
            if isinstance(value, tuple)
        )
        yield from ((index, fault) for fault in _saved_faults(sent, made))


def _saved_faults(sent: Any, made: Any) -> Iterator[str]:
    for value, proxy in zip(sent, made, strict=True):
        if isinstance(value, TensorProxy) and isinstance(proxy, TensorProxy):
            if not _agree(proxy.meta, value.meta, strict=False):
                yield (
                    f"{proxy.name!r} is unpacked as {_described(proxy.meta)}, "
                    f"but the computation saves {value.name!r}, {_described(value.meta)}"
                )
        elif isinstance(value, TensorProxy) != isinstance(proxy, TensorProxy):
            yield f"the computation saves {value!r} where the backward unpacks {proxy!r}"
