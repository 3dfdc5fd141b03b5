"""The interpreter: sees every torch call of a running program, asks the oracle, and records a bound symbol."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import Answer, NewTensor
from tracemill.compiler.dispatch_keys import above_autograd
from tracemill.compiler.errors import TracemillError, UnsupportedError
from tracemill.compiler.meta import QUANTISED, Storage
from tracemill.compiler.names import Names
from tracemill.compiler.oracle import ORACLE
from tracemill.compiler.profiling import profiled, unprofiled
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.settings import Ambient, default_device, symbol_under
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol, Source, Symbol, symbol
from tracemill.compiler.values import map_leaves
from tracemill.passes.interpretation import autocast, paths, queries
from tracemill.passes.interpretation.functorch import outlived, transformed
from tracemill.passes.interpretation.gradients import optimisers, scalars
from tracemill.passes.interpretation.gradients.grads import Grads
from tracemill.passes.interpretation.kinds import PLAIN
from tracemill.passes.interpretation.location import Locator
from tracemill.passes.interpretation.mutation import in_place, overlapping_writes
from tracemill.passes.interpretation.mutation.leaf_views import LeafViews
from tracemill.passes.interpretation.mutation.view_rules import ViewRules
from tracemill.passes.interpretation.randomness import (
    TracedGenerator,
    TracedGenerators,
    effect_answer,
)
from tracemill.passes.interpretation.real import RealEnvironment, input_of
from tracemill.passes.interpretation.replacements import higher_order
from tracemill.passes.interpretation.stand_in import TracedTensor, interpretation, refusing
from tracemill.passes.interpretation.traced_tensors import TracedTensors

_HASH = torch.Tensor.__hash__
_REQUIRES_GRAD = cast(Any, torch.Tensor.requires_grad).__get__

_BY_DATA = (internals.DataDependentOutputException, internals.DynamicOutputShapeException)
"""What the oracle raises for calls whose result's shape, or whose doing, depends on what tensors hold."""

DEVICE_TAKERS = internals.device_constructors()


class Interpreter(TracedTensors, TracedGenerators, TorchFunctionMode):
    """Records the torch calls of one run of a program.

    bound_symbols: the calls, on proxies with provisional names.
    around: PyTorch's settings around the program.
    unseen: the tensors that the program took by `.data`.
    casts: what autocast keeps in its cache: the cast of a parameter.
    uses_attention: whether a kernel of attention was chosen.
    refused: the first refusal that the program met; it may catch it, where eager would have gone on.
    checks: what the prologue checks of the inputs, for what the program asked.
    handles: tells whether the program has come to code that goes on after errors. found: what the program found, by id,
    and has not made itself; None where nobody watches it. failed: what a call raised for its data.
    sizes: how PyTorch is asked for the program. tape: the program on fakes, once it asked for gradients.
    grads: the `.grad` of tensors. rates: learning rates of optimisers, as tensors, with their groups, by these' ids.
    differentiates: the line of the program that what is recorded now is part of the derivative of.
    """

    def __init__(self, locator: Locator, names: Names, *, checked: bool = True) -> None:
        super().__init__()
        self.around = Ambient.now()
        self.unseen: set[TensorProxy] = set()
        self.casts: dict[TensorProxy, TensorProxy] = {}
        self.uses_attention = False
        self.checks: list[BoundSymbol] = []
        self.refused: TracemillError | None = None
        self.failed: Exception | None = None
        self.handles: Callable[[], bool] = bool
        self.found: Mapping[int, Any] | None = None
        self.sizes: Any = Sizes()
        self.tape: Any = None
        self.grads = Grads()
        self.rates: dict[int, tuple[dict[str, Any], torch.Tensor]] = {}
        self.differentiates: BoundSymbol | None = None
        self.region = 0
        self.regions = 0
        self.bound_symbols: list[BoundSymbol] = []
        self._locator = locator
        self._real = RealEnvironment(
            self.bound_symbols,
            self.around,
            functools.partial(input_of, self.lifted, self.generators),
        )
        self._paths = paths.Paths(self._real, checked=checked)
        self._local_answers: dict[Any, Answer] = {}
        self._names = names
        self._view_rules = ViewRules()
        self.leaf_views = LeafViews()

    def surroundings(self) -> AbstractContextManager[Any]:
        """What the program runs in besides."""
        return nullcontext()

    def input_number(self, proxy: Any, value: Any, mark: Any) -> Any:
        """What the program gets for a number among its arguments that is marked."""
        return value

    def number(self, value: Any) -> Any:
        """A number that the program returns, as the computation returns it."""
        return value

    def fresh_name(self) -> str:
        """A provisional name for a new value."""
        return self._names.fresh("v")

    def _to_proxies(self, value: Any) -> Any:
        def leaf(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.proxy if type(value) is TracedTensor else self.own(value).proxy
            return value.proxy if type(value) is TracedGenerator else value

        return map_leaves(leaf, value)

    # Calls

    @refusing
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if interpretation.get() is None:
            return func(*args, **kwargs)  # of a cached function
        other = args and type(args[0]) is not TracedTensor
        if internals.functorch_interpreter() or (other and outlived(args)):
            return transformed(self, func, args, kwargs)
        if func in queries.METADATA or func in queries.SETTINGS:
            if func in queries.METADATA and args and type(args[0]) in PLAIN:
                stand_in = self.lift(args[0])  # what the program read of it must be so at each call
                if func is not _HASH:  # it may have been written to
                    args = (stand_in, *args[1:])
            elif func is _REQUIRES_GRAD and self.leaf_views:
                self.leaf_views.asked(args[0].proxy)
            return func(*args, **kwargs)
        if type(func) not in higher_order.NEVER and isinstance(func, internals.HigherOrderOperator):
            return higher_order.run(self, func, (*args, *kwargs.values()))
        with unprofiled():
            return self._recorded(func, args, kwargs)

    def _recorded(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func in queries.REFUSED:
            what, instead = queries.REFUSED[func]
            raise UnsupportedError(
                f"{what} is asked for{self.at()}; tracemill cannot compile that: {instead}"
            )
        if func in queries.HANDLED:
            return queries.HANDLED[func](self, *args, **kwargs)
        if func in queries.PROXY_ANSWERS:
            return queries.PROXY_ANSWERS[func](self._to_proxies(args[0]))
        if func in DEVICE_TAKERS and kwargs.get("device") is None:
            device = default_device()
            kwargs = dict(kwargs) if device is None else {**kwargs, "device": device}
        return self.record(func, args, kwargs)

    def record(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Records a call, and returns what it returns, with stand-ins for tensors."""
        return self.stand_ins(
            self.call(fn, self._to_proxies(tuple(args)), self._to_proxies(dict(kwargs)))
        )

    @refusing
    def record_below_autograd(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Records a call that autograd has seen, and returns its outputs, as stand-ins that autograd has not."""
        if fn in queries.SETTINGS:
            return fn(*args, **kwargs)
        self._below_autograd = True
        try:
            with above_autograd():
                output = self.call(fn, self._to_proxies(tuple(args)), self._to_proxies(kwargs))
        finally:
            self._below_autograd = False
        return self.stand_ins(output)

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records a call on proxies, and returns what it returns, with proxies for tensors."""
        if fn in queries.VALUES:
            return self.value(fn, args, kwargs)
        if fn in scalars.TAKING:
            scaled = scalars.recorded(self, fn, args, kwargs)
            if scaled is not None:
                return scaled[0]
        answer, tensors = None, []
        try:
            answer, tensors = ORACLE.ask(fn, args, kwargs, self._local_answers)
        except Exception as error:
            if not (isinstance(error, _BY_DATA) or self._paths.may_read_sizes(args, kwargs)):
                raise
        if answer is None:
            with profiled():
                return self._paths.call(self, fn, args, kwargs)
        if answer.is_query:
            return answer.output
        if internals.any_autocast_enabled():
            made = autocast.recorded(self, fn, args, kwargs, answer, tensors)
            if made is not None:
                return made[0]
        return self.add(fn, args, kwargs, answer, tensors)

    def value(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The value of a call that Python needs now."""
        optimisers.refuse_values(self, fn.__name__)
        return self._paths.value(self, fn, args, kwargs)

    def shown(self, tensor: TracedTensor) -> str:
        """A tensor as text, of this call alone."""
        return self._real.call(torch.Tensor.__repr__, (tensor.proxy,), {})

    def effect(self, sym: Symbol, args: Sequence[Any], spec: Any = None) -> Any:
        """Records a call that changes or reads a random state; `spec` is its output, or says what it is."""
        args = self._to_proxies(tuple(args))
        tensors = [proxy for proxy in args if isinstance(proxy, TensorProxy)]
        if type(spec) is TracedGenerator:
            self.emit(sym, args, {}, spec.proxy, effect_answer(None, len(tensors)))
            return spec
        answer = effect_answer(spec, len(tensors))
        output = answer.instantiate(tensors, self._new)
        self.emit(sym, args, {}, output, answer)
        return self.stand_ins(output)

    def add(
        self,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        answer: Answer,
        tensors: Sequence[TensorProxy],
    ) -> Any:
        """Records a call that PyTorch answered; its output, on proxies."""
        self._view_rules.raise_as_eager(self, fn, args, kwargs, answer, tensors)
        if answer.mutated or fn in in_place.RESHAPED:
            overlapping_writes.raise_as_eager(fn, args, kwargs, answer, tensors, self.at)
            written = in_place.recorded(self, fn, args, kwargs, answer, tensors)
            if written is not None:
                return written[0]
        attention = answer.attends or "attention" in symbol(fn).name
        self.uses_attention = self.uses_attention or attention
        now = Ambient.now()
        if now.settings != self.around.settings and autocast.is_alike_under(
            self.around.settings[0], fn, args, kwargs, answer, self._local_answers
        ):
            now = now.with_default_dtype_of(self.around)
        sym = symbol_under(fn, now, self.around, attention=attention)
        output = answer.instantiate(tensors, self._new)
        if not now.grad and (answer.requires_grad or self.leaf_views):
            answer = self.leaf_views.taken(self, answer, output, tensors)
        self.emit(sym, args, kwargs, output, answer)
        return in_place.refreshed(self, output, answer, tensors) if answer.changed else output

    def _new(self, spec: NewTensor, storage: Storage, offset: int) -> TensorProxy:
        if spec.meta.dtype in QUANTISED:
            raise UnsupportedError(f"a quantised tensor is made{self.at()}; run that part in eager")
        return TensorProxy(
            self.fresh_name(), meta=spec.meta, storage=storage, storage_offset=offset
        )

    def emit(
        self, sym: Symbol, args: Any, kwargs: Any, output: Any, answer: Answer | None = None
    ) -> BoundSymbol:
        """Adds a line to the program."""
        source, module_path = self._locator.here(2)
        bsym = BoundSymbol(
            sym,
            args,
            kwargs,
            output,
            source=source,
            module_path=module_path,
            grad_enabled=torch.is_grad_enabled(),
            answer=answer,
            region=self.region,
            differentiates=self.differentiates,
            caught=self.handles(),
        )
        self.bound_symbols.append(bsym)
        return bsym

    def open_line(self, bsym: BoundSymbol, lines: Sequence[BoundSymbol]) -> None:
        """Puts the lines that a line consists of in its place."""
        index = next(i for i, line in enumerate(self.bound_symbols) if line is bsym)
        self.bound_symbols[index : index + 1] = lines
        self._real.restart()

    def release(self) -> list[weakref.ref[TracedTensor]]:
        """Lets go of the stand-ins; those that are alive afterwards, somebody else holds."""
        released = [weakref.ref(stand_in) for stand_in in self._stand_ins.values()]
        self._stand_ins.clear()
        self.grads.clear()
        self.tape = None
        return released

    def settle(self, returned: Any) -> None:
        """Adds the checks that only the whole program tells the need for; `returned` is its result, on proxies."""
        self._paths.settle(self)
        self._view_rules.refuse_returned(self, returned)
        self.checks.extend(self.leaf_views.checks(self.bound_symbols))

    def source(self) -> Source | None:
        """The user's line that runs."""
        return self._locator.here(1)[0]

    def at(self) -> str:
        """The user's line that runs, for errors."""
        source = self.source()
        return "" if source is None else f" at {source.file}:{source.line}: {source.text}"
