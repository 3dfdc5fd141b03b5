"""Names for the values of a trace: readable, valid, and never two values with one name."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

RESERVED = (
    frozenset(keyword.kwlist)
    | frozenset(keyword.softkwlist)
    | frozenset(dir(builtins))
    | {"torch", "nan", "inf"}
)
"""Names that no value may have: they would be captured, or would capture what the text means by them."""


def identifier(text: str) -> str:
    """`text` as a Python identifier: `layers.0.weight` becomes `layers_0_weight`.

    >>> identifier("layers.0.weight"), identifier("0.bias"), identifier("class")
    ('layers_0_weight', '_0_bias', 'class_')
    """
    name = text
    if not (text.isascii() and text.isidentifier()):
        name = re.sub(r"\W", "_", text, flags=re.ASCII) or "_"
    if name[0].isdigit():
        name = "_" + name
    return name + "_" if name in RESERVED else name


class Names:
    """Hands out names that are not taken; one allocator serves all traces of a program."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(RESERVED)
        self._taken.update(taken)
        self._next: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def reserve(self, names: Iterable[str]) -> None:
        """Marks `names` as taken."""
        self._taken.update(names)

    def claim(self, wanted: str) -> str:
        """`wanted` as an identifier, with a suffix (`wanted_1`) when it is taken."""
        name = identifier(wanted)
        if name in self._taken:
            name = self._numbered(name + "_", start=1)
        self._taken.add(name)
        return name

    def fresh(self, prefix: str) -> str:
        """The next free name of a series: `t0`, `t1`, ..."""
        name = self._numbered(prefix, start=0)
        self._taken.add(name)
        return name

    def _numbered(self, prefix: str, *, start: int) -> str:
        number = self._next.get(prefix, start)
        while f"{prefix}{number}" in self._taken:
            number += 1
        self._next[prefix] = number + 1
        return f"{prefix}{number}"
