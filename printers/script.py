"""script: a file that runs by itself: the program, inputs made to the recorded metadata, and a main.

What an executor fused or replaced stands here as the operations that it does, so that the file needs PyTorch alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from tracemill.compiler import prims
from tracemill.compiler.meta import TensorMeta, contiguous_stride
from tracemill.compiler.models import extent_of, is_dense
from tracemill.compiler.proxy import (
    CollectionProxy,
    NumberProxy,
    Proxy,
    TensorProxy,
)
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import SymbolicTensorProxy
from tracemill.compiler.trace import Trace
from tracemill.compiler.values import proxies
from tracemill.printers.base import INDENT, Code, Writer
from tracemill.printers.default import DefaultPrinter
from tracemill.printers.literals import Literals, describe


class ScriptPrinter(DefaultPrinter):
    """The program with a type beside each result, inputs to run it on, and a main."""

    name: ClassVar[str] = "script"

    def code(self, trace: Trace) -> Code:
        """The trace's text, followed by example inputs and a main."""
        code = super().code(trace)
        return replace(code, source=code.source + "\n".join(_main(trace, code)) + "\n")

    def _lines(self, bsym: BoundSymbol, trace: Trace, writer: Writer) -> Iterator[str]:
        if not _is_opened(bsym):
            yield from super()._lines(bsym, trace, writer)
            return
        yield f"# {bsym.sym.name} does this:"
        for inner in bsym.subsymbols:
            yield from self._lines(inner, trace, writer)

    def after(self, bsym: BoundSymbol, trace: Trace, writer: Writer) -> Iterable[str]:
        return () if _is_opened(bsym) else super().after(bsym, trace, writer)


def _is_opened(bsym: BoundSymbol) -> bool:
    """Whether a line is an executor's own, in whose place the operations stand that it does."""
    return bsym.sym.impl is not None and bsym.sym.path is None and bool(bsym.subsymbols)


def _main(trace: Trace, code: Code) -> Iterator[str]:
    examples = _Examples(trace)
    made = {proxy: examples.make(proxy) for proxy in trace.args}
    missing = [f"{proxy.name} ({proxy.type_string})" for proxy in trace.args if not made[proxy]]
    missing += [f"{name} ({describe(value)})" for name, value in code.bound.items()]
    asked = {number.name: number for number in examples.numbers}
    defaults = ", ".join(f"{name}={number.value!r}" for name, number in asked.items())
    yield from ("", "", f"def example_inputs({defaults}):", f"{INDENT}torch.manual_seed(0)")
    yield from (INDENT + line for line in examples.lines)
    names = ", ".join(proxy.name for proxy, there in made.items() if there)
    yield f"{INDENT}return ({names}{',' if names else ''})"
    yield from ("", "", 'if __name__ == "__main__":')
    if missing:
        needs = f"this program runs where it was traced; it needs {', '.join(missing)}"
        yield f"{INDENT}raise SystemExit({needs!r})"
    if not asked:
        yield f"{INDENT}print({trace.name}(*example_inputs()))"
        return
    kinds = ", ".join(number.python_type.__name__ for number in asked.values())
    yield f"{INDENT}import sys"
    yield ""
    yield f"{INDENT}# {' '.join(f'[{name}]' for name in asked)}: what is not given is as it was traced"
    yield f"{INDENT}given = [kind(text) for kind, text in zip(({kinds},), sys.argv[1:])]"
    yield f"{INDENT}print({trace.name}(*example_inputs(*given)))"


class _Examples:
    """Lines that make values like those that the trace was recorded for.

    numbers: the numbers that differ from call to call, which whoever makes examples may choose.
    """

    def __init__(self, trace: Trace) -> None:
        self.lines: list[str] = []
        self.numbers: dict[NumberProxy, None] = {}
        self._items: dict[Proxy, Sequence[Proxy]] = {
            bsym.args[0]: bsym.output
            for bsym in trace.bound_symbols
            if bsym.sym is prims.UNPACK_SEQUENCE
        }

    def make(self, proxy: Proxy) -> bool:
        """Adds the lines that make a value under its name; False where there is no example of it."""
        text = self._text(proxy)
        if text and text != proxy.name:
            self.lines.append(f"{proxy.name} = {text}")
        return bool(text)

    def _text(self, proxy: Proxy) -> str:
        if isinstance(proxy, SymbolicTensorProxy):
            numbers = [number for number in proxies(proxy.sizes) if isinstance(number, NumberProxy)]
            self.numbers.update(dict.fromkeys(numbers))
            return f"{_tensor_of_any_size(proxy)}  # {proxy.type_string}"
        if isinstance(proxy, TensorProxy):
            return f"{_tensor(proxy.meta)}  # {proxy.type_string}"
        if isinstance(proxy, NumberProxy):
            self.numbers[proxy] = None
            return proxy.name
        if isinstance(proxy, CollectionProxy) and proxy.python_type in (tuple, list):
            items = self._items.get(proxy, ())
            if len(items) == proxy.length and all([self.make(item) for item in items]):
                names = "".join(f"{item.name}, " for item in items).rstrip()
                return f"[{names}]" if proxy.python_type is list else f"({names})"
        return ""


def _tensor(meta: TensorMeta) -> str:
    """An expression for a tensor of this metadata: drawn numbers, or zeros, which are valid as indices too."""
    shape, stride = tuple(meta.shape), tuple(meta.stride)
    options = f"dtype={meta.dtype}, device={str(meta.device)!r}"
    draws = (meta.dtype.is_floating_point or meta.dtype.is_complex) and meta.dtype.itemsize > 1
    fill = ".normal_()" if draws else ".zero_()"
    if meta.layout != torch.strided:
        return f"torch.zeros({shape}, {options}, layout={meta.layout})"
    if stride == contiguous_stride(shape):
        text = f"torch.{'randn' if draws else 'zeros'}({shape}, {options})"
    elif is_dense(meta):
        text = f"torch.empty_strided({shape}, {stride}, {options}){fill}"
    else:
        text = f"torch.empty({extent_of(meta)}, {options}){fill}.as_strided({shape}, {stride})"
    text += ".conj()" if meta.conj else ""
    return text + (".requires_grad_()" if meta.requires_grad and meta.is_leaf else "")


def _tensor_of_any_size(proxy: SymbolicTensorProxy) -> str:
    """An expression for a tensor of symbolic sizes, its dimensions in memory in the order that was recorded."""
    meta, literals = proxy.meta, Literals(set())
    order = sorted(range(len(meta.shape)), key=lambda dim: -meta.stride[dim])
    shape = literals.value(tuple(proxy.sizes[dim] for dim in order))
    draws = (meta.dtype.is_floating_point or meta.dtype.is_complex) and meta.dtype.itemsize > 1
    options = f"dtype={meta.dtype}, device={str(meta.device)!r}"
    text = f"torch.{'randn' if draws else 'zeros'}({shape}, {options})"
    if order != sorted(order):
        text += f".permute({', '.join(str(order.index(dim)) for dim in range(len(order)))})"
    text += ".conj()" if meta.conj else ""
    return text + (".requires_grad_()" if meta.requires_grad and meta.is_leaf else "")
