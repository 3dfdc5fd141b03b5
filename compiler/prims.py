"""Our own operations: unpacking, checking and freeing values. They print as plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol, LineWriter, Symbol

LONG = 100
"""Columns from which on a list of values stands one per line."""


class UnpackSequence(Symbol):
    """`a, b, = C0`: names the items of a collection."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        (collection,) = bsym.args
        if not bsym.output:
            return []
        targets = [writer.target(item) for item in bsym.output]
        line = (
            f"{''.join(target + ', ' for target in targets).rstrip()} = {writer.value(collection)}"
        )
        if len(line) <= LONG:
            return [line]
        inner = "".join(f"\n    {target}," for target in targets)
        return [f"({inner}\n  ) = {writer.value(collection)}"]


class UnpackShape(Symbol):
    """`i0, _, i1, = x.shape`: names the sizes of a tensor that differ from call to call."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        (tensor,) = bsym.args
        targets = [writer.target(size) or "_" for size in bsym.output]
        return [f"{' '.join(target + ',' for target in targets)} = {writer.value(tensor)}.shape"]


class Unpack(Symbol):
    """`weight = fc._parameters["weight"]`: names what a path of attributes and items leads to.

    Arguments: the base, then one step after another; a step is ".name" or an index in a one-element tuple.
    An object without steps is bound by the name, and needs no line.
    """

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        base, *steps = bsym.args
        if not isinstance(base, Proxy) and not steps:
            writer.bind(base, bsym.output.name)
            return []
        return [f"{writer.target(bsym.output)} = {_place(base, steps, writer)}"]


def _place(base: Any, steps: Sequence[Any], writer: LineWriter) -> str:
    """The expression of what a path leads to: a step is ".name" or an index in a one-element tuple."""
    path = (step if isinstance(step, str) else f"[{writer.value(step[0])}]" for step in steps)
    return writer.value(base) + "".join(path)


class Check(Symbol):
    """`x is None or mismatch("x")`: one line that a call must meet to reuse the specialisation.

    Arguments: what is checked, for people; a condition with a `{}` for each value; the values.
    """

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        subject, condition, *values = bsym.args
        return self._line(condition.format(*map(writer.value, values)), subject, writer)

    def _line(self, text: str, subject: str, writer: LineWriter) -> list[str]:
        if (
            len(text) > LONG and text.endswith(")") and text.count("(") == 1
        ):  # one argument per line
            function, _, arguments = text[:-1].partition("(")
            text = f"{function}(\n    " + arguments.replace(", ", ",\n    ") + ",\n  )"
        return [f"{text} or {writer.value(self.impl)}({writer.value(subject)})"]


class PlaceCheck(Check):
    """`fc.training is False or mismatch("training of fc")`: a check of Python state.

    Arguments: what is checked, for people; a condition with `{0}` for the place and `{1}`.. for the values; the place,
    as a base and the steps from it (as for `Unpack`); the values.
    """

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        subject, condition, base, steps, *values = bsym.args
        place = _place(base, steps, writer)
        return self._line(condition.format(place, *map(writer.value, values)), subject, writer)


class PathCheck(Check):
    """`if torch.Tensor.__bool__(t1) is not True: raise AssertionError("another path: ...")`: ends a call that
    needs another program.

    Arguments: the line that chose the path, for people; a condition that is true on every other path, with a `{}` for
    each value; the values.
    """

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        subject, condition, *values = bsym.args
        text = condition.format(*map(writer.value, values))
        return [f"if {text}: raise AssertionError({writer.value(subject)})"]


class Failure(Check):
    """`raise RuntimeError("...")`: what eager's backward raises there."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        return [f"raise RuntimeError({writer.value(bsym.args[0])})"]


class Delete(Symbol):
    """`del t0, t1`: frees values after their last use."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        return [f"del {', '.join(map(writer.value, bsym.args))}"]


class Comment(Symbol):
    """`# C1 (empty sequence)`: a line for people."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        return [f"# {bsym.args[0]}"]


class Same(Symbol):
    """`t1 = t0`: the same tensor, of which something else is known from here on, such as that it requires grad."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        return [f"{writer.target(bsym.output)} = {writer.value(bsym.args[0])}"]


UNPACK_SEQUENCE = UnpackSequence("unpack_sequence")
UNPACK_SHAPE = UnpackShape("unpack_shape")
UNPACK = Unpack("unpack")
PATH = PathCheck("path")
FAILURE = Failure("failure")
DELETE = Delete("del")
COMMENT = Comment("comment")
SAME = Same("same", impl=lambda value: value)


def as_tensor(number: float) -> torch.Tensor:
    """A number of Python's as a tensor of one element and the same precision."""
    return torch.tensor(number, dtype=torch.float64, device="cpu")


AS_TENSOR = Symbol("as_tensor", impl=as_tensor)


def unpack(output: Proxy, base: Any, *steps: Any) -> BoundSymbol:
    """The bound symbol of `output = base<steps>`."""
    return UNPACK.bind(base, *steps, output=output)


def delete(values: Sequence[Proxy], of: BoundSymbol | None = None) -> BoundSymbol:
    """The bound symbol of `del a, b`; `of`: the line that used them last."""
    if of is None:
        return DELETE.bind(*values, output=None)
    return BoundSymbol(DELETE, values, source=of.source, module_path=of.module_path)
