"""Rewrites of a call's lines: the same, found or handed on faster."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch

from tracemill.compiler.guards import TensorCheck

TOGETHER = 16
"""Items of a tuple from which on they are handed on together."""

Bind = Callable[[str, Any], ast.Name]
"""Gives an object a name that no line has for another."""


class LookedUp(ast.NodeTransformer):
    """What a check calls, found once: `torch.is_grad_enabled`, `tensorcheck.check`."""

    def __init__(self, bound: Mapping[str, Any], bind: Bind) -> None:
        self.bound = bound
        self.bind = bind

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        *path, root = _path(node.func)
        found: Any = torch if root == "torch" else self.bound.get(root)
        if found is torch or isinstance(found, TensorCheck):
            for name in reversed(path):
                found = getattr(found, name)
            if isinstance(found, BuiltinFunctionType):
                node.func = ast.copy_location(self.bind(path[0], found), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        found = getattr(torch, node.attr, None) if _path(node.value) == ["torch"] else None
        if isinstance(found, torch.dtype):
            return ast.copy_location(self.bind(node.attr, found), node)
        return self.generic_visit(node)


def _path(node: ast.expr) -> list[str]:
    """The names of an attribute, innermost last; "" where it is no name's."""
    if isinstance(node, ast.Attribute):
        return [node.attr, *_path(node.value)]
    return [node.id] if isinstance(node, ast.Name) else [""]


class HandedTogether(ast.NodeTransformer):
    """`a, *rest = found` and `run(x, *rest)` for `a, b, c = found` and `run(x, b, c)`, where b and c serve nothing else.

    A long tuple is unpacked and handed on faster than its items name by name.
    """

    def __init__(self, bind: Bind) -> None:
        self.bind = bind
        self.names: list[str] = []

    def rewrite(self, *texts: list[ast.stmt]) -> None:
        """Rewrites the lines for the first tuple that is worth it."""
        lines = [line for text in texts for line in text]
        for line in lines:
            match line:
                case ast.Assign([ast.Tuple(targets)], ast.Name()):
                    others = [other for other in lines if other is not line]
                    self.names = _handed_on([_name(target) for target in targets], others)
                    if len(self.names) < TOGETHER:
                        continue
                    self.rest = self.bind("rest", None).id
                    taken = ast.Starred(ast.Name(self.rest, ast.Store()), ast.Store())
                    targets[-len(self.names) :] = [taken]
                    for other in others:
                        self.visit(other)
                    return
                case _:
                    pass

    def visit_Call(self, node: ast.Call) -> ast.AST:
        count = len(self.names)
        if [_name(value) for value in node.args[-count:]] == self.names:
            node.args[-count:] = [ast.Starred(ast.Name(self.rest, ast.Load()), ast.Load())]
        return self.generic_visit(node)


def _handed_on(names: Sequence[str], lines: Sequence[ast.stmt]) -> list[str]:
    """The last of the names that the lines only ever use side by side, at the end of a call's arguments."""
    nodes = [node for line in lines for node in ast.walk(line)]
    used = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    calls = [[_name(arg) for arg in node.args] for node in nodes if isinstance(node, ast.Call)]
    calls = [call for call in calls if call[-1:] == names[-1:]]
    if not calls:
        return []
    found: list[str] = []
    for index, name in enumerate(reversed(names), 1):
        if used[name] != len(calls) or any(call[-index:][:1] != [name] for call in calls):
            break
        found.insert(0, name)
    return found


def _name(value: ast.expr) -> str:
    return value.id if isinstance(value, ast.Name) else ""


class AsMethods(ast.NodeTransformer):
    """`torch.Tensor.sin(t0)` as `t0.sin()` where the text itself made `t0`: Python finds methods faster that way."""

    def __init__(self, made: set[str]) -> None:
        self.made = made

    @classmethod
    def of(cls, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made = {
            node.id
            for line in body
            if isinstance(line, ast.Assign)
            for target in line.targets
            for node in ast.walk(target)
            if isinstance(node, ast.Name)
        }
        return [cls(made).visit(line) for line in body]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func, node.args:
            case (
                ast.Attribute(ast.Attribute(ast.Name("torch"), "Tensor"), name),
                [ast.Name(owner) as value, *args],
            ) if owner in self.made and _is_method(name):
                method = ast.Attribute(value, name, ast.Load())
                node.func, node.args = ast.copy_location(method, node), args
            case _:
                pass
        return node


def _is_method(name: str) -> bool:
    return isinstance(getattr(torch.Tensor, name, None), MethodDescriptorType)
