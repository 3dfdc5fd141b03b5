"""Verify: says what is wrong with a trace; no pass, but run after each of them in tests."""

from __future__ import annotations

from collections.abc import Iterator

from tracemill.compiler import prims
from tracemill.compiler.errors import TraceError
from tracemill.compiler.pass_base import AnyPass
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace
from tracemill.compiler.values import leaves
from tracemill.printers.base import INDENT
from tracemill.printers.default import DefaultPrinter


def verify(trace: Trace, made_by: AnyPass | None = None) -> None:
    """Raises TraceError, with the trace and the faulty line marked, when a trace is not well formed.

    Every name is defined once and before its use, a freed value is not used, and outputs are as the oracle says.
    """
    for index, fault in _faults(trace):
        code = DefaultPrinter().code(trace)
        lines = code.source.splitlines()
        number = code.lines[index] if index is not None and index < len(code.lines) else len(lines)
        lines.insert(number, f"{INDENT}# ^^^ {fault}")
        by = (
            f"pass {made_by.name!r} ({type(made_by).__module__}) made"
            if made_by is not None
            else "this is"
        )
        raise TraceError(f"{by} an ill-formed trace: {fault}\n" + "\n".join(lines))


def _faults(trace: Trace) -> Iterator[tuple[int | None, str]]:
    defined: dict[str, Proxy] = {}
    for proxy in trace.args:
        if proxy.name in defined:
            yield None, f"two arguments are named {proxy.name!r}"
        defined[proxy.name] = proxy
    for index, bsym in enumerate(trace.bound_symbols):
        yield from ((index, fault) for fault in _use_faults(bsym.inputs, defined))
        if bsym.sym is prims.DELETE:
            for proxy in bsym.inputs:
                defined.pop(proxy.name, None)
        for proxy in dict.fromkeys(bsym.outputs):
            known = defined.get(proxy.name)
            if known is not None and known is not proxy:
                yield index, f"{proxy.name!r} is defined twice"
            defined[proxy.name] = proxy
        yield from ((index, fault) for fault in _metadata_faults(bsym))
    yield from ((None, fault) for fault in _use_faults(trace.outputs, defined))


def _use_faults(used: Iterator[Proxy], defined: dict[str, Proxy]) -> Iterator[str]:
    for proxy in used:
        known = defined.get(proxy.name)
        if known is None:
            yield f"{proxy.name!r} is used but not defined here, or freed already"
        elif known is not proxy:
            yield f"{proxy.name!r} is used for two different values"


def _metadata_faults(bsym: BoundSymbol) -> Iterator[str]:
    if bsym.answer is None:
        return
    specs = list(leaves(bsym.answer.output))
    outs = bsym.flat_outs
    if len(specs) != len(outs):
        yield f"{bsym.sym.name} gives {len(specs)} outputs, not {len(outs)}"
        return
    for spec, out in zip(specs, outs, strict=True):
        meta = getattr(spec, "meta", None)
        if isinstance(out, TensorProxy) and meta is not None and out.meta is not meta:
            yield f'{out.name!r} is recorded as "{out.type_string}", but {bsym.sym.name} gives "{meta.type_string}"'
