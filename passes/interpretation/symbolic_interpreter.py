"""The interpreter under symbolic values: arguments' sizes are symbols, and every call is asked about for all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import NewTensor
from tracemill.compiler.marks import Mark, Tree
from tracemill.compiler.meta import Storage
from tracemill.compiler.names import Names
from tracemill.compiler.oracle import ORACLE, STORAGE_READERS, is_pytorch
from tracemill.compiler.proxy import NumberProxy, TensorProxy
from tracemill.compiler.symbol import Source
from tracemill.compiler.symbolic import Expression, layout_of, while_tracing
from tracemill.compiler.symbolic_sizes import SymbolicSizes
from tracemill.compiler.values import map_leaves
from tracemill.passes.interpretation import queries
from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.location import Locator
from tracemill.passes.interpretation.python.python_numbers import asking_pytorch, like_plain_numbers
from tracemill.passes.interpretation.stand_in import TracedTensor
from tracemill.passes.interpretation.symbolic_inputs import SymbolicInputs

_ON_SIZES = frozenset(getattr(torch, name) for name in dir(torch) if name.startswith("sym_"))


class SymbolicInterpreter(Interpreter):
    """Records one run of a program whose arguments' sizes are symbols.

    A call that PyTorch does not answer in symbols specialises: its sizes are guarded to be what they are now.
    beginning: the line where the program begins, which guards name that no other line asked for.
    """

    def __init__(
        self, locator: Locator, names: Names, *, beginning: Source | None, checked: bool = True
    ) -> None:
        super().__init__(locator, names, checked=checked)
        self.sizes = SymbolicSizes(beginning)
        self.symbolic_inputs = SymbolicInputs(self.sizes, names)
        self._arguments: dict[int, Tree] = {}
        self._pending: Any = None

    def input(self, tensor: torch.Tensor, marks: Tree = None) -> TracedTensor:
        self.mark(tensor, marks)
        return super().input(tensor)

    def mark(self, tensor: torch.Tensor, marks: Tree) -> None:
        if tensor.layout == torch.strided and marks is not None:
            self._arguments.setdefault(id(tensor), marks)

    def input_number(self, proxy: Any, value: Any, mark: Mark) -> Any:
        return self.symbolic_inputs.number(proxy, value, mark)

    @contextmanager
    def surroundings(self) -> Generator[None]:
        self.sizes.running = self.source
        try:
            with like_plain_numbers(), internals.quiet_fakes():
                yield
        finally:
            self.sizes.running = lambda: None  # the interpreter is not to live on

    def number(self, value: Any) -> Any:
        return self.sizes.number(value)

    def _input_proxy(self, tensor: torch.Tensor) -> TensorProxy:
        proxy = super()._input_proxy(tensor)
        marks = self._arguments.get(id(tensor))
        return self.symbolic_inputs.tensor(proxy, tensor, marks)

    def _stand_in(self, proxy: TensorProxy) -> TracedTensor:
        return TracedTensor(proxy, layout_of(proxy))

    def _to_proxies(self, value: Any) -> Any:
        return super()._to_proxies(map_leaves(self.sizes.number, value))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.storage_offset or func in STORAGE_READERS:
            self.sizes.reads_offsets = True
        if func in _ON_SIZES:
            return func(*args, **(kwargs or {}))
        if func in queries.METADATA and args and id(args[0]) in self._arguments:
            if func is not torch.Tensor.__hash__:
                args = (
                    self.lift(args[0]),
                    *args[1:],
                )  # inside of an argument; its sizes are symbols
        return super().__torch_function__(func, types, args, kwargs)

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records a call on proxies, for all sizes where PyTorch can say what it gives, else for those of now."""
        sizes = self.sizes
        if fn in queries.VALUES or not sizes.involved(args, kwargs):
            return super().call(fn, args, kwargs)
        found = self._symbolic(fn, args, kwargs)
        if found is None:
            sizes.specialise(args, kwargs)
            return super().call(fn, *map_leaves(_plain, (tuple(args), dict(kwargs))))
        answer, tensors, layouts = found
        if answer.is_query:
            return layouts[0]
        self._pending = sizes.making(super()._new, answer, layouts)
        try:
            return self.add(fn, args, kwargs, answer, tensors)
        finally:
            self._pending = None

    def _symbolic(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if internals.any_autocast_enabled():
            return None
        try:
            answer, tensors = ORACLE.ask(fn, args, kwargs, self._local_answers, zeros=False)
        except (internals.DataDependentOutputException, internals.DynamicOutputShapeException):
            return None
        with asking_pytorch() if is_pytorch(fn) else nullcontext():
            layouts = self.sizes.layouts(fn, args, kwargs, answer, tensors)
        return None if layouts is None else (answer, tensors, layouts)

    def _new(self, spec: NewTensor, storage: Storage, offset: int) -> TensorProxy:
        make = self._pending or super()._new
        return make(spec, storage, offset)


def _plain(leaf: Any) -> Any:
    """A size as the number that it is now."""
    return while_tracing(leaf) if isinstance(leaf, (Expression, NumberProxy)) else leaf
