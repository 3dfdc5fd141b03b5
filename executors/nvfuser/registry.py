"""The registry of translations: which operation of PyTorch becomes what in a definition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

OPTIONS = ("matmul", "linear", "attention", "scatter")
"""Families of operations that are translated only where a user asks for them: PyTorch's own kernels are hard to beat."""


class Untranslatable(Exception):
    """Raised for a line, or one of its operations, that has no translation; it says why, and the line runs on torch."""


class Translation(NamedTuple):
    """How an operation is translated.

    write: called with the builder of the definition and the operation's arguments, tensors as `Value`, sizes that are
    not constant as nvFuser's scalars. It returns a TensorView, a Value, or a tuple of them, one for each result.
    options: the families, of `OPTIONS`, one of which must be asked for; empty where none must.
    moves: whether it computes nothing: the result's elements are those of its first argument.
    """

    write: Callable[..., Any]
    options: frozenset[str] = frozenset()
    moves: bool = False

    def is_on(self, options: frozenset[str]) -> bool:
        """Whether it is used where these families are asked for."""
        return not self.options or not self.options.isdisjoint(options)


_TRANSLATIONS: dict[Any, Translation] = {}
TRANSLATIONS: Mapping[Any, Translation] = MappingProxyType(_TRANSLATIONS)
"""Every translation, by ATen operation."""

Writer = Callable[..., Any]


def translates(
    *operations: Any, options: Iterable[str] = (), moves: bool = False
) -> Callable[[Writer], Writer]:
    """Makes a function the translation of ATen operations that take the same arguments."""

    def register(write: Writer) -> Writer:
        for operation in operations:
            if operation in _TRANSLATIONS:
                raise ValueError(f"{operation} has a translation already")
            _TRANSLATIONS[operation] = Translation(write, frozenset(options), moves)
        return write

    return register
