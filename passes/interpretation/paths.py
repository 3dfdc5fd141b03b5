"""Paths: Python went on with a value of a tensor, so the program is right for calls that give the same value.

Before, in the user's program:

    if (x > 0).all():
      return x * 2

After, in the computation, before any effect:

    t0 = torch.Tensor.gt(x, 0)
    t1 = torch.Tensor.all(t0)
    if torch.Tensor.__bool__(t1) is not True: raise AssertionError('another path: model.py:1  if (x > 0).all():')
    t2 = torch.Tensor.mul(x, 2)

A call whose values differ finds, or makes, the program of its own path. A call whose output has a shape that depends on
data is followed by a check of that shape.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracemill.compiler import prims
from tracemill.compiler.answer import (
    Answer,
    NewTensor,
    Ref,
    SameTensor,
    tensor_arguments,
)
from tracemill.compiler.errors import DataDependentError, TracemillError
from tracemill.compiler.paths import WAY_ROUND
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.settings import Ambient, symbol_under
from tracemill.compiler.symbol import BoundSymbol, Source, symbol
from tracemill.compiler.values import leaves, proxies
from tracemill.passes.interpretation.real import RealEnvironment

LARGEST = 1024
"""How many elements a list or array may have that Python goes on with."""

_SCALAR = torch.ops.aten._local_scalar_dense.default
_TEXTS = (torch.Tensor.__repr__, torch.Tensor.__format__)
_INTEGERS = (torch.int32, torch.int64)
"""What PyTorch takes sizes and lengths in."""
_ARRAYS = (torch.Tensor.numpy, torch.Tensor.__array__)


def _noting_failures(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose calls of PyTorch run for real: what they raise is noted, for the program may go on after it."""

    @functools.wraps(method)
    def noting(self: Paths, interpreter: Any, *call: Any) -> Any:
        try:
            return method(self, interpreter, *call)
        except TracemillError:
            raise
        except Exception as error:
            interpreter.failed = interpreter.failed or error
            raise

    return noting


class Paths:
    """Reads values from the real environment, and records the checks that later calls must pass.

    checked: whether the cache mode allows checks.
    """

    def __init__(self, real: RealEnvironment, *, checked: bool) -> None:
        self._real = real
        self._checked = checked
        self._views: list[tuple[BoundSymbol, Answer, Sequence[TensorProxy]]] = []

    @_noting_failures
    def value(self, interpreter: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The value of a call that Python needs now."""
        free = self._is_free(args, kwargs)
        if not free:
            self._allow(interpreter, fn, args, kwargs)
        result = self._real.call(fn, args, kwargs)
        if fn in _ARRAYS:
            result = result.copy()
            result.flags.writeable = free  # a write would have to reach the tensor at each call
            if not free:
                tolist = torch.Tensor.tolist
                expected = self._real.call(tolist, args[:1], {})
                self._check_value(interpreter, tolist, args[:1], {}, expected)
        elif not free:
            self._check_value(interpreter, fn, args, kwargs, result)
        return result

    @_noting_failures
    def call(self, interpreter: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records a call whose output's shape, or whose doing, depends on data; its output, on proxies."""
        free = self._is_free(args, kwargs)
        if not free:
            self._allow(interpreter, fn, args, kwargs)
        tensors = tensor_arguments(args, kwargs)
        sym = symbol_under(fn, Ambient.now(), interpreter.around, attention=False)
        result, answer = self._real.observe(sym.impl, args, kwargs, tensors)  # type: ignore[arg-type]
        if answer.is_query:
            if not free:
                self._check_value(interpreter, fn, args, kwargs, result)
            return result
        found = answer
        if not free:
            answer = self._with_scalars_checked(interpreter, fn, args, kwargs, answer, tensors)
        output = interpreter.add(fn, args, kwargs, answer, tensors)
        line = interpreter.bound_symbols[-1]
        self._real.executed(line, result)
        if _is_view(answer) and found is not answer:
            self._views.append((line, found, tensors))
        if not free:
            for spec, out in zip(leaves(answer.output), leaves(output), strict=True):
                if isinstance(out, TensorProxy) and type(spec) is NewTensor:
                    self._check(interpreter, "{}.shape != {}", out, out.meta.shape)
        return output

    def may_read_sizes(self, args: Any, kwargs: Any) -> bool:
        """Whether a call that zeros cannot answer may be right for what its tensors hold, such as a batch's lengths."""
        return self._checked and any(
            isinstance(proxy, TensorProxy) and proxy.dtype in _INTEGERS
            for proxy in proxies((args, kwargs))
        )

    def _is_free(self, args: Any, kwargs: Any) -> bool:
        """Whether a call gives the same at each call of the program."""
        given = list(proxies((args, kwargs)))
        return bool(given) and self._real.is_free(given)

    def _with_scalars_checked(
        self,
        interpreter: Any,
        fn: Any,
        args: Any,
        kwargs: Any,
        answer: Answer,
        tensors: Sequence[TensorProxy],
    ) -> Answer:
        """The answer, good for every call that passes the checks: a body with numbers read from tensors is not."""
        read = [operation for operation in answer.body if operation.fn is _SCALAR]
        if any(
            not isinstance(leaf, torch.Tensor) and type(leaf) not in (NewTensor, SameTensor)
            for leaf in leaves(answer.output)
            if leaf is not None
        ):
            raise _data_dependent(interpreter, fn, args, kwargs, "it returns numbers and tensors")
        if not read:
            return answer
        if not answer.mutated:
            return Answer(answer.output, answer.arity, random=answer.random)
        for ref, value in _scalars(answer):
            if ref.index >= answer.arity:
                raise _data_dependent(interpreter, fn, args, kwargs, "and writes by it")
            item = torch.Tensor.item
            self._check_value(interpreter, item, (tensors[ref.index],), {}, value)
        return answer

    def settle(self, interpreter: Any) -> None:
        """Checks the numbers by which views were taken of memory that the program writes to.

        Which part a write reaches is then known; other views may be of another part at each call.
        """
        lines = interpreter.bound_symbols
        written = {
            tensor.storage
            for line in lines
            if line.answer is not None and line.mutates
            for position, tensor in enumerate(tensor_arguments(line.args, line.kwargs))
            if position in line.answer.mutated
        }
        for line, answer, tensors in self._views:
            outs = [out for out in line.outputs if isinstance(out, TensorProxy)]
            if not any(out.storage in written for out in outs):
                continue
            checks = []
            for ref, value in _scalars(answer):
                if ref.index >= answer.arity:
                    asked = line.args, line.kwargs, "and writes to a view taken by it"
                    raise _data_dependent(interpreter, line.sym.impl, *asked)
                checks.append(_check_line(line, tensors[ref.index], value))
            index = next(i for i, other in enumerate(lines) if other is line)
            lines[index : index + 1] = [*checks, line.from_bsym(answer=answer)]

    # Checks

    def _allow(self, interpreter: Any, fn: Any, args: Any, kwargs: Any) -> None:
        if not self._checked:
            raise _data_dependent(
                interpreter, fn, args, kwargs, 'and cache="same input" checks nothing'
            )
        for proxy in proxies((args, kwargs)):
            if not isinstance(proxy, TensorProxy):
                continue
            if fn in (*_ARRAYS, torch.Tensor.tolist) and proxy.meta.numel > LARGEST:
                reason = f"of {proxy.meta.numel} elements, more than the {LARGEST} that are checked"
                raise _data_dependent(interpreter, fn, args, kwargs, reason)
            if fn in _TEXTS and proxy.requires_grad and proxy.meta.shape:
                raise _data_dependent(interpreter, fn, args, kwargs, "and shows its grad_fn")

    def _check_value(self, interpreter: Any, fn: Any, args: Any, kwargs: Any, value: Any) -> None:
        path = symbol(fn).path
        names = [f"{name}={{}}" for name in kwargs]
        call = f"{path or '{}'}({', '.join(['{}'] * len(args) + names)})"
        condition, expected = _condition(call, value)
        values = (*(() if path else (fn,)), *args, *kwargs.values(), expected)
        self._check(interpreter, condition, *values)

    def _check(self, interpreter: Any, condition: str, *values: Any) -> None:
        source = interpreter.source()
        where = "" if source is None else f"{source}  {source.text}"
        last = interpreter.bound_symbols[-1] if interpreter.bound_symbols else None
        arguments = (f"another path: {where}", condition, *values)
        if last is None or last.sym is not prims.PATH or last.args != arguments:
            interpreter.emit(prims.PATH, arguments, {}, None)


def _is_view(answer: Answer) -> bool:
    return any(
        type(spec) is NewTensor and spec.storage[0] == "argument" for spec in leaves(answer.output)
    )


def _scalars(answer: Answer) -> list[tuple[Ref, Any]]:
    """The tensors whose numbers a body read, each with the number."""
    return [
        (operation.args[0], operation.output)
        for operation in answer.body
        if operation.fn is _SCALAR
    ]


def _check_line(line: BoundSymbol, tensor: TensorProxy, value: Any) -> BoundSymbol:
    """The check that a tensor is of that value, for the place of `line`."""
    where = "" if line.source is None else f"{line.source}  {line.source.text}"
    condition, expected = _condition("torch.Tensor.item({})", value)
    arguments = (f"another path: {where}", condition, tensor, expected)
    return BoundSymbol(prims.PATH, arguments, source=line.source, module_path=line.module_path)


def _condition(call: str, value: Any) -> tuple[str, Any]:
    """The condition under which a value is another one, with what stands in it for the value."""
    if value is None or type(value) is bool:
        return call + " is not {}", value
    if type(value) is float and (value == 0 or math.isnan(value)):
        return call + ".hex() != {}", value.hex()
    if type(value) in (int, str) or (type(value) is float):
        return call + " != {}", value
    return f"repr({call}) != {{}}", repr(value)


def _data_dependent(
    interpreter: Any, fn: Any, args: Any, kwargs: Any, reason: str
) -> DataDependentError:
    source = interpreter.source()
    where = (
        "" if source is None else f'\n  File "{source.file}", line {source.line}\n    {source.text}'
    )
    asked = next(iter(proxies((args, kwargs))), None)
    described = "" if asked is None else _described(asked, interpreter.bound_symbols)
    return DataDependentError(
        f"{symbol(fn).name} needs the data of a tensor, {reason}{where}\n{described}{WAY_ROUND}"
    )


def _described(proxy: Any, bound_symbols: Sequence[BoundSymbol]) -> str:
    made = "an input"
    for bsym in bound_symbols:
        if any(out is proxy for out in bsym.outputs):
            source: Source | None = bsym.source
            line = f" on line {source.line}" if source is not None else ""
            made = f"the result of {bsym.sym.name}{line}"
            break
    return f'the tensor is {made}, a "{proxy.type_string}". '
