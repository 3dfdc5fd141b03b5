"""Marks: which sizes and numbers of a call's arguments differ from call to call, as `jit(..., cache=...)` says it.

    cache="symbolic values"                                  # every size of every tensor among the arguments
    cache={"x": {0: "batch"}}                                # the first size of x, by that name
    cache={"x": {0: "batch"}, "y": {0: "batch"}}             # two sizes that are always equal
    cache={"x": {1: torch.export.Dim("length", max=512)}}    # up to 512; a longer x has a program of its own
    cache={"n": "n", "*": "symbolic values"}                 # the number n, and the sizes of all other arguments
    cache={"index": (..., slice(None, "stop", None))}        # a number inside of an argument

Dims are those of `torch.export`: a name, a `Dim`, `Dim.AUTO` for one without a name, None for a constant.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracemill.compiler import tree
from tracemill.compiler.calling import CallForm
from tracemill.compiler.errors import OptionError

P = inspect.Parameter
REST = "*"
SIZES = "symbolic values"
_NAMED = (P.POSITIONAL_ONLY, P.POSITIONAL_OR_KEYWORD, P.KEYWORD_ONLY)


@dataclass(frozen=True)
class Mark:
    """A size or number that differs from call to call: its name, and the range in which it does.

    least, most: both included; None for no bound. What lies outside is a constant.
    """

    name: str = ""
    least: int | None = None
    most: int | None = None

    def covers(self, value: int | float) -> bool:
        """Whether a value lies in the range."""
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)


Tree = Any
"""What a value's marks are: None (a constant), SIZES (all sizes in it), a Mark (a number), a dict from a tensor's
dimensions to Marks, or a list with a tree for each item of a collection."""


class Marks:
    """The marks of a callable's arguments; raises OptionError for what is no mark.

    asked: `jit`'s option: the name of a cache mode, or a mapping from parameters.
    """

    def __init__(self, asked: str | Mapping[str, Any]) -> None:
        mapping = {REST: asked} if isinstance(asked, str) else asked
        self._asked = {name: mark for name, mark in mapping.items() if name != REST}
        rest = mapping.get(REST, "constant values")
        if not isinstance(asked, str) and rest not in ("constant values", SIZES):
            raise OptionError(f'cache["*"] is {rest!r}; it can be "constant values" or {SIZES!r}')
        self._rest = SIZES if rest == SIZES else None

    @property
    def any(self) -> bool:
        """Whether anything is marked."""
        return bool(self._asked or self._rest)

    def check_names(self, form: CallForm) -> None:
        """Raises OptionError for marks of parameters that a callable does not have."""
        known = [parameter.name for parameter in form.parameters if parameter.kind in _NAMED]
        unknown = [name for name in self._asked if name not in known]
        if unknown and len(known) == len(form.parameters):
            raise OptionError(_unknown(unknown, known))

    def of(self, form: CallForm, values: Sequence[Any]) -> list[Tree]:
        """The marks of a call's arguments, one tree for each parameter."""
        if not self.any:
            return [None for _ in values]
        pairs = list(zip(form.parameters, values, strict=True))
        found = [self._of(parameter, value, form) for parameter, value in pairs]
        if self._asked:
            known = [name for pair in pairs for name in _names(*pair, form)]
            unknown = [name for name in self._asked if name not in known]
            if unknown:
                raise OptionError(_unknown(unknown, known))
        return found

    def _of(self, parameter: P, value: Any, form: CallForm) -> Tree:
        names = list(_names(parameter, value, form))
        if parameter.kind in _NAMED:
            return self._one(names[0], value)
        items = value.values() if isinstance(value, dict) else value
        trees = [self._one(name, item) for name, item in zip(names, items, strict=False)]
        return [*trees, *(self._rest for _ in list(items)[len(trees) :])]

    def _one(self, name: str, value: Any) -> Tree:
        return _tree(self._asked[name], value, name) if name in self._asked else self._rest


def _names(parameter: P, value: Any, form: CallForm) -> Iterator[str]:
    """What the arguments of a parameter are called."""
    if parameter.kind in _NAMED:
        yield parameter.name
        return
    names = [name.removeprefix(".") for name in form.item_names(parameter, value)]
    yield from names[: len(value)]


def _unknown(names: Sequence[str], known: Sequence[str]) -> str:
    return (
        f"cache marks {', '.join(map(repr, names))}, which is no argument; the arguments are "
        f"{', '.join(map(repr, known)) or 'none'}"
    )


def _tree(asked: Any, value: Any, where: str) -> Tree:
    """The marks of a value, as asked for it."""
    if asked is None or asked is ...:
        return None
    if asked == SIZES:
        return SIZES
    if isinstance(value, torch.Tensor):
        return _dims(asked, value, where)
    node = tree.node_of(value)
    if node is not None:
        return _items(asked, node, where)
    if type(value) in (int, float):
        return _mark(asked, where)
    if value is None:
        return None
    raise OptionError(
        f"cache marks {where}, a {type(value).__name__}; tensors' dimensions, ints and floats can differ from call to call"
    )


def _dims(asked: Any, tensor: torch.Tensor, where: str) -> Tree:
    count = tensor.dim()
    if not isinstance(asked, (Mapping, tuple, list)):
        mark = _mark(asked, where)
        if mark is not None and mark.name:
            raise OptionError(
                f"cache gives all sizes of {where} one name; use {{0: {mark.name!r}}}"
            )
        return SIZES if mark is not None else None
    dims = dict(asked) if isinstance(asked, Mapping) else dict(enumerate(asked))
    wrong = [dim for dim in dims if type(dim) is not int or not -count <= dim < count]
    if wrong:
        known = f"dimensions 0 to {count - 1}" if count else "no dimensions"
        raise OptionError(f"cache marks dimension {wrong[0]!r} of {where}, which has {known}")
    return {dim % count: _mark(mark, f"{where}, dimension {dim}") for dim, mark in dims.items()}


def _items(asked: Any, node: tree.Node, where: str) -> Tree:
    if isinstance(asked, slice):
        asked = {"start": asked.start, "stop": asked.stop, "step": asked.step}
    if isinstance(asked, (tuple, list)):
        asked = dict(enumerate(asked))
    if not isinstance(asked, Mapping):
        raise OptionError(
            f"cache marks {where}, a collection, by {asked!r}; it takes a mark for each item"
        )
    known = list(node.entries)
    unknown = [entry for entry in asked if entry not in known]
    if unknown:
        raise OptionError(
            f"cache marks {unknown[0]!r} of {where}, which has {', '.join(map(repr, known))}"
        )
    return [
        _tree(asked.get(entry), child, f"{where}[{entry!r}]")
        for entry, child in zip(known, node.children, strict=True)
    ]


def _mark(asked: Any, where: str) -> Mark | None:
    Dim = torch.export.Dim
    if asked is None or asked is Dim.STATIC:
        return None
    if isinstance(asked, str):
        return Mark(asked)
    if isinstance(asked, (Dim, type(Dim.AUTO))):
        name = asked.__name__ if isinstance(asked, Dim) else ""
        return Mark(name, _bound(asked.min), _bound(asked.max))
    raise OptionError(
        f"cache marks {where} by {asked!r}; a mark is a name, a torch.export.Dim, Dim.AUTO or None"
    )


def _bound(value: Any) -> int | None:
    return value if type(value) is int else None


def items_of(marks: Tree, count: int) -> list[Tree]:
    """The trees of a collection's items."""
    return marks if isinstance(marks, list) else [SIZES if marks == SIZES else None] * count
