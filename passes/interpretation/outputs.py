"""Outputs: what a program returned, as the computation's output and a way to make the same structure at each call.

What the program made is made anew at each call, once where it stands twice. What it found, an argument or a part of its
state, is returned as itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from tracemill.compiler import tree
from tracemill.compiler.contents import counts_by_content
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.proxy import AnyProxy, Proxy
from tracemill.compiler.write import bare
from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.python.python_numbers import holds_symbolic, is_symbolic, plain
from tracemill.passes.interpretation.python.views import slots_of
from tracemill.passes.interpretation.stand_in import TracedTensor, own_attributes

_PLAIN = (tuple, list, dict)
_COPIED = (numpy.ndarray, bytearray)
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

Step = Callable[[Sequence[Any], Sequence[Any]], Any]
"""Makes one object from what the computation returned and from what the steps before it made."""


@dataclass(frozen=True)
class Output:
    """A program's output.

    value: what the computation returns: the structure itself when it is of tuples, lists and dicts, else its tensors.
    rebuild: from what the computation returns to what the program returns; None when they are the same.
    note: what is rebuilt, for people. found: what of the program's state is in it, with its proxies.
    """

    value: Any
    rebuild: Callable[[Sequence[Any]], Any] | None
    note: str
    found: tuple[tuple[Any, Proxy], ...] = ()


class Returned:
    """Takes apart what a program returned on stand-ins.

    given: the proxies of arguments that are returned as themselves, by id. met: what the program could reach before.
    """

    def __init__(
        self, interpreter: Interpreter, given: Mapping[int, Proxy], met: Mapping[int, Any]
    ) -> None:
        self._interpreter = interpreter
        self._known = dict(given)
        self._met = met
        self._found: list[tuple[Any, Proxy]] = []
        self._values: list[Proxy] = []
        self._steps: list[Step] = []
        self._places: dict[int, int] = {}
        self._alive: list[Any] = []  # so that ids stay valid
        self._open: set[int] = set()

    def output(self, result: Any) -> Output:
        """The output for what the program returned; raises UnsupportedError for what no call could make anew."""
        if self._is_plain(result, set()):
            return Output(self._literal(result), None, "", tuple(self._found))
        self._place(result)
        steps = tuple(self._steps)

        def rebuild(results: Sequence[Any]) -> Any:
            made: list[Any] = []
            for step in steps:
                made.append(step(results, made))
            return made[-1]

        note = f"the caller gets a {type(result).__name__} of these"
        return Output(tuple(self._values), rebuild, note, tuple(self._found))

    def _found_as(self, value: Any) -> Proxy | None:
        """The proxy of what the program found and returns as it is; None for what it made."""
        known = self._known.get(id(value))
        if known is None and id(value) in self._met:
            fresh = self._interpreter.fresh_name()
            known = self._known[id(value)] = AnyProxy(fresh, python_type=type(value))
            self._found.append((value, known))
        return known

    # Structures that print as Python literals around their tensors

    def _is_plain(self, value: Any, seen: set[int]) -> bool:
        if self._found_as(value) is not None:
            return True
        if type(value) in _PLAIN:
            if id(value) in seen:
                return False  # one object twice
            if value:
                seen.add(id(value))
            keys_are_plain = type(value) is not dict or all(
                type(key) in (str, int) for key in value
            )
            items = value.values() if type(value) is dict else value
            return keys_are_plain and all(self._is_plain(item, seen) for item in items)
        return isinstance(value, torch.Tensor) or type(value) in _LITERALS or is_symbolic(value)

    def _literal(self, value: Any) -> Any:
        known = self._found_as(value)
        if known is not None:
            return known
        if type(value) is dict:
            return {key: self._literal(item) for key, item in value.items()}
        if type(value) in _PLAIN:
            return type(value)(self._literal(item) for item in value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        return self._interpreter.number(value)

    def _tensor(self, tensor: torch.Tensor) -> Proxy:
        names = own_attributes(tensor) if type(tensor) is TracedTensor else []
        proxy = self._interpreter.lift(tensor).proxy
        if names and all(proxy is not known for known, _ in self._interpreter.lifted.values()):
            raise UnsupportedError(
                f"the program returns a tensor with an attribute of its own, {names[0]!r}, which the compiled program's "
                "tensor would not have; return the attribute beside the tensor"
            )
        return proxy

    # Other structures

    def _place(self, value: Any) -> int:
        """Where the steps make `value`: the number of its step."""
        known = self._places.get(id(value))
        if known is None:
            if id(value) in self._open:
                raise UnsupportedError(
                    f"the program returns a {type(value).__name__} that holds itself, which tracemill cannot make anew"
                )
            self._open.add(id(value))
            self._alive.append(value)
            self._steps.append(self._step(value))
            known = self._places[id(value)] = len(self._steps) - 1
        return known

    def _step(self, value: Any) -> Step:
        proxy = self._found_as(value)
        if isinstance(value, torch.Tensor):
            proxy = self._tensor(value)
        if proxy is not None:
            self._values.append(proxy)
            position = len(self._values) - 1
            return lambda results, _made: results[position]
        node = tree.node_of(value)
        if node is not None:
            return self._of_node(node)
        if is_symbolic(value):
            known = plain(value)
            return lambda _results, _made: known
        if type(value) in (set, frozenset):
            kind: Any = type(value)
            items = list(map(self._place, value))
            return lambda _results, made: kind(made[item] for item in items)
        if isinstance(value, _COPIED):
            kept = value.copy()
            return lambda _results, _made: kept.copy()
        if self._is_object(value):
            return self._of_object(value)
        if hasattr(type(value), "__next__"):
            raise UnsupportedError(
                f"the program returns a {type(value).__name__}, which goes on after the call and cannot be made anew; "
                "return a list of what it gives"
            )
        return lambda _results, _made: value

    def _of_node(self, node: tree.Node) -> Step:
        if any(map(holds_symbolic, node.entries)):
            raise UnsupportedError(
                "the program returns a dict with a size among its keys, under symbolic values; use int(size)"
            )
        rebuild, parts = node.rebuild, list(map(self._place, node.children))
        return lambda _results, made: rebuild([made[part] for part in parts])

    def _is_object(self, value: Any) -> bool:
        """Whether an object is made anew from its class and its attributes: those that the program made."""
        if isinstance(value, (type, torch.nn.Module)):
            return False
        return counts_by_content(value) or holds_stand_ins(value)

    def _of_object(self, value: Any) -> Step:
        """Makes an object that the program made, such as a key-value cache, anew: its class, and each attribute."""
        cls = type(value)
        parts = {name: self._place(item) for name, item in _attributes(value)}

        def build(_results: Sequence[Any], made: Sequence[Any]) -> Any:
            new = bare(cls)
            for name, part in parts.items():
                object.__setattr__(new, name, made[part])
            return new

        return build


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for name in slots_of(type(value)):
        try:
            yield name, object.__getattribute__(value, name)
        except AttributeError:
            continue
    yield from getattr(value, "__dict__", {}).items()


def holds_stand_ins(value: Any, seen: set[int] | None = None) -> bool:
    """Whether a tensor or number of the trace is anywhere in a structure or in an object's attributes."""
    seen = set() if seen is None else seen
    if isinstance(value, TracedTensor) or is_symbolic(value):
        return True
    if id(value) in seen or isinstance(value, (type, torch.nn.Module)):
        return False
    seen.add(id(value))
    node = tree.node_of(value)
    if node is not None:
        return any(holds_stand_ins(child, seen) for child in node.children)
    return any(holds_stand_ins(item, seen) for item in getattr(value, "__dict__", {}).values())
