"""minimal: the program and nothing else."""

from __future__ import annotations

from typing import ClassVar

from tracemill.printers.base import Printer


class MinimalPrinter(Printer):
    """The program alone, without comments."""

    name: ClassVar[str] = "minimal"
