"""View rules: autograd forbids some writes to views, and some reads of views whose memory was written to.

    a, b = x.chunk(2)
    a.add_(1)         # raises: a is one of several views that one call gave

So it is of views that were taken under `no_grad`. Fakes of one tensor each know nothing of views: PyTorch is asked by
replaying, on fakes, what the program did in a piece of memory that has such views and is written to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from tracemill.compiler import prims
from tracemill.compiler.answer import Answer
from tracemill.compiler.errors import MutationError
from tracemill.compiler.meta import Storage
from tracemill.compiler.models import stand_in_for
from tracemill.compiler.oracle import ORACLE, unobserved
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import leaves, proxies, substitute

_OF_VIEWS = "modified inplace"
"""What eager's errors about such writes and reads have in common."""


class Recording(Protocol):
    """What the rules need of the interpreter."""

    bound_symbols: list[BoundSymbol]
    unseen: set[Any]


class ViewRules:
    """The rules for one run of a program."""

    def __init__(self) -> None:
        self._watched: set[Storage] = set()

    def raise_as_eager(
        self,
        recording: Recording,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        answer: Answer,
        tensors: Sequence[TensorProxy],
    ) -> None:
        """Raises eager's RuntimeError for a call that reads or writes a view as autograd forbids."""
        for position in answer.mutated:
            storage = tensors[position].storage
            if storage not in self._watched and _has_such_views(storage, recording.bound_symbols):
                self._watched.add(storage)
        if not (self._watched and torch.is_grad_enabled()):
            return
        storages = {tensor.storage for tensor in tensors} & self._watched
        if storages and any(tensor.requires_grad for tensor in tensors):
            lines = [line for line in recording.bound_symbols if _touches(line, storages)]
            _replay(lines, recording.unseen, fn, args, kwargs)

    def refuse_returned(self, recording: Recording, returned: Any) -> None:
        """Raises MutationError for a returned view whose reader eager raises for: it would be a plain tensor."""
        for proxy in proxies(returned) if self._watched else ():
            if not (isinstance(proxy, TensorProxy) and proxy.storage in self._watched):
                continue
            lines = [line for line in recording.bound_symbols if _touches(line, {proxy.storage})]
            try:
                _replay(lines, recording.unseen, torch.clone, (proxy,), {})
            except RuntimeError as error:
                raise MutationError(
                    f"the program returns a view that nobody may read, {error}; return a clone of it"
                ) from None


def _touches(line: BoundSymbol, storages: set[Storage]) -> bool:
    return any(
        isinstance(proxy, TensorProxy) and proxy.storage in storages
        for proxy in (*line.inputs, *line.outputs)
    )


def _has_such_views(storage: Storage, lines: Sequence[BoundSymbol]) -> bool:
    return any(
        (len(leaves(line.output)) > 1 or not line.grad_enabled)
        and any(
            isinstance(proxy, TensorProxy) and proxy.storage is storage for proxy in line.inputs
        )
        and any(isinstance(out, TensorProxy) and out.storage is storage for out in line.outputs)
        for line in lines
    )


def _replay(
    lines: Sequence[BoundSymbol],
    unseen: set[Any],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    models: dict[Any, Any] = {}

    def modelled(value: Any) -> Any:
        for leaf in leaves(value):
            if isinstance(leaf, TensorProxy) and leaf not in models:
                models[leaf] = stand_in_for(leaf, ORACLE.fake_mode)
        return substitute(value, models)

    with unobserved():
        try:
            for line in lines:
                _again(line, unseen, models, modelled)
            args, kwargs = modelled(tuple(args)), modelled(dict(kwargs))
            with ORACLE.fake_mode, torch.enable_grad():
                fn(*args, **kwargs)
        except RuntimeError as error:
            if _OF_VIEWS in str(error):
                raise
        except Exception:
            return  # what fakes alone raise says nothing of views


def _again(
    line: BoundSymbol, unseen: set[Any], models: dict[Any, Any], modelled: Callable[[Any], Any]
) -> None:
    """Does a line that gives views, or writes, on the models; what it makes anew is modelled where it is read."""
    if line.sym is prims.SAME:
        models[line.output] = modelled(line.args)[0]
        return
    given = {proxy.storage for proxy in line.inputs if isinstance(proxy, TensorProxy)}
    views = any(isinstance(out, TensorProxy) and out.storage in given for out in line.outputs)
    if line.sym.impl is None or not (views or line.mutates):
        return
    args, kwargs = modelled(line.args), modelled(dict(line.kwargs))
    with ORACLE.fake_mode, torch.set_grad_enabled(line.grad_enabled):
        made = line.sym.impl(*args, **kwargs)
    for out, model in zip(leaves(line.output), leaves(made), strict=True):
        if isinstance(out, TensorProxy):
            models.setdefault(out, model.data if out in unseen else model)
