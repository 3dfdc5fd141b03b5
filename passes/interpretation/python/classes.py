"""Classes and ids: what `type(x)` and `id(x)` say of a stand-in: its class in eager, and nothing of an argument's id.

Nothing in a class tells `type` what to answer, so `type` itself is stood in for while code that mentions it runs.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

import torch

from tracemill.compiler.errors import UnsupportedError
from tracemill.passes.interpretation.location import is_library
from tracemill.passes.interpretation.randomness import TracedGenerator
from tracemill.passes.interpretation.replacements.replacement import Replacement
from tracemill.passes.interpretation.stand_in import TracedTensor, interpretation, refusal

_type = type

_IN_EAGER: dict[_type, Any] = {
    TracedTensor: lambda tensor: tensor.__class__,
    TracedGenerator: lambda _generator: torch.Generator,
    torch.SymInt: lambda _number: int,
    torch.SymFloat: lambda _number: float,
    torch.SymBool: lambda _number: bool,
}


class _TypeOfType(_type):
    """The class of what stands for `type`: to others than the program, it does what `type` does."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not _Type:  # a metaclass that the program made
            return _type.__call__(cls, *args, **kwargs)
        made = _type(*args, **kwargs)
        if made is _type:
            return cls
        in_eager = _IN_EAGER.get(made) if len(args) == 1 else None
        if in_eager is None or interpretation.get() is None:
            return made
        return made if is_library(sys._getframe(1).f_code.co_filename) else in_eager(args[0])

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _type if cls is _Type else cls)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(subclass, _type) if cls is _Type else cls in subclass.__mro__

    def __eq__(cls, other: object) -> bool:
        return other is cls or (cls is _Type and other is _type)

    def __hash__(cls) -> int:
        return hash(_type) if cls is _Type else _type.__hash__(cls)


class _Type(_type, metaclass=_TypeOfType):
    pass


_Type.__name__ = _Type.__qualname__ = "type"
_Type.__module__ = "builtins"

TYPE_ANSWERS = Replacement(lambda: ((builtins, "type", _Type),))
"""In the block, `type` answers the program as in eager."""

_id = id


def _identity(value: Any, /) -> int:
    recording: Any = interpretation.get()
    if type(value) is TracedTensor and recording is not None and value.proxy in recording.inputs:
        if not is_library(sys._getframe(1).f_code.co_filename):
            asked = f"the id of an argument that is a tensor is asked for{recording.at()}; tell arguments apart by a name"
            raise refusal(UnsupportedError(asked))
    return _id(value)


IDENTITIES = Replacement(lambda: ((builtins, "id", _identity),))
"""In the block, the program is refused where it asks for the `id` of a tensor that another call has another of."""
