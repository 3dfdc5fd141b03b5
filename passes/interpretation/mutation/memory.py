"""Memory that a program writes to, as functional tensors: a write makes a new value, and views are taken of that.

PyTorch's own functional tensors, on fakes, know how a write to a view reaches its base. What they do is logged, and
becomes lines of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import Answer, NewTensor, is_generator
from tracemill.compiler.errors import MutationError
from tracemill.compiler.meta import Storage
from tracemill.compiler.oracle import unobserved
from tracemill.compiler.proxy import GeneratorProxy, TensorProxy
from tracemill.compiler.readable import readable
from tracemill.compiler.settings import Under, without_autocast
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol, Symbol, symbol
from tracemill.compiler.symbolic import layout_of
from tracemill.compiler.values import leaves, map_leaves
from tracemill.passes.interpretation.mutation.own_derivatives import (
    ARRANGE,
    BERNOULLI_IN_ORDER,
    COPY,
    HIDDEN,
    ComplexScatter,
    bernoulli_in_order,
    own_symbol,
)

_FILLS = (torch.ops.aten.fill.Tensor, torch.ops.aten.copy.default)
LARGEST_CONSTANT = 4096
"""How many elements a tensor may have that PyTorch made of the program's numbers (`x[[0, 2]] = 1.5`)."""


class NotFunctionalError(Exception):
    """Raised for a call that functional tensors cannot follow; it is then done on copies."""


@dataclass(eq=False)
class Base:
    """One piece of memory: `proxy` is its first value (on fakes `first`), `tensor` holds its value now.

    inputs: the program's inputs that lie in it. start: where it begins in its storage, in elements.
    followed: whether autograd saw a write to it, through which gradients flow. versioned: whether version counters tell of
    a write to it, as they do unless it is written to by `.data` alone. begins: whether it must begin where its memory does.
    """

    proxy: TensorProxy
    tensor: torch.Tensor
    first: torch.Tensor
    inputs: tuple[TensorProxy, ...]
    start: int
    followed: bool = False
    versioned: bool = False
    begins: bool = False


class _Log(internals.TorchDispatchMode):
    """Logs the operations that functional tensors do on their values."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves(output)):  # else it only asks
            self.operations.append((func, args, kwargs or {}, output))
        return output


class Memory:
    """The functional tensors of one program, and the lines that they make.

    lines: the functional program, growing. now: the line of the user's program that is replayed.
    grad: whether some line of the program runs with grad enabled. renamed: other values that became another value.
    """

    def __init__(self, fresh_name: Callable[[], str], sizes: Sizes, *, grad: bool) -> None:
        self.sizes = sizes
        self.lines: list[BoundSymbol] = []
        self.bases: list[Base] = []
        self.grad = grad
        self.now: BoundSymbol | None = None
        self.renamed: dict[Any, Any] = {}
        self._fresh_name = fresh_name
        self._log = _Log()
        self._proxies: dict[int, TensorProxy] = {}
        self._kept: list[torch.Tensor] = []  # an id stays valid as long as its tensor lives
        self._tensors: dict[TensorProxy, torch.Tensor] = {}
        self._base_of: dict[TensorProxy, Base] = {}
        self._constants: dict[int, torch.Tensor] = {}
        self._own_leaves: set[TensorProxy] = set()
        self._detached: dict[tuple[TensorProxy, TensorProxy], TensorProxy] = {}

    # What is in here

    def __contains__(self, proxy: Any) -> bool:
        return proxy in self._tensors

    def base(self, proxy: TensorProxy) -> Base:
        """The piece of memory that a value lies in."""
        return self._base_of[proxy]

    def add(self, proxy: TensorProxy, inputs: tuple[TensorProxy, ...] = (), start: int = 0) -> None:
        """Takes in a value that is a piece of memory of its own."""
        tensor = self._functional(proxy)
        base = Base(proxy, tensor, internals.from_functional(tensor), inputs, start)
        self.bases.append(base)
        self._put(proxy, tensor, base)

    def alias(self, proxy: TensorProxy, other: TensorProxy) -> None:
        """Takes in a value that is another one, known under new metadata: where gradients end, if that is a leaf's."""
        if proxy.meta.is_leaf:
            self._own_leaves.add(proxy)
        self._put(proxy, self._tensors[other], self._base_of[other])

    def add_part(self, proxy: TensorProxy, whole: TensorProxy, offset: int) -> None:
        """Takes in a value that lies in another one, `offset` elements from where that begins."""
        base = self._base_of[whole]
        self._put(proxy, self.part(proxy, base, offset), base)
        self.flush(grad=self.grad)

    def part(self, proxy: TensorProxy, base: Base, offset: int) -> torch.Tensor:
        """The functional tensor of a part of a base, by its geometry."""
        layout = layout_of(proxy) or proxy.meta
        with self._running():
            return torch.as_strided(base.tensor, layout.shape, layout.stride, offset)

    def _put(self, proxy: TensorProxy, tensor: torch.Tensor, base: Base) -> None:
        self._tensors[proxy] = tensor
        self._base_of[proxy] = base

    def _functional(self, proxy: TensorProxy) -> torch.Tensor:
        fake = self._fake(proxy)
        self._bind(fake, self.renamed.get(proxy, proxy))
        return internals.to_functional(fake)

    def _fake(self, proxy: TensorProxy) -> torch.Tensor:
        meta = proxy.meta.replace(requires_grad=False, is_leaf=True)
        with unobserved():
            return self.sizes.model(proxy.changed("v", meta=meta, storage=Storage(meta.nbytes)))

    def _bind(self, fake: torch.Tensor, proxy: TensorProxy) -> None:
        self._proxies[id(fake)] = proxy
        self._kept.append(fake)

    # Values

    def value(self, proxy: TensorProxy) -> TensorProxy:
        """The value that a tensor has now, taken again from its base where that was written to."""
        with self._running():
            fake = self._inner(self._tensors[proxy])
        self.flush(grad=self.grad)
        return self._as_recorded(proxy, self._proxies[id(fake)])

    def _as_recorded(self, proxy: TensorProxy, value: TensorProxy) -> TensorProxy:
        requires_grad = proxy.requires_grad and proxy not in self._own_leaves
        if not self.grad or value.requires_grad == requires_grad:
            return value
        if requires_grad:
            raise MutationError(
                f'a "{proxy.type_string}" is read that was written to in a way that hides it from autograd{self.at()}; '
                "use the functional form of the write"
            )
        known = self._detached.get((proxy, value))
        if known is None:
            known = self.emit(torch.Tensor.detach, (value,), {}, grad=True)
            self._detached[proxy, value] = known
        return known

    def arrange(self, proxy: TensorProxy) -> None:
        """Gives a base the strides that it has in the user's program, where a write gave its new value others."""
        base = self._base_of[proxy]
        with self._running():
            fake = self._inner(base.tensor)
            want = base.proxy.meta
            if fake.is_conj() and not want.conj:
                fake = torch.resolve_conj(fake)
                self._replace(base.tensor, fake)
            if tuple(fake.stride()) != self.sizes.stride(base.proxy) and fake.numel() > 1:
                first = base.first
                self._replace(base.tensor, torch.ops.aten.copy.default(first, fake))
        self.flush(grad=self.grad, copy=ARRANGE)

    def put(self, proxy: TensorProxy, value: TensorProxy) -> None:
        """Makes `value` what a tensor holds now."""
        fake = self._fake(value)
        self._bind(fake, value)
        with self._reaching_bases():
            self._replace(self._tensors[proxy], fake)

    def _replace(self, tensor: torch.Tensor, fake: torch.Tensor) -> None:
        internals.functional_replace(tensor, fake)
        internals.functional_commit(tensor)
        internals.functional_sync(tensor)

    @staticmethod
    def _inner(tensor: torch.Tensor) -> torch.Tensor:
        internals.functional_sync(tensor)
        return internals.from_functional(tensor)

    # Calls

    def run(self, bsym: BoundSymbol) -> list[Any]:
        """Does a call on functional tensors; the leaves of what it returned. Its operations wait to be flushed."""
        readers: dict[TensorProxy, torch.Tensor] = {}

        def model(leaf: Any) -> Any:
            if isinstance(leaf, GeneratorProxy):
                return torch.Generator(leaf.device)
            if not isinstance(leaf, TensorProxy):
                return self.sizes.given(leaf)
            known = self._tensors.get(leaf)
            return readers.setdefault(leaf, self._functional(leaf)) if known is None else known

        args, kwargs = map_leaves(model, (bsym.args, bsym.kwargs))
        # Functional tensors are none of inference mode, where what is written to a plain tensor stays one.
        sym = bsym.sym.without_inference() if isinstance(bsym.sym, Under) else bsym.sym
        assert sym.impl is not None
        failed = None
        for way in self.sizes.ways:
            try:
                with self._running(), way():
                    return leaves(sym.impl(*args, **kwargs))
            except Exception as error:
                self._log.operations.clear()
                failed = error
        raise NotFunctionalError(str(failed)) from failed

    def take_view(
        self, out: TensorProxy, made: torch.Tensor, of: TensorProxy, now: TensorProxy
    ) -> None:
        """Takes in the result of a call that gave a view; `now` is its value, by a line that stands already."""
        with self._running():
            fake = self._inner(made)
        self._log.operations.clear()
        self._bind(fake, now)
        self._put(out, made, self._base_of[of])

    def settle(self, base: Base) -> None:
        """Lets the writes to views of a base reach it; raises MutationError where they cannot."""
        with self._reaching_bases():
            self._inner(base.tensor)

    @contextmanager
    def _reaching_bases(self) -> Generator[None]:
        try:
            with self._running():
                yield
        except RuntimeError as error:
            self._log.operations.clear()
            raise MutationError(
                f"a view is written to that overlaps with itself or has no way back to its base{self.at()}; write to "
                "the tensor itself"
            ) from error

    def plain_value(self, base: Base) -> TensorProxy:
        """The value of a base, as it stands."""
        fake = internals.from_functional(base.tensor)
        return self._proxies[id(fake)]

    def first_value(self, base: Base) -> TensorProxy:
        """The value of a base before it was written to."""
        return self._proxies[id(base.first)]

    def hide(self, base: Base, before: TensorProxy) -> None:
        """Lets autograd go on with what the base was before it was written to unseen."""
        value = self.plain_value(base)
        meta = before.meta.replace(stride=value.meta.stride, is_leaf=False)
        made = value.changed(self._fresh_name(), meta=meta)
        answer = Answer(NewTensor(meta, -1, ("new", 0), 0), 2)  # no view, which is taken again
        self.line(HIDDEN, (value, before), {}, made, answer, grad=True)
        self.put(base.proxy, made)

    def follow(self, base: Base, roots: Collection[TensorProxy]) -> None:
        """Takes note that gradients flow through what an input is written, by views of these to autograd."""
        names = ", ".join(proxy.name for proxy in base.inputs)
        if len(base.inputs) > 1:
            raise MutationError(
                f"{names} share memory, and autograd follows what is written to it{self.at()}; clone one of them"
            )
        if any(root not in base.inputs for root in roots):
            raise MutationError(
                f"gradients flow into a detached tensor that shares memory with {names}{self.at()}; write to a clone"
            )
        base.followed = True

    @contextmanager
    def _running(self) -> Generator[None]:
        """PyTorch on functional tensors: logged, unseen by anybody else, without autograd and autocast."""
        with unobserved(), without_autocast(), internals.quiet_fakes(), torch.no_grad():
            with self.sizes.mode, self._log:
                internals.enable_functionalization(reapply_views=True)
                try:
                    yield
                finally:
                    internals.disable_functionalization()

    # Lines

    def flush(self, *, grad: bool, copy: Symbol | None = None) -> None:
        """Makes lines of the operations that were logged; `copy` is the symbol of those that copy."""
        operations, self._log.operations = self._log.operations, []
        for op, args, kwargs, output in operations:
            if op is torch.ops.aten.lift_fresh.default and id(args[0]) not in self._proxies:
                self._constants[id(output)] = _numbers_of(args[0])
                self._kept.append(output)
                continue
            if op in _FILLS and id(args[1]) in self._constants and args[1].dim() == 0:
                number = self._constants[id(args[1])].item()
                op, args = torch.ops.aten.fill.Scalar, (args[0], number)
            given = map_leaves(self._proxy_of, (args, kwargs))
            fn, sym = self._called(op, args, kwargs, output, grad=grad)
            made = self.emit(fn, *given, grad=grad, sym=copy if copy and sym is COPY else sym)
            for fake, proxy in zip(leaves(output), leaves(made), strict=True):
                if isinstance(fake, torch.Tensor):
                    self._bind(fake, proxy)

    def _called(
        self, op: Any, args: Any, kwargs: Any, output: Any, *, grad: bool
    ) -> tuple[Callable[..., Any], Symbol | None]:
        """What does an operation, and the symbol that stands for it where that is not its own."""
        if op is torch.ops.aten.bernoulli.p and output.stride() != args[0].stride():
            return bernoulli_in_order, BERNOULLI_IN_ORDER
        with unobserved(), torch.no_grad(), self.sizes.mode:
            return readable(op, args, kwargs), own_symbol(op, output) if grad else None

    def _proxy_of(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Generator):  # the only one of the line
            return next(filter(is_generator, [] if self.now is None else self.now.flat_args))
        if not isinstance(leaf, torch.Tensor):
            return self.sizes.number(leaf)
        known = self._proxies.get(id(leaf))
        if known is None and id(leaf) in self._constants:
            numbers = self._constants[id(leaf)]
            settings = {"dtype": numbers.dtype, "device": numbers.device}
            known = self.emit(torch.tensor, (numbers.tolist(),), settings, grad=False)
            self._bind(leaf, known)
        if known is None:
            raise NotFunctionalError("a tensor was made that nothing is known of")
        return known

    def emit(
        self,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        *,
        grad: bool,
        sym: Symbol | None = None,
    ) -> Any:
        """Adds the line of a call on values of the functional program; its output."""
        with unobserved(), without_autocast(), torch.set_grad_enabled(grad):
            ask = sym.asking(self.sizes.ask) if isinstance(sym, ComplexScatter) else self.sizes.ask
            answer, output = ask(fn, args, kwargs, self.new)
        self.line(sym or symbol(fn), args, kwargs, output, answer, grad=grad)
        return output

    def new(self, spec: NewTensor, storage: Storage, offset: int) -> TensorProxy:
        """A fresh value."""
        return TensorProxy(
            self._fresh_name(), meta=spec.meta, storage=storage, storage_offset=offset
        )

    def line(
        self, sym: Symbol, args: Any, kwargs: Any, output: Any, answer: Answer, *, grad: bool
    ) -> None:
        """Adds a line."""
        where = {} if self.now is None else _origin(self.now)
        self.lines.append(
            BoundSymbol(sym, args, kwargs, output, grad_enabled=grad, answer=answer, **where)
        )

    def at(self) -> str:
        """The user's line, for errors."""
        source = None if self.now is None else self.now.source
        return "" if source is None else f" at {source.file}:{source.line}: {source.text}"


def _origin(bsym: BoundSymbol) -> dict[str, Any]:
    return {"source": bsym.source, "module_path": bsym.module_path, "region": bsym.region}


def _numbers_of(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor holds that PyTorch made of numbers of the program."""
    real: Any = tensor.constant if isinstance(tensor, internals.FakeTensor) else tensor
    if real is None or real.numel() > LARGEST_CONSTANT:
        raise NotFunctionalError("a tensor was made that nothing is known of")
    return real
