"""Walks over the arguments and outputs of bound symbols: nested tuples, lists, dicts, sets and slices of values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbolic import Expression

_ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None), type(Ellipsis)})


def _is_namedtuple(value: Any) -> bool:
    return hasattr(value, "_fields")


def leaves(value: Any) -> Iterator[Any]:
    """Every leaf of `value`, in order, constants included."""
    kind = type(value)
    if kind in _ATOMS or isinstance(value, Proxy):
        yield value
    elif isinstance(value, (tuple, list, set, frozenset)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif kind is slice:
        yield from leaves((value.start, value.stop, value.step))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name, None))
    else:
        yield value


def proxies(value: Any) -> Iterator[Proxy]:
    """Every proxy in `value`, in order, repeats included."""
    for leaf in leaves(value):
        if isinstance(leaf, Proxy):
            yield leaf
        elif type(leaf) is Expression:
            yield from leaf.operands


def map_leaves(fn: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `fn` applied to each leaf; what does not change keeps its identity."""
    kind = type(value)
    if kind in _ATOMS or isinstance(value, Proxy):
        return fn(value)
    if isinstance(value, (tuple, list)):
        items = [map_leaves(fn, item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if _is_namedtuple(value):
            return kind(*items)
        if hasattr(kind, "n_sequence_fields"):  # torch.return_types: a structseq takes one sequence
            return kind(items)
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        items = {key: map_leaves(fn, item) for key, item in value.items()}
        return (
            value if all(items[key] is value[key] for key in items) else _rebuilt_dict(value, items)
        )
    if kind is slice:
        parts = [map_leaves(fn, part) for part in (value.start, value.stop, value.step)]
        return slice(*parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {
            f.name: map_leaves(fn, getattr(value, f.name))
            for f in dataclasses.fields(value)
            if hasattr(value, f.name)
        }
        if all(new is getattr(value, name) for name, new in changes.items()):
            return value
        other = object.__new__(kind)
        other.__dict__.update(value.__dict__ | changes)
        return other
    return fn(value)


def _rebuilt_dict(old: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    if type(old) is dict:
        return items
    other = type(old)()
    other.update(items)
    return other


def substitute(value: Any, mapping: dict[Proxy, Any]) -> Any:
    """`value` with each proxy replaced by what `mapping` holds for it, if anything."""

    def leaf(value: Any) -> Any:
        if isinstance(value, Proxy):
            return mapping.get(value, value)
        return value.substitute(mapping) if type(value) is Expression else value

    return map_leaves(leaf, value)
