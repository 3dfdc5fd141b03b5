"""The report of a compilation: what each pass did and cost, as a table that prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from tracemill.compiler.pipeline import Step


@dataclass(frozen=True)
class PassReport:
    """What one pass did.

    stage, name: of the pass.
    seconds: wall time.
    symbols_before, symbols_after: bound symbols of all traces of the program.
    saved_bytes: the memory that the computation keeps for the backward beyond its inputs, each storage once; None without
    a backward.
    facts: what the pass itself says of its work.
    """

    stage: str
    name: str
    seconds: float
    symbols_before: int
    symbols_after: int
    saved_bytes: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, step: Step) -> PassReport:
        """The report of a step."""
        return cls(
            step.stage,
            step.name,
            step.seconds,
            *step.symbols,
            step.saved_bytes,
            step.facts,
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        return (
            self.stage,
            self.name,
            f"{self.seconds * 1e3:.2f} ms",
            str(self.symbols_before),
            str(self.symbols_after),
            "" if self.saved_bytes is None else f"{self.saved_bytes:,}",
            ", ".join(f"{name} {value}" for name, value in self.facts.items()),
        )


class Report(tuple[PassReport, ...]):
    """The reports of all passes, in order; prints as a table."""

    __slots__ = ()

    @property
    def table(self) -> list[tuple[str, ...]]:
        """The heads of the columns, then a row for each pass; columns that are empty throughout are left out."""
        heads = ("stage", "pass", "time", "symbols before", "after", "saved bytes", "facts")
        rows = [heads, *(report.cells for report in self)]
        filled = [n for n in range(len(heads)) if any(row[n] for row in rows[1:])]
        return [tuple(row[n] for n in filled) for row in rows]

    def __repr__(self) -> str:
        rows = self.table
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        numbers = {n for n, head in enumerate(rows[0]) if head not in ("stage", "pass", "facts")}
        return "\n".join(
            "  ".join(
                cell.rjust(width) if n in numbers else cell.ljust(width)
                for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )

    def _repr_html_(self) -> str:
        heads, *rows = self.table
        return f"<table>{_html_row('th', heads)}{''.join(_html_row('td', row) for row in rows)}</table>"


def _html_row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
