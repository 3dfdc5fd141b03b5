"""The results that a `functools.lru_cache` keeps, and the check of those that a program got."""

from __future__ import annotations

import functools
import gc
from collections.abc import Sequence
from typing import Any

from tracemill.compiler.torch_internals import dict_version

CACHED: Any = type(functools.cache(len))
"""The class of what `functools.lru_cache` makes of a function."""


def table_of(function: Any) -> dict[Any, Any]:
    """The dictionary behind the cache, which Python does not show."""
    return _parts(function)[1]


def results_of(function: Any) -> list[tuple[Any, Any]]:
    """The keys and the results in a cache; in one of a limited size, those used last come last."""
    referents, table, position = _parts(function)
    if function.cache_parameters()["maxsize"] is None:
        return list(table.items())
    links = referents[
        1:position
    ]  # for each entry its key and its result, and on some Pythons its class
    step = len(links) // len(table) if table else 1
    return list(zip(links[::step], links[1::step], strict=True))


def _parts(function: Any) -> tuple[list[Any], dict[Any, Any], int]:
    referents = gc.get_referents(function)
    size = function.cache_info().currsize
    position = max(
        index
        for index, value in enumerate(referents)
        if type(value) is dict and value is not vars(function) and len(value) == size
    )
    return referents, referents[position], position


class CacheCheck:
    """Checks that a cache still keeps results: `expected` are their keys and the results themselves."""

    __slots__ = ("_table", "_version", "expected", "function")

    def __init__(self, function: Any, expected: Sequence[tuple[Any, Any]]) -> None:
        self.function = function
        self.expected = tuple(expected)
        self._table = table_of(function)
        self._version = dict_version(self._table)

    def check(self, function: Any) -> bool:
        """Whether the same results are there."""
        if function is not self.function:
            return False
        version = dict_version(self._table)
        if version == self._version:
            return True
        kept = {id(key): result for key, result in results_of(function)}
        if any(id(key) not in kept or kept[id(key)] is not result for key, result in self.expected):
            return False
        self._version = version
        return True

    def __tracemill_note__(self) -> str:
        return f"expects {len(self.expected)} results that are kept"
