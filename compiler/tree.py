"""Structures of inputs and outputs, as optree knows them, in a namespace of our own.

Dicts keep their insertion order, None is a leaf, and slices and dataclasses (ModelOutput among them) are nodes.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import optree

NAMESPACE = "tracemill"

# Held for the life of the process: optree has no other public way to set a namespace's order.
_insertion_order = optree.dict_insertion_ordered(True, namespace=NAMESPACE)
_insertion_order.__enter__()

_registered: set[type] = set()
_KNOWN = frozenset((dict, list, OrderedDict, defaultdict))


def register(
    cls: type, flatten: Callable[[Any], Any], unflatten: Callable[[Any, Any], Any]
) -> None:
    """Makes `cls` a node in tracemill's namespace, once; `flatten` and `unflatten` are optree's."""
    if cls not in _registered:
        _registered.add(cls)
        optree.register_pytree_node(cls, flatten, unflatten, namespace=NAMESPACE)


def _flatten_slice(value: slice) -> Any:
    return (value.start, value.stop, value.step), None, ("start", "stop", "step")


register(slice, _flatten_slice, lambda _metadata, parts: slice(*parts))


def _register_dataclass(cls: type) -> None:
    def flatten(value: Any) -> Any:
        names = tuple(f.name for f in dataclasses.fields(cls) if hasattr(value, f.name))
        if not isinstance(value, dict):
            names += tuple(name for name in getattr(value, "__dict__", ()) if name not in names)
        return [getattr(value, name) for name in names], names, names

    def unflatten(names: tuple[str, ...], values: Any) -> Any:
        fields = dict(zip(names, values, strict=True))
        if issubclass(cls, dict):  # ModelOutput: its constructor keeps keys and attributes together
            return cls(**fields)
        made = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(made, name, value)
        return made

    register(cls, flatten, unflatten)


def _register_dict(cls: type) -> None:
    def flatten(value: Any) -> Any:
        keys = tuple(value)
        return [value[key] for key in keys], (keys, dict(vars(value))), keys

    def unflatten(metadata: Any, values: Any) -> Any:
        keys, attributes = metadata
        made: Any = cls.__new__(cls)  # pyright: ignore[reportCallIssue]
        for key, value in zip(keys, values, strict=True):
            made[key] = value
        vars(made).update(attributes)
        return made

    register(cls, flatten, unflatten)


def _register_list(cls: type) -> None:
    def flatten(value: Any) -> Any:
        return list(value), dict(vars(value)), tuple(range(len(value)))

    def unflatten(attributes: Any, values: Any) -> Any:
        made: Any = cls.__new__(cls)  # pyright: ignore[reportCallIssue]
        made.extend(values)
        vars(made).update(attributes)
        return made

    register(cls, flatten, unflatten)


def _make_known(value: Any) -> None:
    """Registers the class of a dataclass instance, or of a dict or list of a user's class."""
    cls = type(value)
    if cls in _registered:
        return
    if is_dataclass_instance(value):
        _register_dataclass(cls)
    elif cls in _KNOWN or not hasattr(value, "__dict__"):
        return
    elif isinstance(value, dict):
        _register_dict(cls)
    elif isinstance(value, list):
        _register_list(cls)


def is_dataclass_instance(value: Any) -> bool:
    """Whether `value` is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


@dataclass(frozen=True, slots=True)
class Node:
    """One level of a structure: the children, how each is reached, and how the level is made again."""

    children: list[Any]
    entries: tuple[Any, ...]
    rebuild: Callable[[Any], Any]
    by_attribute: bool


def node_of(value: Any) -> Node | None:
    """The level of structure at `value`, or None for a leaf."""
    if value is None or isinstance(value, type):
        return None
    _make_known(value)
    if optree.tree_is_leaf(value, none_is_leaf=True, namespace=NAMESPACE):
        return None
    level = optree.tree_flatten_one_level(value, none_is_leaf=True, namespace=NAMESPACE)
    rebuild = level.unflatten_func
    metadata = level.metadata
    by_attribute = is_dataclass_instance(value) or type(value) is slice
    return Node(
        list(level.children),
        tuple(level.entries),
        lambda children: rebuild(metadata, children),
        by_attribute,
    )


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of a structure, in order."""
    node = node_of(value)
    if node is None:
        yield value
        return
    for child in node.children:
        yield from leaves(child)


def map_structure(fn: Callable[[Any], Any], value: Any) -> Any:
    """The structure with `fn` applied to each leaf."""
    node = node_of(value)
    if node is None:
        return fn(value)
    return node.rebuild([map_structure(fn, child) for child in node.children])
