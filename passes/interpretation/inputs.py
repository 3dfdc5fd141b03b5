"""Inputs: a call's arguments taken apart, with the prologue's lines that unpack and check them at each call."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch

from tracemill.compiler import prims, tree
from tracemill.compiler.contents import counts_by_content, counts_by_content_inside
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.guards import ARGUMENT, check
from tracemill.compiler.marks import SIZES, Mark, Tree, items_of
from tracemill.compiler.names import Names
from tracemill.compiler.proxy import (
    AnyProxy,
    BoolProxy,
    CollectionProxy,
    FloatProxy,
    IntegerProxy,
    Proxy,
)
from tracemill.compiler.random_state import Generator
from tracemill.compiler.state_checks import same
from tracemill.compiler.symbol import BoundSymbol
from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.python.passed import tensors_inside
from tracemill.passes.interpretation.python.places import Place

_NUMBERS = {int: IntegerProxy, float: FloatProxy, bool: BoolProxy}
_EQUAL_BY_VALUE = (str, bytes, complex, range, torch.Size, torch.device, int, float)
_BY_IDENTITY = (
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.layout,
    torch.memory_format,
    enum.Enum,
    type,
)


class Inputs:
    """Takes arguments apart into stand-ins, and collects the prologue's lines.

    lines: unpack and check lines, in order; the tensors' own check is made later, with the parameters'.
    containers: the lists, dicts and the like that the program gets in place of arguments, which it may write to.
    originals: the ids of those arguments, with their proxies. hidden: the ids of tensors that stand-ins are given for.
    opaque: the places of arguments that are objects, where tensors may be found.
    as_they_are: the ids of what stands elsewhere too, so that the program gets it itself.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        names: Names,
        as_they_are: frozenset[int] = frozenset(),
        *,
        checked: bool,
    ) -> None:
        self.lines: list[BoundSymbol] = []
        self.opaque: list[tuple[Place, Proxy]] = []
        self.containers: list[tuple[Any, Proxy]] = []
        self.originals: dict[int, Proxy] = {}
        self.hidden: set[int] = set()
        self._as_they_are = as_they_are
        self._interpreter = interpreter
        self._names = names
        self._checked = checked

    def argument(
        self, parameter: inspect.Parameter, value: Any, items: Sequence[str], marks: Tree
    ) -> tuple[Proxy, Any]:
        """The proxy of a parameter, and what the program gets in place of its value.

        items: what the items of `*args` and `**kwargs` are called, where that is known. marks: what in it differs from
        call to call.
        """
        name = parameter.name
        proxy = self._proxy(self._names.claim(name), value, marks)
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return proxy, self._take(proxy, value, name, marks)
        node = tree.node_of(value)
        assert node is not None
        return proxy, self._take_apart(proxy, value, node, name, marks, items)

    def _proxy(self, name: str, value: Any, marks: Tree) -> Proxy:
        if isinstance(value, torch.Tensor):
            known = id(value) in self._interpreter.lifted
            stand_in = self._interpreter.input(value, marks)
            if known:  # the same tensor again: a value of its own, checked to be the first one
                return stand_in.proxy.renamed(name)
            stand_in.proxy._name = name
            return stand_in.proxy
        if isinstance(value, Generator):
            proxy = self._interpreter.generator(name, value).proxy
            return proxy if proxy.name == name else proxy.renamed(name)
        number = _NUMBERS.get(type(value))
        if number is not None:
            return number(name, value=value)
        node = tree.node_of(value)
        if node is not None:
            return CollectionProxy(name, python_type=type(value), length=len(node.children))
        return AnyProxy(name, python_type=type(value))

    def _take(self, proxy: Proxy, value: Any, subject: str, marks: Tree) -> Any:
        if isinstance(value, torch.Tensor):
            stand_in = self._interpreter.input(value)
            if stand_in.proxy is not proxy:
                self.check(
                    f"{subject}: the same tensor as {stand_in.proxy.name}",
                    "{} is {}",
                    proxy,
                    stand_in.proxy,
                )
            elif type(value) in (torch.Tensor, torch.nn.Parameter) and value.__dict__:
                condition = "{}({}.__dict__, {})"
                attributes = dict(value.__dict__)
                self.check(f"{subject}: its attributes", condition, same, proxy, attributes)
            if id(value) in self._as_they_are:
                return value
            self.hidden.add(id(value))
            return stand_in
        if isinstance(value, Generator):
            return self._take_generator(proxy, value, subject)
        node = tree.node_of(value)
        if node is not None and id(value) not in self._as_they_are:
            made = self._take_apart(proxy, value, node, subject, marks)
            if not isinstance(value, (tuple, slice)):
                self.originals[id(value)] = proxy
            return made
        if type(marks) is Mark and type(value) in (int, float):
            made = self._interpreter.input_number(proxy, value, marks)
            if made is not value:
                self.check(f"{subject}: its type", "type({}) is {}", proxy, type(value))
                return made
        if marks == SIZES and counts_by_content_inside(value):
            for tensor in tensors_inside(value):
                self._interpreter.mark(tensor, SIZES)
        self._check_constant(proxy, value, subject)
        return value

    def _take_generator(self, proxy: Proxy, value: torch.Generator, subject: str) -> Any:
        stand_in = self._interpreter.generator(proxy.name, value)
        if stand_in.proxy is not proxy:
            first = stand_in.proxy
            self.check(f"{subject}: the same generator as {first.name}", "{} is {}", proxy, first)
            return stand_in
        condition = "type({0}) is {1} and {0}.device == {2}"
        self.check(f"{subject}: a generator", condition, proxy, Generator, value.device)
        for other, _ in self._interpreter.generators.values():
            if other is not stand_in:
                self.check(
                    f"{subject}: another generator than {other.proxy.name}",
                    "{} is not {}",
                    proxy,
                    other.proxy,
                )
        return stand_in

    def _take_apart(
        self,
        proxy: Proxy,
        value: Any,
        node: tree.Node,
        subject: str,
        marks: Tree,
        items: Sequence[str] = (),
    ) -> Any:
        self.check(f"{subject}: its type", "type({}) is {}", proxy, type(value))
        if isinstance(value, dict) and not node.by_attribute:
            self.check(f"{subject}: its keys", "list({}) == {}", proxy, list(node.entries))
        elif all(type(entry) is int for entry in node.entries):
            self.check(f"{subject}: its length", "len({}) == {}", proxy, len(node.children))
        wanted = items or getattr(value, "_fields", None) or node.entries
        children: list[Any] = []
        marked = items_of(marks, len(node.children))
        named = zip(_padded(wanted, node.entries), node.children, marked, strict=True)
        proxies = [
            self._proxy(self._name_of(proxy, name, child, mark), child, mark)
            for name, child, mark in named
        ]
        if isinstance(value, (list, tuple)):
            self.lines.append(prims.UNPACK_SEQUENCE.bind(proxy, output=tuple(proxies)))
        else:
            for entry, item in zip(node.entries, proxies, strict=True):
                step = f".{entry}" if node.by_attribute else (entry,)
                self.lines.append(prims.unpack(item, proxy, step))
        taken = zip(node.entries, node.children, proxies, marked, strict=True)
        for entry, child, item, mark in taken:
            children.append(self._take(item, child, f"{subject}[{entry!r}]", mark))
        made = node.rebuild(children)
        if not isinstance(value, tuple):
            self.containers.append((made, proxy))
        return made

    def _name_of(self, owner: Proxy, entry: Any, value: Any, mark: Tree) -> str:
        """An item's name: its own where it has one, else its owner's with a number, or the next of its kind."""
        if type(mark) is Mark and mark.name:
            return self._names.claim(mark.name)
        if isinstance(entry, str) and entry.startswith("."):
            return self._names.claim(entry[1:])
        if isinstance(entry, str) or isinstance(value, torch.Tensor) or counts_by_content(value):
            return self._names.claim(f"{owner.name}_{entry}")
        number = _NUMBERS.get(type(value))
        kind = CollectionProxy if tree.node_of(value) is not None else AnyProxy
        return self._names.fresh((number or kind).prefix)

    def check(self, subject: str, condition: str, *values: Any) -> None:
        """Adds a check line, unless this cache mode checks nothing."""
        if self._checked:
            self.lines.append(check(subject, condition, *values))

    def _check_constant(self, proxy: Proxy, value: Any, subject: str) -> None:
        kind = type(value)
        if kind.__module__ == "numpy" and hasattr(value, "__array_interface__") and value.ndim:
            raise UnsupportedError(
                f"{subject} is a numpy array, whose changes cannot be seen; pass torch.from_numpy({subject})"
            )
        if kind is bool or isinstance(value, _BY_IDENTITY):
            self.check(subject, "{} is {}", proxy, value)
        elif kind is float and (value == 0.0 or math.isnan(value)):
            self.check(subject, "type({0}) is {1} and {0}.hex() == {2}", proxy, float, value.hex())
        elif isinstance(value, _EQUAL_BY_VALUE) or kind.__module__ == "numpy":
            self.check(subject, "type({0}) is {1} and {0} == {2}", proxy, kind, value)
        elif kind in (set, frozenset) and all(
            type(item) in (int, str, bool, type(None)) for item in value
        ):
            self.check(f"{subject}: its class", "type({}) is {}", proxy, kind)
            self.check(subject, "list({}) == {}", proxy, list(value))  # its order counts too
            self.opaque.append((Place(value, None, (), subject), proxy))
        elif counts_by_content(value) or id(value) in self._as_they_are:
            self.check(f"{subject}: its class", "type({}) is {}", proxy, kind)
            self.opaque.append((Place(value, None, (), proxy.name), proxy))
        else:
            self.check(f"{subject}: the same object", ARGUMENT, proxy, value)
            self.opaque.append((Place(value, None, (), subject), proxy))


def _padded(names: Sequence[Any], entries: Sequence[Any]) -> list[Any]:
    """A name for each entry; the entry itself where there is none."""
    return [*names[: len(entries)], *entries[len(names) :]]
