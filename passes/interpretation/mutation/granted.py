"""Granted: inputs that a program makes require grad, as models of atoms do with the positions that they are given.

Before, for an argument x that does not require grad:

    def computation(x):
      v0 = x
      v1 = torch.Tensor.sin(v0)
      return v1

After, where the prologue does it once it has checked the call, so that the computation is given the leaf:

    def prologue(x):
      ...
      x_1 = torch.Tensor.requires_grad_(x)
      return (x_1,)

    def computation(x_1):
      v1 = torch.Tensor.sin(x_1)
      return v1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from tracemill.compiler.answer import tensor_arguments
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.oracle import ORACLE
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.passes.interpretation.mutation.own_leaves import own_leaves

T: Any = torch.Tensor


class Recording(Protocol):
    """What these need of the interpreter."""

    bound_symbols: list[BoundSymbol]
    lifted: dict[int, tuple[TensorProxy, torch.Tensor]]


def granted(recording: Recording, claim: Callable[[str], str]) -> dict[TensorProxy, BoundSymbol]:
    """Gives the computation leaves in place of the inputs that it makes require grad.

    The prologue's lines that make them, each by the leaf. claim: a name like another one that is free.
    """
    lines = recording.bound_symbols
    made: dict[TensorProxy, BoundSymbol] = {}
    for key, (given, tensor) in list(recording.lifted.items()):
        line = next((own for own in own_leaves(lines).values() if own.args[0] is given), None)
        if line is None:
            continue
        _refuse_writes(lines, given, line)
        leaf: Any = line.output
        leaf._name = claim(given.name)
        recording.lifted[key] = (leaf, tensor)
        lines[:] = [*_before(lines, given, leaf), *(each for each in lines if each is not line)]
        made[leaf] = BoundSymbol(symbol(T.requires_grad_), (given,), {}, leaf, source=line.source)
    return made


def _before(
    lines: list[BoundSymbol], given: TensorProxy, leaf: TensorProxy
) -> Iterator[BoundSymbol]:
    """The line that makes the input as it was, for those that read it before it required grad."""
    if any(given in line.inputs and line.output is not leaf for line in lines):
        answer, _ = ORACLE.ask(T.detach, (leaf,), {})
        yield BoundSymbol(symbol(T.detach), (leaf,), {}, given, answer=answer)


def _refuse_writes(lines: list[BoundSymbol], given: TensorProxy, line: BoundSymbol) -> None:
    for other in lines:
        if other.mutates and any(
            tensor.storage is given.storage for tensor in tensor_arguments(other.args, other.kwargs)
        ):
            where = "" if line.source is None else f" at {line.source.file}:{line.source.line}"
            raise UnsupportedError(
                f"requires_grad of {given.name} is changed{where}, and the program writes to it; write to a clone"
            )
