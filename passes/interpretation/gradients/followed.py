"""Followed: what of a program that asked for gradients inside autograd still follows outside.

A training step returns its loss, whose graph it has freed: that is a line of its own, and all other lines, whose gradients
nobody can ask for any more, run without autograd.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tracemill.compiler.answer import tensor_arguments
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.freed import FREED
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace
from tracemill.compiler.values import proxies, substitute
from tracemill.passes.interpretation.interpreter import Interpreter


def followed(
    interpreter: Interpreter, result: Any, epilogue: Trace | None
) -> tuple[Any, Trace | None]:
    """The program's result and epilogue, with what `freed` makes in place of what has no graph any more."""
    leaving = [*proxies(result), *(() if epilogue is None else epilogue.args)]
    _refuse_with_grad(interpreter, leaving)
    if interpreter.tape is None:
        return result, epilogue
    given = {proxy for proxy, _ in interpreter.lifted.values()}
    outs = [out for out in _requiring_grad(leaving) if out not in given]
    freed: dict[Proxy, Proxy] = {
        out: _freed(interpreter, out) for out in outs if interpreter.tape.is_freed(out)
    }
    if len(freed) == len(outs) and not _writes_followed(interpreter):
        lines = interpreter.bound_symbols
        lines[:] = [bsym.from_bsym(grad_enabled=False) for bsym in lines]
    mapping: dict[Proxy, Any] = dict(freed)
    if epilogue is not None and freed:
        epilogue = epilogue.replace(
            args=[freed.get(arg, arg) for arg in epilogue.args],
            bound_symbols=[bsym.substitute(mapping) for bsym in epilogue.bound_symbols],
        )
    return substitute(result, mapping), epilogue


def _refuse_with_grad(interpreter: Interpreter, leaving: Iterable[Any]) -> None:
    """Refuses programs that give away a tensor of their own with a gradient on it."""
    own = {grad.owner.proxy for grad in interpreter.grads if grad.real is None and grad.is_written}
    for tensor in leaving:
        if tensor in own:
            raise UnsupportedError(
                f'the program returns or keeps a tensor that it makes, a "{tensor.type_string}", with the .grad that it '
                "gave to it; return the gradient beside it"
            )


def _requiring_grad(values: Iterable[Any]) -> list[TensorProxy]:
    tensors = [value for value in values if isinstance(value, TensorProxy)]
    return [tensor for tensor in dict.fromkeys(tensors) if tensor.requires_grad]


def _freed(interpreter: Interpreter, out: TensorProxy) -> Proxy:
    with torch.no_grad():
        plain = interpreter.call(torch.Tensor.detach, (out,), {})
    meta = plain.meta.replace(requires_grad=True, is_leaf=False)
    made = plain.changed(interpreter.fresh_name(), meta=meta)
    interpreter.bound_symbols.append(BoundSymbol(FREED, (plain,), {}, made))
    return made


def _writes_followed(interpreter: Interpreter) -> bool:
    """Whether autograd follows what is written to an input."""
    given = {proxy.storage for proxy, _ in interpreter.lifted.values()}
    return any(
        line.mutates
        and line.grad_enabled
        and any(
            tensor.requires_grad and tensor.storage in given
            for tensor in tensor_arguments(line.args, line.kwargs)
        )
        for line in interpreter.bound_symbols
    )
