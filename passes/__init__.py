"""Passes, one per file: each takes a trace (or a program) and gives a new one."""

from __future__ import annotations

from typing import Any

from tracemill.compiler import services


def names() -> list[str]:
    """The names of all passes."""
    return services.registries["passes"].names()


def get(name: str) -> Any:
    """The pass of that name; raises OptionError, with the known names, when there is none."""
    return services.registries["passes"].get(name)
