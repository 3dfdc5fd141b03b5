"""Leaks: stand-ins that are alive after the trace, because the program stored them where no view of its state reaches.

What the program stored in attributes, containers, globals or closures became a line of the epilogue; what is left, such
as the cache of a `functools.lru_cache`, could not be filled at each call.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from types import CellType, FrameType, ModuleType
from typing import Any

from tracemill.compiler.errors import MutationError
from tracemill.passes.interpretation.stand_in import TracedTensor


def refuse_leaks(stand_ins: Iterable[weakref.ref[TracedTensor]]) -> None:
    """Raises MutationError, naming the holder, where one of these is still alive."""
    alive = [ref for ref in stand_ins if ref() is not None]
    for generation in range(3):  # the young ones first: looking at all objects takes long
        if not alive:
            return
        gc.collect(generation)
        alive = [ref for ref in alive if ref() is not None]
    for ref in alive:
        leaked = ref()
        if leaked is not None:
            raise MutationError(
                f"the program keeps a tensor of the call, {leaked!r}, in {_holder(leaked)}, which tracemill cannot "
                "fill at each call; keep it in an attribute, or return it"
            )


def _holder(leaked: Any, own: tuple[int, ...] = ()) -> str:
    """What holds an object, in words; `own` are the ids of the lists of this search."""
    referrers = gc.get_referrers(leaked)
    own = (*own, id(referrers))
    for referrer in referrers:
        if isinstance(referrer, FrameType) or id(referrer) in own:
            continue
        if isinstance(referrer, CellType):
            return "the closure of a function"
        if isinstance(referrer, dict):
            return _of_dict(referrer, leaked)
        if type(referrer) in (tuple, list, set) and len(own) < 4:
            return f"a {type(referrer).__name__} in {_holder(referrer, own)}"
        return f"a {type(referrer).__module__}.{type(referrer).__qualname__}"
    return "an object of a class that is written in C, such as a functools.lru_cache"


def _of_dict(table: dict[Any, Any], leaked: Any) -> str:
    key = next((key for key, value in table.items() if value is leaked), None)
    if key is None:
        return "the keys of a dict, such as that of a functools.lru_cache"
    for owner in gc.get_referrers(table):
        if getattr(owner, "__dict__", None) is table:
            kind = "module" if isinstance(owner, ModuleType) else type(owner).__qualname__
            return f"the attribute {key!r} of a {kind}"
    return f"a dict, under {key!r}"
