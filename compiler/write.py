"""Writes to Python state: the lines of an epilogue."""

from __future__ import annotations

from types import BuiltinFunctionType
from typing import Any

import torch

from tracemill.compiler.symbol import BoundSymbol, LineWriter, Symbol


class Write(Symbol):
    """`module.last = t0`: a line that changes an object.

    Arguments: the line with a `{}` for each value; the values.
    """

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        template, *values = bsym.args
        return [template.format(*map(writer.value, values))]


WRITE = Write("write")


def write(template: str, *values: Any) -> BoundSymbol:
    """The bound symbol of a line: `template` holds a `{}` for each of `values`."""
    return WRITE.bind(template, *values, output=None)


def bare(cls: type) -> Any:
    """An object of a class without attributes, made without calling what the class does for a new one."""
    makers = (base.__dict__.get("__new__") for base in cls.__mro__)
    make: Any = next(maker for maker in makers if isinstance(maker, BuiltinFunctionType))
    return make(cls)


class Make(Symbol):
    """`layer = bare(Layer)`: makes an empty object.

    Arguments: the expression with a `{}` for each value; the values.
    """

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        template, *values = bsym.args
        return [f"{writer.target(bsym.output)} = {template.format(*map(writer.value, values))}"]


MAKE = Make("make")


class UnseenCopy(Symbol):
    """`with torch.no_grad(): torch.Tensor.copy_(w, t0)`: what a tensor holds from here on, unseen by autograd."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        tensor, value = map(writer.value, bsym.args)
        return ["with torch.no_grad():", f"  torch.Tensor.copy_({tensor}, {value})"]


class DataCopy(Symbol):
    """`torch.Tensor.copy_(w.data, t0)`: what a tensor holds from here on, told by no version counter."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        tensor, value = map(writer.value, bsym.args)
        return [f"torch.Tensor.copy_({tensor}.data, {value})"]


def _copy_unversioned(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return tensor.data.copy_(value)


DATA_COPY = DataCopy("data_copy", impl=_copy_unversioned)
UNSEEN_COPY = UnseenCopy("unseen_copy", impl=torch.Tensor.copy_)
