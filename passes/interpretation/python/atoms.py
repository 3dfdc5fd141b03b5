"""Atoms: values through which nothing of the user's is reached, where walks over Python state end."""

from __future__ import annotations

import enum
import functools
from typing import Any

import torch

_ATOMS = (
    int, float, bool, str, bytes, complex, type(None), type(Ellipsis), range, slice, torch.dtype, torch.device,
    torch.Size, torch.layout, torch.memory_format, enum.Enum, torch.Tensor, torch.Generator,
)  # fmt: skip
_NUMBERS_AND_TEXTS = (int, float, complex, str, bytes)


@functools.lru_cache(maxsize=4096)
def _is_atomic(kind: type) -> bool:
    if issubclass(kind, _NUMBERS_AND_TEXTS) and not issubclass(kind, enum.Enum):
        return kind.__dictoffset__ == 0  # the user's own have attributes
    return issubclass(kind, _ATOMS)


def is_atom(value: Any) -> bool:
    """Whether nothing of the user's is reached through a value; known by its class, as `isinstance` would be slow."""
    return _is_atomic(type(value))


def ends_at(value: Any) -> bool:
    """Whether a walk goes no further than a value: to the parts that members of some enumerations have, it does."""
    kind = type(value)
    return _is_atomic(kind) and not (issubclass(kind, enum.Enum) and _has_parts(value))


def _has_parts(member: enum.Enum) -> bool:
    """Whether a member of an enumeration has more than a name and a constant for its value."""
    return len(vars(member)) > _OF_MEMBERS or not is_atom(member._value_)


_OF_MEMBERS = len(vars(enum.Enum("Example", "ONE")(1)))
