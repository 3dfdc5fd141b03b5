"""Walks over the arguments and outputs of bound symbols: nested tuples, lists, dicts, sets and slices of values."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbolic import Expression


def _is_namedtuple(value: Any) -> bool:
    return hasattr(value, "_fields")


@functools.lru_cache(maxsize=4096)
def _is_leaf(kind: type) -> bool:
    """Whether values of a class have no parts; known by the class, as asking of each value takes most of a walk's time."""
    if issubclass(kind, Proxy):
        return True
    return not (
        issubclass(kind, (tuple, list, set, frozenset, dict))
        or kind is slice
        or dataclasses.is_dataclass(kind)
    )


def leaves(value: Any) -> list[Any]:
    """Every leaf of `value`, in order, constants included."""
    found: list[Any] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[Any]) -> None:
    if _is_leaf(type(value)):
        found.append(value)
        return
    for part in _parts(value):
        if _is_leaf(type(part)):
            found.append(part)
        else:
            _gather(part, found)


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    if type(value) is slice:
        return value.start, value.stop, value.step
    if isinstance(value, (tuple, list, set, frozenset)):
        return value
    return [getattr(value, field.name, None) for field in dataclasses.fields(value)]


def proxies(value: Any) -> list[Proxy]:
    """Every proxy in `value`, in order, repeats included."""
    found: list[Proxy] = []
    for leaf in leaves(value):
        if isinstance(leaf, Proxy):
            found.append(leaf)
        elif type(leaf) is Expression:
            found.extend(leaf.operands)
    return found


def map_leaves(fn: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `fn` applied to each leaf; what does not change keeps its identity."""
    kind = type(value)
    if _is_leaf(kind):
        return fn(value)
    if isinstance(value, (tuple, list)):
        items = [fn(item) if _is_leaf(type(item)) else map_leaves(fn, item) for item in value]
        if all(map(operator.is_, items, value)):
            return value
        return _rebuilt_sequence(value, items)
    if isinstance(value, dict):
        items = {key: map_leaves(fn, item) for key, item in value.items()}
        return (
            value if all(items[key] is value[key] for key in items) else _rebuilt_dict(value, items)
        )
    if kind is slice:
        given = (value.start, value.stop, value.step)
        parts = map_leaves(fn, given)
        return value if parts is given else slice(*parts)
    if dataclasses.is_dataclass(value):
        return _rebuilt_dataclass(fn, value)
    return fn(value)


def _rebuilt_sequence(old: Any, items: list[Any]) -> Any:
    kind = type(old)
    if kind is tuple:
        return tuple(items)
    if _is_namedtuple(old):
        return kind(*items)
    if hasattr(kind, "n_sequence_fields"):  # torch.return_types: a structseq takes one sequence
        return kind(items)
    return tuple(items) if isinstance(old, tuple) else items


def _rebuilt_dict(old: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    if type(old) is dict:
        return items
    other = type(old)()
    other.update(items)
    return other


def _rebuilt_dataclass(fn: Callable[[Any], Any], old: Any) -> Any:
    changes = {
        field.name: map_leaves(fn, getattr(old, field.name))
        for field in dataclasses.fields(old)
        if hasattr(old, field.name)
    }
    if all(new is getattr(old, name) for name, new in changes.items()):
        return old
    other = object.__new__(type(old))
    other.__dict__.update(old.__dict__ | changes)
    return other


def substitute(value: Any, mapping: dict[Proxy, Any]) -> Any:
    """`value` with each proxy replaced by what `mapping` holds for it, if anything."""
    if isinstance(value, Proxy):
        return mapping.get(value, value)

    def leaf(value: Any) -> Any:
        if isinstance(value, Proxy):
            return mapping.get(value, value)
        return value.substitute(mapping) if type(value) is Expression else value

    return map_leaves(leaf, value)
