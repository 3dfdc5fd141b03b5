"""Symbols and bound symbols: operations, and operations applied to values."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tracemill.compiler import context, services, torch_names
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.torch_internals import OpOverload
from tracemill.compiler.values import leaves, proxies, substitute

if TYPE_CHECKING:
    from tracemill.compiler.answer import Answer


class LineWriter(Protocol):
    """What a symbol needs from a printer to write its own line."""

    def value(self, value: Any) -> str:
        """The Python expression of a value."""
        ...

    def target(self, output: Any) -> str:
        """The left-hand side that receives an output."""
        ...

    def call(self, bsym: BoundSymbol) -> str:
        """The call expression, `torch.add(x, y)`."""
        ...

    def bind(self, value: Any, name: str) -> None:
        """Makes `name` stand for an object in the text's globals."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """The user's line that a bound symbol comes from."""

    file: str
    line: int

    @property
    def text(self) -> str:
        """The line itself, stripped; empty when the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


class Symbol:
    """An operation: a torch callable, or an operation of one's own.

    Calling a symbol inside `tracemill.tracectx` records a bound symbol and returns its outputs as proxies.

    name: what is printed: `torch.sin`, `mine.scale`.
    impl: the Python callable that computes it; a torch callable implements itself.
    meta: from proxies to the outputs' proxies, for operations of one's own without `impl` on torch alone.
    vjp: the derivative, called as `vjp(cotangents, outputs, *args, **kwargs)` on proxies while a backward is recorded.
        cotangents: a tuple with one for each tensor among the outputs, None where there is none (never zeros). outputs:
        as recorded. It returns a gradient or None for each tensor among the arguments, in order; a single one may be
        returned bare. Without it, `impl` is differentiated by autograd at each call.
    """

    def __init__(
        self,
        name: str,
        *,
        impl: Callable[..., Any] | None = None,
        meta: Callable[..., Any] | None = None,
        vjp: Callable[..., Any] | None = None,
    ) -> None:
        self.name = name
        self.impl = impl
        self.meta = meta
        self.vjp = vjp

    @property
    def note(self) -> str:
        """What `impl` is, for people, where that says more than its name."""
        return ""

    @cached_property
    def path(self) -> str | None:
        """The expression over `torch` that evaluates to the operation, None when it must be bound by name."""
        return torch_names.path_of(self.impl) if self.impl is not None else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = context.recorder.get()
        if recorder is None:
            raise RuntimeError(
                f"{self.name} was called outside of a trace; use `with tracemill.tracectx(trace):`"
            )
        return recorder.call(self, args, kwargs)

    def bind(self, *args: Any, output: Any, **kwargs: Any) -> BoundSymbol:
        """A bound symbol for outputs that exist already; records nothing."""
        return BoundSymbol(self, args, kwargs, output)

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        """The Python lines that run `bsym`."""
        target = writer.target(bsym.output)
        call = writer.call(bsym)
        return [f"{target} = {call}" if target else call]

    def __repr__(self) -> str:
        return f"<Symbol {self.name}>"


class FusedSymbol(Symbol):
    """A region as one operation; its lines, the bound symbol's subsymbols, are shown as comments below the call.

    executor: the name of the executor that made it.
    """

    def __init__(self, name: str, executor: str, impl: Callable[..., Any]) -> None:
        super().__init__(name, impl=impl)
        self.executor = executor
        self.path = None  # compiled code is not looked for in PyTorch, and may not be hashable

    @property
    def note(self) -> str:
        """The executor."""
        return f"a region that executor {self.executor!r} runs as one"


_torch_symbols: dict[Any, Symbol] = {}


def symbol(fn: Callable[..., Any]) -> Symbol:
    """The symbol of a torch callable; the same callable gives the same symbol.

    >>> import torch
    >>> symbol(torch.cos).name
    'torch.cos'
    """
    known = _torch_symbols.get(fn)
    if known is not None:
        return known
    path = torch_names.path_of(fn)
    name = path or getattr(fn, "__qualname__", None) or type(fn).__name__
    made = Symbol(name, impl=fn)
    if path is not None:  # what has no path is the user's own, and must not live on here
        _torch_symbols[fn] = made
    return made


class Overwritten(NamedTuple):
    """A value of a line that the program writes to after it, so that its backward does not find what it was.

    now: what it holds in the end, where that is a value of the program. where: the user's line that writes.
    seen: whether PyTorch's version counters tell, so that the backward raises; else it reads what is there.
    """

    value: Any
    now: Any
    where: Source | None
    seen: bool


class BoundSymbol:
    """A symbol bound to arguments and outputs; immutable, `from_bsym` makes a changed one.

    sym, args, kwargs, output: the line `output = sym(*args, **kwargs)`.
    source, module_path: the user's line, and the path of the module whose forward was running.
    grad_enabled: whether autograd was recording when the program got here.
    region: the number of the checkpoint region that it is in, whose values are computed again; 0 for none.
    differentiates: for a line of a backward, the forward line whose derivative it is part of; None elsewhere.
    overwritten: which of its values the program writes to after it.
    caught: whether the program may go on after what it raises.
    """

    __slots__ = (
        "_answer",
        "_inputs",
        "_outputs",
        "_subsymbols",
        "args",
        "caught",
        "differentiates",
        "grad_enabled",
        "kwargs",
        "module_path",
        "output",
        "overwritten",
        "region",
        "source",
        "sym",
    )

    def __init__(
        self,
        sym: Symbol,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        output: Any = None,
        *,
        subsymbols: Sequence[BoundSymbol] | None = None,
        source: Source | None = None,
        module_path: str = "",
        grad_enabled: bool = False,
        answer: Answer | None = None,
        region: int = 0,
        differentiates: BoundSymbol | None = None,
        overwritten: tuple[Overwritten, ...] = (),
        caught: bool = False,
    ) -> None:
        self.sym = sym
        self.args = tuple(args)
        self.kwargs = kwargs or {}
        self.output = output
        self.source = source
        self.module_path = module_path
        self.grad_enabled = grad_enabled
        self.region = region
        self.differentiates = differentiates
        self.overwritten = overwritten
        self.caught = caught
        self._answer = answer
        self._inputs: tuple[Proxy, ...] | None = None
        self._outputs: tuple[Proxy, ...] | None = None
        self._subsymbols = None if subsymbols is None else tuple(subsymbols)

    @property
    def answer(self) -> Answer | None:
        """What PyTorch says about this call, None for operations that it does not know.

        For a line that was written by hand PyTorch is asked here.
        """
        if self._answer is None and self.sym.path is not None:
            self._answer = services.answer_of(self)
        return self._answer

    @property
    def is_recorded(self) -> bool:
        """Whether PyTorch has been asked about this call."""
        return self._answer is not None

    @property
    def subsymbols(self) -> tuple[BoundSymbol, ...]:
        """The ATen operations that the operation does, on proxies; made when first asked for."""
        if self._subsymbols is None:
            self._subsymbols = () if self.answer is None else tuple(self.answer.subsymbols(self))
        return self._subsymbols

    @property
    def operations(self) -> tuple[OpOverload, ...]:
        """The ATen operations that the line does; none where PyTorch has nothing to say of it."""
        if isinstance(self.sym.impl, OpOverload):
            return (self.sym.impl,)
        return () if self.answer is None else tuple(step.fn for step in self.answer.body)

    @property
    def flat_args(self) -> tuple[Any, ...]:
        """The leaves of args and kwargs, constants included."""
        return (*leaves(self.args), *leaves(self.kwargs))

    @property
    def flat_outs(self) -> tuple[Any, ...]:
        """The leaves of the output."""
        return tuple(leaves(self.output))

    @property
    def inputs(self) -> tuple[Proxy, ...]:
        """The proxies among the arguments."""
        if self._inputs is None:
            named = proxies(self.kwargs) if self.kwargs else ()
            self._inputs = (*proxies(self.args), *named)
        return self._inputs

    @property
    def outputs(self) -> tuple[Proxy, ...]:
        """The proxies among the outputs, those that are arguments too included."""
        if self._outputs is None:
            self._outputs = tuple(proxies(self.output))
        return self._outputs

    @property
    def made(self) -> tuple[Proxy, ...]:
        """The proxies that it makes: the outputs that are no arguments, as some of `torch.broadcast_tensors` may be."""
        given = set(self.inputs)
        return tuple(out for out in self.outputs if out not in given)

    @property
    def mutates(self) -> bool:
        """Whether it writes to an argument."""
        return self.answer is not None and bool(self.answer.mutated)

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        return self.answer is not None and self.answer.random

    @property
    def asserts(self) -> bool:
        """Whether it raises where a value is not as it should be, and gives nothing."""
        return self.answer is not None and self.answer.asserts

    def from_bsym(self, **changes: Any) -> BoundSymbol:
        """A derivative of this bound symbol: any of its attributes, changed.

        A line with another torch operation or other arguments is another call: PyTorch is asked about it anew.
        """
        kept = {name: getattr(self, name) for name in self.__slots__ if not name.startswith("_")}
        kept |= {"subsymbols": self._subsymbols, "answer": self._answer}
        unknown = changes.keys() - kept.keys()
        if unknown:
            raise TypeError(
                f"a bound symbol has no {', '.join(sorted(unknown))}; it has {', '.join(kept)}"
            )
        if changes.keys() & {"sym", "args", "kwargs", "output", "answer"}:
            kept["subsymbols"] = None
        made = changes.get("sym", self.sym)
        if changes.keys() & {"sym", "args", "kwargs"} and made.path is not None:
            kept["answer"] = None
        return BoundSymbol(**(kept | changes))

    def substitute(self, mapping: dict[Proxy, Any]) -> BoundSymbol:
        """The same operation on other values; this one where none of its own is replaced."""
        subsymbols = self._subsymbols
        replaced = mapping.keys()
        if (
            not subsymbols
            and replaced.isdisjoint(self.inputs)
            and replaced.isdisjoint(self.outputs)
        ):
            return self
        if subsymbols is not None:
            subsymbols = [inner.substitute(mapping) for inner in subsymbols]
        made = BoundSymbol(
            self.sym,
            substitute(self.args, mapping),
            substitute(self.kwargs, mapping) if self.kwargs else self.kwargs,
            substitute(self.output, mapping),
            subsymbols=subsymbols,
            source=self.source,
            module_path=self.module_path,
            grad_enabled=self.grad_enabled,
            answer=self._answer,
            region=self.region,
            differentiates=self.differentiates and self.differentiates.substitute(mapping),
            overwritten=tuple(
                each._replace(
                    value=mapping.get(each.value, each.value), now=mapping.get(each.now, each.now)
                )
                for each in self.overwritten
            ),
            caught=self.caught,
        )
        made._inputs = _replaced(self.inputs, mapping)
        made._outputs = _replaced(self.outputs, mapping)
        return made

    def __repr__(self) -> str:
        outs = ", ".join(proxy.name for proxy in self.outputs)
        ins = ", ".join(proxy.name for proxy in self.inputs)
        return f"<BoundSymbol {outs} = {self.sym.name}({ins})>"


def _replaced(values: tuple[Proxy, ...], mapping: dict[Proxy, Any]) -> tuple[Proxy, ...] | None:
    """What `mapping` makes of values; None where it holds more than values for them."""
    found = tuple([mapping.get(value, value) for value in values])
    return found if all([isinstance(value, Proxy) for value in found]) else None
