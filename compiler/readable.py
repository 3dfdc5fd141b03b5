"""Readable operations: the torch function that does exactly what an ATen operation does.

`torch.div(t10, t3)` reads better than `torch.ops.aten.div.Tensor(t10, t3)`, and is called faster. A candidate counts
only when PyTorch, asked, does that one operation on those arguments and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler import torch_names
from tracemill.compiler.body_log import BodyLog
from tracemill.compiler.values import leaves, map_leaves

_HOLDERS = (torch, torch.Tensor, internals.nn_functions)
_known: dict[Any, Callable[..., Any]] = {}


def readable(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """The torch function that prints for `op` on these fake arguments, `op` itself where there is none.

    To be called with the fakes' mode active. Asked once for each operation and kinds of arguments.
    """
    key = (op, _kinds(args), tuple((name, _kinds(value)) for name, value in kwargs.items()))
    found = _known.get(key)
    if found is None:
        found = next(
            (candidate for candidate in _candidates(op) if _does(candidate, op, args, kwargs)), op
        )
        _known[key] = found
    return found


def _kinds(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_kinds, value))
    return type(value)


def _candidates(op: Any) -> Iterator[Callable[..., Any]]:
    if op.namespace != "aten" or op._schema.is_mutable:
        return
    name = op._schema.name.split("::")[1]
    for holder in _HOLDERS:
        candidate = getattr(holder, name, None)
        if candidate is None or getattr(candidate, "__code__", None) is not None:
            continue  # written in Python: it may do more
        if torch_names.path_of(candidate) is not None:
            yield candidate


def _does(
    candidate: Callable[..., Any], op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    log = BodyLog()
    given = [leaf for leaf in (*leaves(args), *leaves(kwargs)) if isinstance(leaf, torch.Tensor)]
    for tensor in given:
        log.add(tensor)
    try:
        with torch.no_grad(), log:
            candidate(*args, **kwargs)
    except Exception:  # another signature, or a shape that only the operation itself accepts
        return False
    if len(log.operations) != 1 or log.operations[0].fn is not op:
        return False
    (did,) = log.operations
    want = _told_apart(map_leaves(lambda leaf: _ref(log, leaf), (args, kwargs)))
    return _told_apart((did.args, did.kwargs)) == want


def _ref(log: BodyLog, leaf: Any) -> Any:
    return log.add(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _told_apart(value: Any) -> list[Any]:
    """The leaves with their types: 1 is not True."""
    found: list[Any] = []
    map_leaves(lambda leaf: found.append((type(leaf), leaf)), value)
    return found
