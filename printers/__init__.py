"""Printers: a trace as text. Each is a small class over the walk in `base`."""

from __future__ import annotations

from typing import Any

from tracemill.compiler import services


def names() -> list[str]:
    """The names of all printers."""
    return services.registries["printers"].names()


def get(name: str) -> Any:
    """The printer of that name; raises OptionError, with the known names, when there is none."""
    return services.registries["printers"].get(name)
