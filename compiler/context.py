"""The recording that is under way in this thread, if any."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol


class Recorder(Protocol):
    """What `tracectx` puts in force: calls on proxies are recorded, new proxies get names."""

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Records a call of a torch function and returns its outputs as proxies."""
        ...

    def name(self, wanted: str | None, prefix: str) -> str:
        """A name that is free in the trace under construction."""
        ...


recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
