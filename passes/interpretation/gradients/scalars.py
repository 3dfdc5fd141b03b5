"""Scalars: calls that are given a tensor of one element where PyTorch takes a number, and reads it at each call.

Before, in the user's program, for a tensor `size`:

    p.addcdiv_(mean, deviation, value=size)

After, so that no program is for one value of `size` alone:

    t0 = torch.addcdiv(p, mean, deviation, value=size)
    t1 = torch.Tensor.copy_(p, t0)

What such a call consists of is PyTorch's answer for the same computation with tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from tracemill.compiler.answer import Answer
from tracemill.compiler.oracle import ORACLE
from tracemill.compiler.proxy import TensorProxy

T: Any = torch.Tensor


class Recording(Protocol):
    """What these need of the interpreter."""

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records a call on proxies; returns its output, on proxies."""
        ...

    def add(
        self, fn: Callable[..., Any], args: Any, kwargs: Any, answer: Answer, tensors: Any
    ) -> Any:
        """Records a call that PyTorch answered; its output, on proxies."""
        ...


class _Scaled(NamedTuple):
    """A call with a number.

    functional: its form that writes to nothing. number: the parameter that takes the number. computed: the same with
    tensors. default: what it takes else.
    """

    functional: Callable[..., Any]
    number: str
    computed: Callable[..., Any]


def _add(tensor: Any, other: Any, *, alpha: Any) -> Any:
    return tensor + other * alpha.to(other.dtype)


def _sub(tensor: Any, other: Any, *, alpha: Any) -> Any:
    return tensor - other * alpha.to(other.dtype)


def _addcdiv(tensor: Any, one: Any, other: Any, *, value: Any) -> Any:
    return tensor + value.to(one.dtype) * one / other


def _addcmul(tensor: Any, one: Any, other: Any, *, value: Any) -> Any:
    return tensor + value.to(one.dtype) * one * other


def _each(computed: Callable[..., Any], number: str) -> Callable[..., Any]:
    def computed_each(*args: Any) -> Any:
        *lists, scalars = args
        items = zip(*lists, scalars.unbind(), strict=True)
        return [computed(*tensors, **{number: scalar}) for *tensors, scalar in items]

    return computed_each


_FORMS = (
    _Scaled(torch.add, "alpha", _add),
    _Scaled(torch.sub, "alpha", _sub),
    _Scaled(torch.addcdiv, "value", _addcdiv),
    _Scaled(torch.addcmul, "value", _addcmul),
)
_OF_ONE: dict[Any, _Scaled] = {
    **{form.functional: form for form in _FORMS},
    **{getattr(T, form.functional.__name__): form for form in _FORMS},
}
_IN_PLACE: dict[Any, _Scaled] = {
    getattr(T, f"{form.functional.__name__}_"): form for form in _FORMS
}


_OF_LISTS: dict[Any, tuple[Any, Any]] = {
    getattr(torch, f"_foreach_{form.functional.__name__}{end}"): (
        getattr(torch, f"_foreach_{form.functional.__name__}"),
        _each(form.computed, form.number),
    )
    for form in _FORMS[2:]
    for end in ("", "_")
}

TAKING = frozenset((*_OF_ONE, *_IN_PLACE, *_OF_LISTS))
"""The calls that take numbers."""


def recorded(
    recording: Recording, fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> tuple[Any] | None:
    """Records such a call, and returns its output on proxies in a tuple; None for every other one."""
    form = _OF_ONE.get(fn) or _IN_PLACE.get(fn)
    if form is not None and _is_tensor(kwargs.get(form.number)):
        made = _recorded(recording, form.functional, form.computed, args, kwargs)
        if fn in _IN_PLACE:
            made = recording.call(T.copy_, (args[0], made), {})
        return (made,)
    if fn in _OF_LISTS and len(args) == 4 and _is_tensor(args[3]):
        made = _recorded(recording, *_OF_LISTS[fn], args, kwargs)
        if fn is not _OF_LISTS[fn][0]:
            for tensor, value in zip(args[0], made, strict=True):
                recording.call(T.copy_, (tensor, value), {})
        return (made,)
    return None


def _is_tensor(number: Any) -> bool:
    return isinstance(number, TensorProxy)


def _recorded(
    recording: Recording, functional: Any, computed: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    answer, tensors = ORACLE.ask(computed, args, kwargs)
    return recording.add(functional, args, kwargs, answer, tensors)
