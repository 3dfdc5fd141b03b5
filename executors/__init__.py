"""Executors: which bound symbols they can run, and how."""

from __future__ import annotations

from typing import Any

from tracemill.compiler import services


def names() -> list[str]:
    """The names of all executors."""
    return services.registries["executors"].names()


def get(name: str) -> Any:
    """The executor of that name; raises OptionError, with the known names, when there is none."""
    return services.registries["executors"].get(name)
