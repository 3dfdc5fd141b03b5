"""Autocast: a call under it becomes its casts and the call on what they give, so that no context is needed to run it.

Before, under `torch.autocast("cpu", torch.bfloat16)`:

    t0 = torch.nn.functional.linear(x, w)

After:

    t0 = torch.ops.aten._to_copy.default(x, dtype=torch.bfloat16)
    t1 = torch.ops.aten._to_copy.default(w, dtype=torch.bfloat16)
    t2 = torch.nn.functional.linear(t0, t1)

A call that autocast leaves alone stays as it is; one that casts in its middle becomes its ATen operations. As in eager,
a parameter is cast once in a region: its gradient is then summed in the lower precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from tracemill.compiler.answer import (
    GENERATOR,
    Answer,
    BodyOperation,
    NewTensor,
    Ref,
    SameTensor,
    is_generator,
)
from tracemill.compiler.oracle import ORACLE
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.settings import without_autocast
from tracemill.compiler.values import leaves, map_leaves, substitute

_CAST = torch.ops.aten._to_copy.default


class Recording(Protocol):
    """What autocast needs of the interpreter."""

    casts: dict[TensorProxy, TensorProxy]
    lifted: dict[int, tuple[TensorProxy, torch.Tensor]]

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records a call on proxies; returns its output, on proxies."""
        ...


def recorded(
    recording: Recording,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    answer: Answer,
    tensors: Sequence[TensorProxy],
) -> tuple[Any] | None:
    """Records a call to which PyTorch, under autocast, gave `answer`; its output on proxies in a tuple.

    None when autocast makes no difference to it.
    """
    with without_autocast():
        if same_operations(_answer(fn, args, kwargs), answer, {}):
            return None
        cast = _cast_arguments(answer)
        if cast:
            changed = {tensors[position]: tensors[position] for position in cast}
            return _with_casts(recording, fn, args, kwargs, answer, tensors, cast, changed)
        return (_operations(recording, args, kwargs, answer, tensors),)


def _answer(fn: Callable[..., Any], args: Any, kwargs: Any) -> Answer | None:
    try:
        return ORACLE.ask(fn, args, kwargs)[0]
    except Exception:  # what autocast makes possible, such as a product of bfloat16 and float32
        return None


def _cast_arguments(answer: Answer) -> dict[int, BodyOperation]:
    """The casts that a body begins with, by the argument that they cast."""
    found: dict[int, BodyOperation] = {}
    for operation in answer.body:
        if operation.fn is not _CAST or type(operation.args[0]) is not Ref:
            break
        position = operation.args[0].index
        if position >= answer.arity or position in found:
            break
        found[position] = operation
    return found


def _with_casts(
    recording: Recording,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    answer: Answer,
    tensors: Sequence[TensorProxy],
    cast: dict[int, BodyOperation],
    changed: dict[TensorProxy, Any],
) -> tuple[Any]:
    """The casts and the call on what they give, where that is all that autocast does; else the operations."""
    models: dict[Any, Any] = {
        tensors[position]: TensorProxy(meta=answer.metas[operation.output.index])
        for position, operation in cast.items()
    }
    plain = _answer(fn, substitute(args, models), substitute(kwargs, models))
    refs = {
        position: cast[position].output if position in cast else Ref(position)
        for position in range(len(tensors))
    }
    rest = Answer(answer.output, answer.arity, body=answer.body[len(cast) :], metas=answer.metas)
    if answer.mutated or not same_operations(plain, rest, refs):
        return (_operations(recording, args, kwargs, answer, tensors),)
    for position, operation in cast.items():
        changed[tensors[position]] = _cast(recording, tensors[position], operation.kwargs)
    mapping: dict[Any, Any] = dict(changed)
    return (recording.call(fn, substitute(args, mapping), substitute(kwargs, mapping)),)


def same_operations(plain: Answer | None, answer: Answer, refs: dict[int, Ref]) -> bool:
    """Whether two bodies do the same: `refs` says what the arguments of the first one are in the second."""
    if plain is None or len(plain.body) != len(answer.body):
        return False
    known = {**{i: Ref(i) for i in range(plain.arity)}, **refs}

    def same(one: Any, two: Any) -> bool:
        if type(one) is Ref:
            return type(two) is Ref and known.setdefault(one.index, two) == two
        if type(one) is not type(two):
            return False
        if isinstance(one, (tuple, list)):
            return len(one) == len(two) and all(map(same, one, two))
        if isinstance(one, dict):
            return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
        return bool(one == two)

    return all(
        one.fn is two.fn
        and same(one.args, two.args)
        and same(one.kwargs, two.kwargs)
        and same(one.output, two.output)
        for one, two in zip(plain.body, answer.body, strict=True)
    )


def _cast(recording: Recording, tensor: TensorProxy, kwargs: dict[str, Any]) -> TensorProxy:
    meta = tensor.meta
    cached = (
        torch.is_grad_enabled()
        and torch.is_autocast_cache_enabled()
        and meta.dtype is torch.float32
        and meta.requires_grad
        and meta.is_leaf
        and not _is_view(recording, tensor)
    )
    if cached and tensor in recording.casts:
        return recording.casts[tensor]  # whatever its dtype: so does PyTorch
    made = recording.call(_CAST, (tensor,), kwargs)
    if cached:
        recording.casts[tensor] = made
    return made


def _is_view(recording: Recording, leaf: TensorProxy) -> bool:
    """Whether a leaf is a view to autograd, and so not kept in autocast's cache."""
    return any(tensor._is_view() for known, tensor in recording.lifted.values() if known is leaf)


def _operations(
    recording: Recording, args: Any, kwargs: Any, answer: Answer, tensors: Sequence[TensorProxy]
) -> Any:
    """Records a body's operations one by one."""
    values: dict[int, Any] = dict(enumerate(tensors))
    generators = [leaf for leaf in leaves((args, kwargs)) if is_generator(leaf)]

    def value(leaf: Any) -> Any:
        if leaf is GENERATOR:
            return generators[0]
        return values[leaf.index] if type(leaf) is Ref else leaf

    for fn, inner_args, inner_kwargs, output in answer.body:
        given, named = map_leaves(value, inner_args), map_leaves(value, inner_kwargs)
        if fn is _CAST and named.keys() == {"dtype"} and isinstance(given[0], TensorProxy):
            made: Any = _cast(recording, given[0], named)
        else:
            made = recording.call(fn, given, named)
        for ref, out in zip(leaves_of_refs(output), leaves(made), strict=True):
            if type(ref) is Ref:
                values[ref.index] = out

    def spec(leaf: Any) -> Any:
        if type(leaf) is SameTensor:
            return tensors[leaf.position]
        return values[leaf.index] if type(leaf) is NewTensor else leaf

    return map_leaves(spec, answer.output)


def leaves_of_refs(value: Any) -> list[Any]:
    """The leaves of an operation's output, a Ref being a leaf."""
    found: list[Any] = []
    map_leaves(found.append, value)
    return found


def is_alike_under(
    dtype: torch.dtype,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    answer: Answer,
    local: dict[Any, Answer],
) -> bool:
    """Whether a call does under another default dtype what `answer` says."""
    inside = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        other, _ = ORACLE.ask(fn, args, kwargs, local)
        return same_operations(other, answer, {}) and other.metas == answer.metas
    except Exception:  # whatever it raises there: it is not alike
        return False
    finally:
        torch.set_default_dtype(inside)
