"""The interpreter under symbolic values: arguments' sizes are symbols, and every call is asked about for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import NewTensor
from tracemill.compiler.errors import MutationError, UnsupportedError
from tracemill.compiler.meta import Storage
from tracemill.compiler.names import Names
from tracemill.compiler.oracle import ORACLE, STORAGE_READERS
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.values import leaves, map_leaves, proxies
from tracemill.passes.interpretation import queries
from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.location import Locator
from tracemill.passes.interpretation.python_numbers import LIKE_PLAIN_NUMBERS, holds_symbolic
from tracemill.passes.interpretation.stand_in import TracedTensor
from tracemill.passes.interpretation.symbols import Symbols

_ON_SIZES = frozenset(getattr(torch, name) for name in dir(torch) if name.startswith("sym_"))


class SymbolicInterpreter(Interpreter):
    """Records one run of a program whose arguments' sizes are symbols.

    A call that PyTorch does not answer in symbols specialises: its sizes are guarded to be what they are now.
    """

    def __init__(self, locator: Locator, names: Names, *, checked: bool = True) -> None:
        super().__init__(locator, names, checked=checked)
        self.symbols = Symbols(names, self._where)
        self._arguments: set[int] = set()
        self._pending: dict[int, Any] = {}

    def _where(self) -> str:
        source = self.source()
        return "" if source is None else f"{source}  {source.text}"

    def input(self, tensor: torch.Tensor) -> TracedTensor:
        if tensor.layout == torch.strided:
            self._arguments.add(id(tensor))
        return super().input(tensor)

    def surroundings(self) -> AbstractContextManager[Any]:
        return LIKE_PLAIN_NUMBERS

    def number(self, value: Any) -> Any:
        return self.symbols.number(value)

    def _input_proxy(self, tensor: torch.Tensor) -> TensorProxy:
        proxy = super()._input_proxy(tensor)
        return self.symbols.input(proxy, tensor) if id(tensor) in self._arguments else proxy

    def _stand_in(self, proxy: TensorProxy) -> TracedTensor:
        return TracedTensor(proxy, self.symbols.layout(proxy))

    def _to_proxies(self, value: Any) -> Any:
        return super()._to_proxies(map_leaves(self.symbols.number, value))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.storage_offset or func in STORAGE_READERS:
            self.symbols.reads_offsets = True
        if func in _ON_SIZES:
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records a call on proxies, for all sizes where PyTorch can say what it gives, else for those of now."""
        if fn in queries.VALUES or not self.symbols.involved(args, kwargs):
            return super().call(fn, args, kwargs)
        found = self._symbolic(fn, args, kwargs)
        if found is None:
            return super().call(fn, *self.symbols.specialise(args, kwargs))
        answer, tensors, layouts = found
        if answer.is_query:
            return layouts[0]
        specs = leaves(answer.output)
        self._pending = {
            id(spec): layout
            for spec, layout in zip(specs, layouts, strict=True)
            if layout is not None
        }
        try:
            return self.add(fn, args, kwargs, answer, tensors)
        finally:
            self._pending = {}

    def refuse_unfinished(self, output: Any, changes: Any) -> None:
        """Raises UnsupportedError for what is not built for symbolic values: gradients, writes, sizes kept in Python state."""
        advice = 'under cache="symbolic values"; use cache="constant values"'
        given = {proxy for proxy, _ in self.lifted.values()}
        for value in proxies(output):
            if isinstance(value, TensorProxy) and value.requires_grad and value not in given:
                raise UnsupportedError(
                    f"the result requires grad, which is not built {advice}, or call it under torch.no_grad()"
                )
        for bsym in self.bound_symbols:
            if bsym.mutates:
                raise MutationError(
                    f"{bsym.sym.name} at {bsym.source} writes to a tensor, which is not built {advice}"
                )
        for changed in changes.values():
            if holds_symbolic(changed):
                raise MutationError(
                    f"the program stores a size in Python state, which is not built {advice}"
                )

    def _symbolic(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if fn in STORAGE_READERS or internals.any_autocast_enabled():
            return None
        try:
            answer, tensors = ORACLE.ask(fn, args, kwargs, self._local_answers)
        except (internals.DataDependentOutputException, internals.DynamicOutputShapeException):
            return None
        layouts = self.symbols.answer(fn, args, kwargs, answer, tensors)
        return None if layouts is None else (answer, tensors, layouts)

    def _new(self, spec: NewTensor, storage: Storage, offset: int) -> TensorProxy:
        made = super()._new(spec, storage, offset)
        layout = self._pending.get(id(spec))
        if layout is None or all(
            type(part) is int for part in (*layout.shape, *layout.stride, layout.offset)
        ):
            return made
        return self.symbols.proxy(made, layout)
