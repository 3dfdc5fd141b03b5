"""The interpreter: sees every torch call of a running program, asks the oracle, and records a bound symbol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.errors import DataDependentError, MutationError, UnsupportedError
from tracemill.compiler.names import Names
from tracemill.compiler.oracle import ORACLE, Answer, NewTensor
from tracemill.compiler.proxy import Storage, TensorMeta, TensorProxy
from tracemill.compiler.symbol import BoundSymbol, Source, symbol
from tracemill.compiler.values import map_leaves, proxies
from tracemill.passes.interpretation import queries
from tracemill.passes.interpretation.location import Locator
from tracemill.passes.interpretation.real import RealEnvironment, ValueUnknown
from tracemill.passes.interpretation.stand_in import TracedTensor

_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Bypass(internals.TorchDispatchMode):
    """Hands the interpreter what reaches ATen without passing the function mode."""

    def __init__(self, interpreter: Interpreter) -> None:
        super().__init__()
        self._interpreter = interpreter

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._interpreter.record(func, args, kwargs or {})


class Interpreter(TorchFunctionMode):
    """Records the torch calls of one run of a program.

    bound_symbols: the calls, on proxies with provisional names.
    inputs: the input tensors' proxies.
    lifted: the real tensors met on the way (parameters, buffers, globals), with their proxies.
    """

    def __init__(self, locator: Locator, names: Names) -> None:
        super().__init__()
        self.bound_symbols: list[BoundSymbol] = []
        self.inputs: list[TensorProxy] = []
        self.lifted: dict[int, tuple[TensorProxy, torch.Tensor]] = {}
        self._stand_ins: dict[TensorProxy, TracedTensor] = {}
        self._locator = locator
        self._real = RealEnvironment(self.bound_symbols)
        self._local_answers: dict[Any, Answer] = {}
        self._names = names

    # Tensors

    def input(self, tensor: torch.Tensor) -> TracedTensor:
        """The stand-in of an input tensor."""
        stand_in = self.lift(tensor)
        if stand_in.proxy not in self.inputs:
            self.inputs.append(stand_in.proxy)
        return stand_in

    def lift(self, tensor: torch.Tensor) -> TracedTensor:
        """The stand-in of a real tensor; the same tensor has the same stand-in."""
        if type(tensor) is TracedTensor:
            return tensor
        known = self.lifted.get(id(tensor))
        if known is None:
            if type(tensor) not in _TENSOR_TYPES:
                raise UnsupportedError(
                    f"a tensor of class {type(tensor).__name__} cannot be traced{self._at()}: only plain tensors and parameters can"
                )
            offset = tensor.storage_offset() if tensor.layout == torch.strided else 0
            storage = (
                Storage(tensor.untyped_storage().nbytes())
                if tensor.layout == torch.strided
                else None
            )
            proxy = TensorProxy(
                self._name(), meta=TensorMeta.of(tensor), storage=storage, storage_offset=offset
            )
            known = self.lifted[id(tensor)] = (proxy, tensor)
            stand_in = self._stand_ins[proxy] = TracedTensor(proxy)
            if getattr(tensor, "_is_param", False) or isinstance(tensor, torch.nn.Parameter):
                stand_in._is_param = True  # what isinstance(x, nn.Parameter) looks at
            return stand_in
        return self._stand_ins[known[0]]

    def _name(self) -> str:
        return self._names.fresh("v")

    def _to_proxies(self, value: Any) -> Any:
        def leaf(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return value.proxy if type(value) is TracedTensor else self.lift(value).proxy

        return map_leaves(leaf, value)

    # Calls

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if (
            func in queries.METADATA
            or func in queries.SETTINGS
            or internals.functorch_interpreter() is not None
        ):
            return func(*args, **kwargs)
        if func in queries.REFUSED:
            raise UnsupportedError(
                f"{queries.REFUSED[func]} is asked for{self._at()}; tracemill cannot compile that"
            )
        if func is torch.Tensor.data.__get__:
            func = torch.Tensor.detach
        elif func is torch.Tensor.is_leaf.__get__:
            return self._to_proxies(args[0]).meta.is_leaf
        elif func is torch.Tensor.grad_fn.__get__ and not self._to_proxies(args[0]).requires_grad:
            return None
        return self.record(func, args, kwargs)

    def record(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Records a call, and returns what it returns, with stand-ins for tensors."""
        args, kwargs = self._to_proxies(tuple(args)), self._to_proxies(dict(kwargs))
        if fn in queries.VALUES:
            return self._value(fn, args, kwargs)
        try:
            answer, tensors = ORACLE.ask(fn, args, kwargs, self._local_answers)
        except (internals.DataDependentOutputException, internals.DynamicOutputShapeException):
            return self._value(fn, args, kwargs)
        if answer.is_query:
            return answer.output
        self._refuse_writes(fn, answer, tensors)
        return self._append(fn, args, kwargs, answer, tensors)

    def _append(
        self,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        answer: Answer,
        tensors: Sequence[TensorProxy],
    ) -> Any:
        def make(spec: NewTensor, storage: Storage, offset: int) -> TensorProxy:
            return TensorProxy(self._name(), meta=spec.meta, storage=storage, storage_offset=offset)

        output = answer.instantiate(tensors, make)
        source, module_path = self._locator.here(2)
        self.bound_symbols.append(
            BoundSymbol(
                symbol(fn),
                args,
                kwargs,
                output,
                source=source,
                module_path=module_path,
                grad_enabled=torch.is_grad_enabled(),
                answer=answer,
            )
        )
        return self._to_stand_ins(output)

    def _to_stand_ins(self, output: Any) -> Any:
        def leaf(value: Any) -> Any:
            if not isinstance(value, TensorProxy):
                return value
            stand_in = self._stand_ins.get(value)
            if stand_in is None:
                stand_in = self._stand_ins[value] = TracedTensor(value)
            return stand_in

        return map_leaves(leaf, output)

    # What cannot be done

    def _at(self) -> str:
        source, _ = self._locator.here(2)
        return "" if source is None else f" at {source.file}:{source.line}: {source.text}"

    def _refuse_writes(self, fn: Any, answer: Answer, tensors: Sequence[TensorProxy]) -> None:
        if answer.changed:
            raise MutationError(
                f"{symbol(fn).name} changes the shape of a tensor in place{self._at()}; use the functional form"
            )
        given = {proxy.storage for proxy, _ in self.lifted.values()}
        for position in answer.mutated:
            if tensors[position].storage in given:
                raise MutationError(
                    f"{symbol(fn).name} writes to an input, parameter or buffer of the program{self._at()}; "
                    "return the new value instead"
                )

    def _value(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The value of a call that Python needs now, or whose output's shape depends on data."""
        try:
            result = self._real.call(fn, args, kwargs)
        except ValueUnknown as unknown:
            raise self._data_dependent(fn, args, unknown) from None
        if not any(isinstance(leaf, torch.Tensor) for leaf in _flat(result)):
            return result
        answer = Answer(map_leaves(_as_new_tensor, result), arity=0)
        return self._append(fn, args, kwargs, answer, [])

    def _data_dependent(
        self, fn: Callable[..., Any], args: Any, unknown: ValueUnknown
    ) -> DataDependentError:
        source, _ = self._locator.here(2)
        where = (
            ""
            if source is None
            else f'\n  File "{source.file}", line {source.line}\n    {source.text}'
        )
        asked = next(iter(proxies(args)), unknown.proxy)
        return DataDependentError(
            f"{symbol(fn).name} needs the data of a tensor that depends on {unknown.reason}{where}\n"
            f'the tensor is {_describe(asked, self.bound_symbols)}, a "{asked.type_string}". '
            "Way round: keep the value in a tensor (torch.where instead of `if`, a mask instead of indexing by it), "
            "or compute it before the jitted function and pass it as an argument"
        )


def _flat(value: Any) -> list[Any]:
    found: list[Any] = []
    map_leaves(lambda leaf: found.append(leaf), value)
    return found


def _as_new_tensor(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return NewTensor(TensorMeta.of(value), -1, ("new", id(value)), 0)


def _describe(proxy: Any, bound_symbols: Sequence[BoundSymbol]) -> str:
    for bsym in bound_symbols:
        if any(out is proxy for out in bsym.outputs):
            source: Source | None = bsym.source
            made = f" on line {source.line}" if source is not None else ""
            return f"the result of {bsym.sym.name}{made}"
    return "an input"
