"""Outputs: what a program returned, as the computation's output and a way to make the same structure at each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracemill.compiler import tree
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.proxy import Proxy
from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.python_numbers import holds_symbolic, is_symbolic, plain
from tracemill.passes.interpretation.stand_in import TracedTensor

_PLAIN = (tuple, list, dict)
_LITERALS = (
    int,
    float,
    bool,
    str,
    bytes,
    complex,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
)

Build = Callable[[Sequence[Any]], Any]
Given = Mapping[int, Proxy]
"""The proxies of objects, by their ids."""


@dataclass(frozen=True)
class Output:
    """A program's output.

    value: what the computation returns: the structure itself when it is of tuples, lists and dicts, else its tensors.
    rebuild: from what the computation returns to what the program returns; None when they are the same.
    note: what is rebuilt, for people.
    """

    value: Any
    rebuild: Build | None
    note: str


def output_of(result: Any, interpreter: Interpreter, given: Given) -> Output:
    """The output for what the program returned on stand-ins.

    given: the lists, dicts and the like among the arguments, which are returned as themselves.
    """
    if _is_plain(result, given):
        return Output(_proxies(result, interpreter, given), None, "")
    values: list[Proxy] = []
    build = _builder(result, interpreter, values, given)
    return Output(tuple(values), build, f"the caller gets a {type(result).__name__} of these")


def _proxies(value: Any, interpreter: Interpreter, given: Given) -> Any:
    if id(value) in given:
        return given[id(value)]
    if type(value) is dict:
        return {key: _proxies(item, interpreter, given) for key, item in value.items()}
    if type(value) in _PLAIN:
        return type(value)(_proxies(item, interpreter, given) for item in value)
    if isinstance(value, torch.Tensor):
        return interpreter.lift(value).proxy
    return interpreter.number(value)


def _is_plain(value: Any, given: Given) -> bool:
    """Whether a structure prints as Python literals around its tensors."""
    if id(value) in given:
        return True
    if type(value) in _PLAIN:
        keys_are_plain = type(value) is not dict or all(type(key) in (str, int) for key in value)
        return keys_are_plain and all(
            _is_plain(item, given) for item in (value.values() if type(value) is dict else value)
        )
    return isinstance(value, torch.Tensor) or type(value) in _LITERALS or is_symbolic(value)


def _builder(value: Any, interpreter: Interpreter, values: list[Proxy], given: Given) -> Build:
    """A function that makes `value` again from what the computation returns."""
    if isinstance(value, torch.Tensor) or id(value) in given:
        values.append(_proxies(value, interpreter, given))
        position = len(values) - 1
        return lambda results: results[position]
    node = tree.node_of(value)
    if node is not None:
        if any(map(holds_symbolic, node.entries)):
            raise UnsupportedError(
                "the program returns a dict with a size among its keys, under symbolic values; use int(size)"
            )
        rebuild = node.rebuild
        parts = [_builder(child, interpreter, values, given) for child in node.children]
        return lambda results: rebuild([part(results) for part in parts])
    if is_symbolic(value):
        known = plain(value)
        return lambda _results: known
    if _holds_stand_ins(value, set()):
        return _object_builder(value, interpreter, values, given)
    return lambda _results: value


def _object_builder(
    value: Any, interpreter: Interpreter, values: list[Proxy], given: Given
) -> Build:
    """Makes an object that the program made, such as a key-value cache, anew: its class, and each attribute."""
    cls = type(value)
    parts = {
        name: _builder(item, interpreter, values, given) for name, item in value.__dict__.items()
    }

    def build(results: Sequence[Any]) -> Any:
        made: Any = object.__new__(cls)
        made.__dict__.update({name: part(results) for name, part in parts.items()})
        return made

    return build


def _holds_stand_ins(value: Any, seen: set[int]) -> bool:
    if isinstance(value, TracedTensor) or is_symbolic(value):
        return True
    if id(value) in seen or isinstance(value, (type, torch.nn.Module)):
        return False
    seen.add(id(value))
    node = tree.node_of(value)
    if node is not None:
        return any(_holds_stand_ins(child, seen) for child in node.children)
    return any(_holds_stand_ins(item, seen) for item in getattr(value, "__dict__", {}).values())
