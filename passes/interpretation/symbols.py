"""Symbols: sizes that differ from call to call, on PyTorch's own symbolic shapes.

One ShapeEnv belongs to one trace. It makes the sizes of inputs symbolic, says what a call's sizes are, and collects the
guards that Python and PyTorch needed, each with the user's line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from tracemill.compiler import prims
from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import Answer, NewTensor, SameTensor
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.guards import check
from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.models import non_leaf, stand_in_for
from tracemill.compiler.names import Names
from tracemill.compiler.oracle import unobserved
from tracemill.compiler.proxy import (
    IntegerProxy,
    NumberProxy,
    Proxy,
    TensorProxy,
)
from tracemill.compiler.settings import Ambient
from tracemill.compiler.signature import CallKey
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import Expression, SymbolicTensorProxy
from tracemill.compiler.values import leaves, map_leaves

_PLAIN_ARITHMETIC = re.compile(r"^[\w\s{}()+*/%,.-]*$")
_INEXACT = re.compile(r"(?<!/)/(?!/)|math|torch|float|int\(|trunc|round|\d\.\d|\*\* *-")
_TOKEN = re.compile(r"tracemill_(\d+)_")


class Layout(NamedTuple):
    """Shape, strides and storage offset of a tensor in elements, as ints and SymInts."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any


class _ShapeEnv(internals.ShapeEnv):
    """PyTorch's environment; its guards know the user's line."""

    def __init__(self, where: Callable[[], str]) -> None:
        super().__init__(duck_shape=False)
        self._tracemill_where = where

    def _get_sloc(self, framework_loc: str | None = None) -> Any:
        return internals.SLoc("", self._tracemill_where())


class _Printer(internals.PythonPrinter):
    """Writes symbols as the places of a template."""

    def __init__(self, symbols: Sequence[Any]) -> None:
        super().__init__()
        self._places = {symbol: f"{{{index}}}" for index, symbol in enumerate(symbols)}

    def _print_Symbol(self, expr: Any) -> str:
        return self._places[expr]


class _Key(CallKey):
    """A key in which symbolic numbers count by expression."""

    def __init__(self, symbols: Symbols) -> None:
        super().__init__()
        self._symbols = symbols

    def _number(self, number: Any) -> Any:
        return number

    def _tensor(self, proxy: TensorProxy) -> Any:
        known = super()._tensor(proxy)
        return known if type(known) is int else (known, self._symbols.layout_key(proxy))


class Symbols:
    """The symbolic sizes of one trace.

    lines: the prologue's lines that name the sizes of inputs. reads_offsets: whether it matters where in their storage
    inputs begin.
    """

    def __init__(self, names: Names, where: Callable[[], str]) -> None:
        self.lines: list[BoundSymbol] = []
        self.reads_offsets = False
        self._names = names
        self._env = _ShapeEnv(where)
        self._fakes = internals.FakeTensorMode(shape_env=self._env, allow_non_fake_inputs=True)
        self._numbers: dict[Any, IntegerProxy] = {}
        self._symints: dict[Any, Any] = {}
        self._layouts: dict[TensorProxy, Layout] = {}
        self._inputs: list[tuple[TensorProxy, Any]] = []
        self._answers: dict[Any, Any] = {}

    # Inputs

    def input(self, proxy: TensorProxy, tensor: torch.Tensor) -> TensorProxy:
        """The proxy of an input whose sizes are symbolic, those of 0 and 1 excepted."""
        source = internals.LocalSource(f"x{len(self._inputs)}")
        context = internals.StatelessSymbolicContext(
            dynamic_sizes=[internals.DimDynamic.DUCK] * tensor.dim()
        )
        like = torch.empty_strided(tensor.shape, tensor.stride(), device="meta")
        shape, stride, _ = self._env.create_symbolic_sizes_strides_storage_offset(
            like, source, symbolic_context=context
        )
        offset = proxy.storage_offset  # a number, whatever the sizes are; checked where it was read
        layout = Layout(tuple(map(known, shape)), tuple(map(known, stride)), offset)
        sizes = tuple(self._size(size) for size in layout.shape)
        result = self.proxy(proxy, layout, sizes)
        self._inputs.append((result, source))
        if any(isinstance(size, Proxy) for size in sizes):
            self.lines.append(prims.UNPACK_SHAPE.bind(result, output=sizes))
        return result

    def _size(self, size: Any) -> Any:
        if type(size) is int:
            return size
        proxy = IntegerProxy(self._names.fresh("i"), value=size.node.hint)
        self._numbers[size.node.expr] = proxy
        self._symints[proxy] = size
        return proxy

    def proxy(
        self, like: TensorProxy, layout: Layout, sizes: tuple[Any, ...] | None = None
    ) -> TensorProxy:
        """A proxy like another one, of this layout."""
        made = SymbolicTensorProxy(
            like.name,
            sizes=tuple(map(self.number, layout.shape)) if sizes is None else sizes,
            meta=like.meta,
            storage=like.storage,
            storage_offset=like.storage_offset,
        )
        self._layouts[made] = layout
        return made

    @property
    def sizes(self) -> list[IntegerProxy]:
        """The sizes that differ from call to call."""
        return list(self._numbers.values())

    def layout(self, proxy: TensorProxy) -> Layout | None:
        """The layout of a tensor whose sizes are symbolic."""
        return self._layouts.get(proxy)

    def layout_key(self, proxy: TensorProxy) -> Any:
        """What tells a layout apart; None where it is not symbolic."""
        layout = self._layouts.get(proxy)
        if layout is None:
            return None
        parts = (*layout.shape, *layout.stride, layout.offset)
        return tuple(part if type(part) is int else part.node.expr for part in parts)

    # Numbers

    def number(self, value: Any) -> Any:
        """What stands for a symbolic number in the trace: an int, a proxy or an expression; others as they are."""
        kind = type(value)
        if kind is torch.SymInt:
            return self._integer(value)
        if kind is torch.SymFloat:
            return float(value)
        if kind is torch.SymBool:
            return bool(value)
        if kind is torch.Size and any(type(size) is torch.SymInt for size in value):
            return torch.Size(map(int, value))
        return value

    def _integer(self, value: Any) -> Any:
        value = known(value)
        if type(value) is int:
            return value
        expr = value.node.expr
        proxy = self._numbers.get(expr)
        if proxy is not None:
            return proxy
        free = sorted(expr.free_symbols, key=str)
        if all(symbol in self._numbers for symbol in free):
            template = _Printer(free).doprint(expr)
            if _PLAIN_ARITHMETIC.match(template) and "." not in template:
                operands: tuple[NumberProxy, ...] = tuple(self._numbers[symbol] for symbol in free)
                made = Expression(template, operands, value.node.hint)
                self._symints[made] = value
                return made
        return int(value)

    def involved(self, args: Any, kwargs: Any) -> bool:
        """Whether a call is on symbolic sizes or numbers."""
        return any(
            type(leaf) in (SymbolicTensorProxy, Expression, IntegerProxy)
            for leaf in (*leaves(args), *leaves(kwargs))
        )

    def specialise(self, args: Any, kwargs: Any) -> Any:
        """Guards that every symbolic number of a call is what it is now; its arguments with plain numbers."""

        def leaf(value: Any) -> Any:
            for part in self._parts(value):
                if type(part) is torch.SymInt:
                    int(part)
            return value.value if type(value) in (Expression, IntegerProxy) else value

        return map_leaves(leaf, (tuple(args), dict(kwargs)))

    def _parts(self, value: Any) -> tuple[Any, ...]:
        if type(value) is SymbolicTensorProxy:
            shape, stride, offset = self._layouts[value]
            return (*shape, *stride, offset)
        return (self._symints[value],) if type(value) in (Expression, IntegerProxy) else ()

    # Calls

    def answer(
        self, fn: Any, args: Any, kwargs: Any, answer: Answer, tensors: Sequence[TensorProxy]
    ) -> Any:
        """What a call gives in symbols, or None where PyTorch does not say it of every size.

        For a query its output, in a list of one; else the layout of each leaf of the output, None where it is no new tensor.
        answer: what PyTorch said for the sizes of now.
        """
        key = _Key(self)
        parts = (fn, key.of(args), key.of(kwargs), Ambient.now())
        if parts not in self._answers:
            try:
                with internals.quiet_fakes(), _unprofiled():
                    found = self._ask(fn, args, kwargs, answer, tensors)
            except (
                Exception
            ):  # whatever fakes cannot do symbolically, they did for the sizes of now
                found = None
            self._answers[parts] = found
        return self._answers[parts]

    def _ask(
        self, fn: Any, args: Any, kwargs: Any, answer: Answer, tensors: Sequence[TensorProxy]
    ) -> Any:
        with unobserved():
            models = [self._model(tensor) for tensor in tensors]
            by_proxy = dict(zip(tensors, models, strict=True))

            def real(leaf: Any) -> Any:
                if type(leaf) in (Expression, IntegerProxy):
                    return self._symints[leaf]
                return by_proxy.get(leaf, leaf) if isinstance(leaf, TensorProxy) else leaf

            given, named = map_leaves(real, (tuple(args), dict(kwargs)))
            with self._fakes:
                output = fn(*given, **named)
        if answer.is_query:
            return [output]
        specs, outs = list(leaves(answer.output)), list(leaves(output))
        if len(specs) != len(outs):
            return None
        found = [
            self._compared(spec, out, models, tensors)
            for spec, out in zip(specs, outs, strict=True)
        ]
        return None if any(layout is False for layout in found) else found

    def _compared(
        self, spec: Any, out: Any, models: Sequence[Any], tensors: Sequence[TensorProxy]
    ) -> Any:
        """The layout of one output; None for no new tensor, False where it is not as for the sizes of now."""
        if type(spec) is SameTensor:
            return None if out is models[spec.position] else False
        if type(spec) is not NewTensor:
            return False if isinstance(out, (torch.SymInt, torch.Tensor)) else None
        if not isinstance(out, torch.Tensor) or any(out is model for model in models):
            return False
        meta: TensorMeta = spec.meta
        if meta.layout != torch.strided or out.layout != torch.strided:
            return False
        offset = out.storage_offset()
        kind, position = spec.storage
        if kind == "argument":
            if out.untyped_storage()._cdata != models[position].untyped_storage()._cdata:
                return False
            base = self._layouts.get(tensors[position])
            offset += tensors[position].storage_offset if base is None else base.offset
        layout = Layout(
            tuple(map(known, out.shape)), tuple(map(known, out.stride())), known(offset)
        )
        now = (tuple(map(hint, layout.shape)), tuple(map(hint, layout.stride)), out.dtype)
        return layout if now == (meta.shape, meta.stride, meta.dtype) else False

    def _model(self, proxy: TensorProxy) -> torch.Tensor:
        layout = self._layouts.get(proxy)
        if layout is None:
            plain = TensorProxy(proxy.name, meta=proxy.meta)
            return stand_in_for(plain, self._fakes)
        meta = proxy.meta
        with self._fakes, torch.enable_grad():
            model = torch.empty_strided(
                layout.shape, layout.stride, dtype=meta.dtype, device=meta.device
            )
            model = model.conj() if meta.conj else model
            model = torch.ops.aten._neg_view.default(model) if meta.neg else model
            if meta.requires_grad:
                model.requires_grad_()
                model = model if meta.is_leaf else non_leaf(model)
        return model

    # Guards

    def fixed(self, tensors: Sequence[tuple[TensorProxy, torch.Tensor]]) -> Any:
        """Sizes, and strides, of input tensors that the same ones must have at each call; None for those of symbols."""
        made: tuple[list[Any], list[Any]] = ([], [])
        for proxy, tensor in tensors:
            parts = self._layouts.get(proxy, (tensor.shape, tensor.stride()))[:2]
            for found, part in zip(made, parts, strict=True):
                found.append([value if type(value) is int else None for value in part])
        return made

    def guards(self) -> Iterator[BoundSymbol]:
        """The checks of what Python and PyTorch needed of the sizes."""
        if not self._inputs:
            return
        operands: list[Proxy] = []
        suffixes: list[str] = []
        fixed: set[int] = set()

        def reference(source: Any) -> str:
            operand, suffix, is_fixed = self._reference(source)
            if is_fixed:
                fixed.add(len(operands))
            operands.append(operand)
            suffixes.append(suffix)
            return f"tracemill_{len(operands) - 1}_"

        placeholders = [self._model(proxy) for proxy, _ in self._inputs]
        produced, described = self._env.produce_guards_verbose(
            placeholders,  # type: ignore[arg-type]
            [source for _, source in self._inputs],
            source_ref=reference,
            ignore_static=False,  # a size that was specialised, which the check of metadata does not see
        )
        for text, verbose in zip(produced.exprs, described.exprs, strict=True):
            line = verbose.rpartition("  # ")[2].strip().removesuffix("()").strip()
            if all(int(index) in fixed for index in _TOKEN.findall(text)):
                continue
            line = "" if "please file a bug" in line or " and " in line[:5] else line
            yield _guard(text, line, operands, suffixes)

        for proxy, _ in self._inputs if self.reads_offsets else ():
            condition = "{}.storage_offset() == {}"
            yield check(f"{proxy.name}: where it begins", condition, proxy, proxy.storage_offset)

    def _reference(self, source: Any) -> tuple[Proxy, str, bool]:
        """A source as a value of the prologue and a path from it; whether the check of metadata covers it."""
        for proxy, base in self._inputs:
            if getattr(source, "base", None) == base:
                layout = self._layouts[proxy]
                if source.prop is internals.TensorProperty.STORAGE_OFFSET:
                    return proxy, ".storage_offset()", True
                if source.prop is internals.TensorProperty.STRIDE:
                    return proxy, f".stride({source.idx})", type(layout.stride[source.idx]) is int
                assert isinstance(proxy, SymbolicTensorProxy)
                size = proxy.sizes[source.idx]
                if isinstance(size, Proxy):
                    return size, "", False
                return proxy, f".shape[{source.idx}]", True
        raise UnsupportedError(f"a guard is on {source.name}, which is no size of an input")


@contextmanager
def _unprofiled() -> Generator[None]:
    """In the block the hook that watches the user's code sees nothing: PyTorch's symbolic shapes are much Python."""
    before = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(before)


def _guard(text: str, line: str, operands: Sequence[Proxy], suffixes: Sequence[str]) -> BoundSymbol:
    used: dict[int, int] = {}

    def place(match: re.Match[str]) -> str:
        index = int(match[1])
        return f"{{{used.setdefault(index, len(used))}}}{suffixes[index]}"

    condition = _TOKEN.sub(place, text)
    if _INEXACT.search(
        text
    ):  # floats in guards are not Python's: the sizes in it are what they are now
        paths = [f"{{{place}}}{suffixes[index]}" for index, place in used.items()]
        now = [_now(operands[index], suffixes[index]) for index in used]
        condition = " and ".join(f"{path} == {size}" for path, size in zip(paths, now, strict=True))
    return check(line or "sizes and strides", condition, *(operands[index] for index in used))


def _now(operand: Proxy, suffix: str) -> int:
    """What a source of the prologue is at the call that is traced."""
    if isinstance(operand, IntegerProxy):
        return int(operand.value)  # type: ignore[arg-type]
    assert isinstance(operand, TensorProxy)
    table = operand.meta.stride if suffix.startswith(".stride") else operand.meta.shape
    return table[int(re.findall(r"\d+", suffix)[0])]


def known(value: Any) -> Any:
    """A size as an int where it can only be one."""
    if type(value) is not torch.SymInt:
        return value
    exact = value.node.maybe_as_int()
    return value if exact is None else exact


def hint(value: Any) -> int:
    """What a size was while tracing."""
    return value.node.hint if type(value) is torch.SymInt else value
