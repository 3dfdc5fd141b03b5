"""Identities: code that tells which tensors are one object.

    if x is self.weight: ...
    table.get(x)

The program meets its own tensors as they are, and its arguments as stand-ins. So one that asks, and is given a tensor of its
own, is given that as it is; and each call is checked to have the same tensors for one, and others apart.
"""

from __future__ import annotations

import dis
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType

import torch

_LOADS = frozenset(dis.opmap[name] for name in ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL"))
_CACHE, _ATTRIBUTE, _CONSTANT = (dis.opmap[n] for n in ("CACHE", "LOAD_ATTR", "LOAD_CONST"))
_IS, _IN = dis.opmap["IS_OP"], dis.opmap["CONTAINS_OP"]
_CALLED = frozenset({"index", "count", "remove", "is_", "is_not", "contains"})
"""Methods of lists, and functions of `operator`, that compare."""

HASH = torch.Tensor.__hash__.__code__
"""The code that runs where a tensor is looked up as a key of a dict or a member of a set: it is known by identity."""


@lru_cache(maxsize=4096)
def compares(code: CodeType) -> bool:
    """Whether code compares objects by identity, other than with a constant or a constant with the items of something."""
    if not _CALLED.isdisjoint(code.co_names):
        return True
    operations = [opcode for opcode in code.co_code[::2] if opcode != _CACHE]
    return any(
        opcode in (_IS, _IN) and not _has_constant(operations[:index], opcode)
        for index, opcode in enumerate(operations)
    )


def _has_constant(before: Sequence[int], opcode: int) -> bool:
    """Whether a comparison has a constant on its right, or, as `"mask" in self.options`, on its left."""
    if before[-1] == _CONSTANT or opcode == _IS:
        return before[-1] == _CONSTANT
    index = len(before) - 1
    while before[index] == _ATTRIBUTE:
        index -= 1
    return before[index] in _LOADS and before[index - 1] == _CONSTANT
