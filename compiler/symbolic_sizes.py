"""Symbolic sizes: sizes and numbers that differ from call to call, on PyTorch's own symbolic shapes.

One ShapeEnv belongs to one trace. It makes the sizes of inputs symbolic, says what a call's sizes are, and collects the
guards that Python and PyTorch needed, each with the user's line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import Answer, NewTensor
from tracemill.compiler.body import NotCapturedError
from tracemill.compiler.derivative import Derivatives
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.layouts import Fakes
from tracemill.compiler.meta import Storage, TensorMeta, hint
from tracemill.compiler.models import extent_of, non_leaf
from tracemill.compiler.oracle import ORACLE, STORAGE_READERS, unobserved
from tracemill.compiler.profiling import unprofiled
from tracemill.compiler.proxy import IntegerProxy, NumberProxy, TensorProxy
from tracemill.compiler.settings import Ambient
from tracemill.compiler.signature import CallKey
from tracemill.compiler.sizes import Make, Sizes
from tracemill.compiler.symbol import Source
from tracemill.compiler.symbolic import (
    Expression,
    Layout,
    SymbolicTensorProxy,
    is_symbolic,
    known,
    layout_of,
)
from tracemill.compiler.symbolic_layouts import all_compared, as_given
from tracemill.compiler.values import leaves, map_leaves

_PLAIN_ARITHMETIC = re.compile(r"^[\w\s{}()+*/%,-]*$")
_ANSWERED_BY_NOBODY = object()


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
    """A key in which symbolic numbers and sizes count by expression."""

    def _number(self, number: Any) -> Any:
        return number

    def _tensor(self, proxy: TensorProxy) -> Any:
        meta, layout = super()._tensor(proxy), layout_of(proxy)
        return meta if layout is None or type(meta) is int else (meta, layout.key)


class SymbolicSizes(Sizes):
    """The symbolic sizes of one trace.

    env: PyTorch's environment. inputs: the values that symbols come from, each with its source.
    beginning: the line where the program begins. running: says which one runs, while the program runs.
    reads_offsets: whether it matters where in their storage inputs begin. checked: how many of the environment's guards
    the prologue checks; None before it does.
    """

    is_symbolic = True
    ways = (nullcontext, internals.enable_python_dispatcher)

    def __init__(self, beginning: Source | None) -> None:
        self.env = _ShapeEnv(self._where)
        mode = Fakes(shape_env=self.env, allow_non_fake_inputs=True)
        mode.cache_enabled = False  # what it keeps is of no use to another trace, and costs much
        super().__init__(mode)
        self.beginning = beginning
        self.running: Callable[[], Source | None] = lambda: None
        self.inputs: list[tuple[TensorProxy | NumberProxy, Any]] = []
        self.reads_offsets = False
        self.checked: int | None = None
        self.numbers: dict[Any, NumberProxy] = {}
        self.derivatives = Derivatives(self)
        self._symbolic: dict[Any, Any] = {}
        self._answers: dict[Any, Any] = {}

    def _where(self) -> str:
        source = self.running() if self.line is None else self.line.source
        return self.described(source)

    def described(self, source: Source | None = None) -> str:
        """A line of the user's, for checks; the program's first one where there is none."""
        source = source or self.beginning
        return "sizes" if source is None else f"{source}  {source.text}"

    def name(self, symbol: Any, proxy: NumberProxy) -> NumberProxy:
        """Makes a proxy the value of the trace that a symbolic number is."""
        self.numbers[symbol.node.expr] = proxy
        self._symbolic[proxy] = symbol
        return proxy

    # From the trace to PyTorch

    def model(self, proxy: TensorProxy) -> torch.Tensor:
        return self._model(proxy, exact=False)

    def _model(self, proxy: TensorProxy, *, exact: bool) -> torch.Tensor:
        layout, meta = layout_of(proxy), proxy.meta
        if layout is None:
            return super().model(TensorProxy(proxy.name, meta=meta))
        model = self._plain_model(layout, meta, exact=exact)
        if meta.requires_grad:
            model.requires_grad_()
            if not meta.is_leaf:
                with torch.enable_grad():
                    make = functools.partial(self._plain_model, layout, meta, exact=exact)
                    model = non_leaf(model, make)
        return model

    def _plain_model(self, layout: Layout, meta: TensorMeta, *, exact: bool) -> torch.Tensor:
        """A fake without history.

        exact: whether its memory is as large as its sizes say, which takes half a millisecond of symbolic arithmetic, and
        matters where a write changes its shape; else as large as the sizes of now say.
        """
        if exact:
            strided = torch.empty_strided(
                layout.shape, layout.stride, dtype=meta.dtype, device="meta"
            )
        else:
            memory = torch.empty(extent_of(meta), dtype=meta.dtype, device="meta")
            with internals.unseen_views():
                strided = memory.as_strided(layout.shape, layout.stride)
        model: torch.Tensor = internals.FakeTensor(self.mode, strided, meta.device)
        if meta.conj or meta.neg:
            with self.mode:
                model = model.conj() if meta.conj else model
                model = internals.neg_view(model) if meta.neg else model
        return model

    def given(self, number: Any) -> Any:
        return self._symbolic[number] if type(number) in _NUMBERS else number

    def key(self) -> CallKey:
        return _Key()

    @property
    def named(self) -> Collection[NumberProxy]:
        return self.numbers.values()

    # From PyTorch to the trace

    def number(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.SymInt:
            return self._integer(value)
        if kind is torch.SymFloat:
            return self.numbers.get(value.node.expr) or float(value)
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
        proxy = self.numbers.get(expr)
        if proxy is not None:
            return proxy
        free = sorted(expr.free_symbols, key=str)
        if all(symbol in self.numbers for symbol in free):
            template = _Printer(free).doprint(expr)
            if _PLAIN_ARITHMETIC.match(template):
                operands = tuple(self.numbers[symbol] for symbol in free)
                made = Expression(template, operands, value.node.hint)
                self._symbolic[made] = value
                return made
        return int(value)

    def like(self, proxy: TensorProxy, fake: torch.Tensor) -> TensorProxy:
        if not fake._has_symbolic_sizes_strides:
            return proxy
        return self.proxy(proxy, Layout.of(fake))

    def proxy(self, like: TensorProxy, layout: Layout) -> TensorProxy:
        """A proxy like another one, of this layout."""
        if not layout.is_symbolic:
            return like
        return SymbolicTensorProxy(
            like.name,
            layout=layout,
            sizes=tuple(map(self.number, layout.shape)),
            owner=self,
            meta=like.meta,
            storage=like.storage,
            storage_offset=like.storage_offset,
        )

    # Calls

    def ask(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        make: Make,
        local: dict[Any, Answer] | None = None,
    ) -> tuple[Answer, Any]:
        answer, tensors = ORACLE.ask(fn, args, kwargs, local, zeros=False)
        layouts = self.layouts(fn, args, kwargs, answer, tensors)
        if layouts is None:
            self.specialise(args, kwargs)
        return answer, answer.instantiate(tensors, self.making(make, answer, layouts))

    def making(self, make: Make, answer: Answer, layouts: Any) -> Make:
        if layouts is None:
            return make
        specs = leaves(answer.output)
        by_spec = {id(spec): each for spec, each in zip(specs, layouts, strict=True)}

        def made(spec: NewTensor, storage: Storage, offset: int) -> TensorProxy:
            layout, proxy = by_spec[id(spec)], make(spec, storage, offset)
            return proxy if layout is None else self.proxy(proxy, layout)

        return made

    def involved(self, args: Any, kwargs: Any) -> bool:
        """Whether a call is on symbolic sizes or numbers."""
        return any(map(is_symbolic, leaves(args))) or any(map(is_symbolic, leaves(kwargs)))

    def layouts(
        self, fn: Any, args: Any, kwargs: Any, answer: Answer, tensors: Sequence[TensorProxy]
    ) -> Any:
        """What a call gives in symbols, or None where PyTorch does not say it of every size.

        For a query its output, in a list of one; else the layout of each leaf of the output, None where it is no new tensor.
        answer: what PyTorch said for the sizes of now.
        """
        if not self.involved(args, kwargs):
            return [answer.output] if answer.is_query else [None for _ in leaves(answer.output)]
        if fn in STORAGE_READERS:
            return None
        key = _Key()
        parts = (fn, key.of(args), key.of(kwargs), Ambient.now())
        found = self._answers.get(parts, _ANSWERED_BY_NOBODY)
        if found is _ANSWERED_BY_NOBODY:
            found = as_given(args, kwargs, answer, tensors)
            if found is None:
                found = self._told(fn, args, kwargs, answer, tensors)
            self._answers[parts] = found
        return found

    def _told(
        self, fn: Any, args: Any, kwargs: Any, answer: Answer, tensors: Sequence[TensorProxy]
    ) -> Any:
        with unprofiled():
            found = self._of_derivative(fn, args, kwargs, answer, tensors)
            for way in self.ways if found is None else ():
                try:
                    with internals.quiet_fakes(), way():
                        return self._ask(fn, args, kwargs, answer, tensors)
                except (
                    Exception
                ):  # what fakes cannot do symbolically, they did for the sizes of now
                    continue
            return found

    def _of_derivative(
        self, fn: Any, args: Any, kwargs: Any, answer: Answer, tensors: Sequence[TensorProxy]
    ) -> Any:
        """The layouts of a call that gradients flow through, which its derivative, wanted later, tells as well; or None."""
        if not torch.is_grad_enabled() or answer.mutated or answer.is_query:
            return None
        if not any(tensor.requires_grad for tensor in tensors):
            return None
        try:
            derivative = self.derivatives.ask(fn, args, kwargs)
        except NotCapturedError:
            return None
        return all_compared(answer, derivative.made, derivative.models, tensors)

    def _ask(
        self, fn: Any, args: Any, kwargs: Any, answer: Answer, tensors: Sequence[TensorProxy]
    ) -> Any:
        with unobserved():
            models = [self._model(tensor, exact=bool(answer.mutated)) for tensor in tensors]
            by_proxy = dict(zip(tensors, models, strict=True))

            def real(leaf: Any) -> Any:
                return by_proxy[leaf] if isinstance(leaf, TensorProxy) else self.given(leaf)

            given, named = map_leaves(real, (tuple(args), dict(kwargs)))
            with self.mode:
                output = fn(*given, **named)
            if answer.is_query:
                return [output]
            return all_compared(answer, leaves(output), models, tensors)

    def cotangent(self, out: TensorProxy) -> TensorProxy:
        layout, plain = layout_of(out), super().cotangent(out)
        if layout is None:
            return plain
        if layout.is_dense:
            return self.proxy(plain, layout._replace(offset=0))
        with unobserved(), self.mode:
            like = torch.empty_like(
                torch.empty_strided(layout.shape, layout.stride, device=out.device)
            )
        made = self.like(plain, like)
        if tuple(map(hint, like.stride())) != plain.meta.stride:
            self.specialise(out)
            return plain
        return made

    def specialise(self, *values: Any) -> None:
        for value in leaves(values):
            layout = layout_of(value) if isinstance(value, TensorProxy) else None
            for part in (self.given(value),) if layout is None else layout.parts:
                if type(part) is torch.SymInt:
                    int(part)
                elif type(part) is torch.SymFloat:
                    float(part)

    def refuse_unchecked(self) -> None:
        unchecked = self.env.guards[self.checked or 0 :]
        if unchecked:
            raise UnsupportedError(
                "a backward for some of the program's outputs asks of its sizes what the call has not checked: "
                f"{', '.join(str(guard.expr) for guard in unchecked)}; use all outputs that require grad, or "
                'cache="constant values"'
            )

    def same_geometry(self, one: TensorProxy, other: TensorProxy) -> bool:
        return super().same_geometry(one, other) and self._same(one, other)

    def _same(self, one: TensorProxy, other: TensorProxy) -> bool:
        """Whether shapes and strides are equal; each comparison that is not plain becomes a guard."""
        first, second = layout_of(one), layout_of(other)
        if first is None and second is None:
            return True
        pairs = zip(self._shape_and_stride(one), self._shape_and_stride(other), strict=True)
        return all(bool(a == b) for a, b in pairs)

    @staticmethod
    def _shape_and_stride(proxy: TensorProxy) -> tuple[Any, ...]:
        layout = layout_of(proxy) or proxy.meta
        return (*layout.shape, *layout.stride)

    def stride(self, proxy: TensorProxy) -> tuple[Any, ...]:
        layout = layout_of(proxy)
        return proxy.meta.stride if layout is None else layout.stride


_NUMBERS = frozenset([Expression, *NumberProxy.__subclasses__()])


def integer(name: str, symbol: Any) -> IntegerProxy:
    """The proxy of a symbolic size."""
    return IntegerProxy(name, value=symbol.node.hint)
