"""diff: two stages of one program side by side, with the operations that came, went and changed marked."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from itertools import pairwise, zip_longest
from typing import NamedTuple

from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace
from tracemill.printers.base import INDENT
from tracemill.printers.default import new_values
from tracemill.printers.html import Mark, page, render
from tracemill.printers.minimal import MinimalPrinter

SIGNS = {"same": " ", "removed": "-", "added": "+", "changed": "~"}


class Row(NamedTuple):
    """A line of the comparison: `kind` is "same", "removed", "added" or "changed"; a side that has nothing is empty."""

    kind: str
    before: str
    after: str


@dataclass(frozen=True, repr=False)
class Difference:
    """Two traces side by side; prints as a table of two columns, and as a table of a page in notebooks.

    rows: the signature, the operations in order, and what is returned.
    """

    before: Trace
    after: Trace
    rows: tuple[Row, ...]

    def text(self, width: int = 160) -> str:
        """The table, at most `width` characters wide: `-` marks what went, `+` what came, `~` what changed."""
        most = max(20, (width - 7) // 2)
        pairs = [
            (row.kind, _wrapped(row.before, most), _wrapped(row.after, most)) for row in self.rows
        ]
        heads = (_title(self.before), _title(self.after))
        column = max(len(heads[0]), *(len(line) for _, old, _ in pairs for line in old), 0)
        lines = [f"  {heads[0].ljust(column)} | {heads[1]}"]
        for kind, old, new in pairs:
            for left, right in zip_longest(old, new, fillvalue=""):
                lines.append(f"{SIGNS[kind]} {left.ljust(column)} | {right}".rstrip())
        return "\n".join([*lines, self.summary])

    @property
    def summary(self) -> str:
        """How many lines there are of each kind."""
        counts = Counter(row.kind for row in self.rows)
        return ", ".join(f"{counts[kind]} {kind}" for kind in SIGNS)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{escape(_title(trace))}</th>" for trace in (self.before, self.after))
        rows = "".join(
            f'<tr class="{row.kind}"><td>{old}</td><td>{new}</td></tr>'
            for row in self.rows
            for old, new in [_cells(row)]
        )
        table = f"<table><tr>{heads}</tr>{rows}</table>"
        return page(f'{table}<div class="summary">{self.summary}</div>')


def diff(before: Trace, after: Trace) -> Difference:
    """Compares two traces, such as two of `last_traces`, operation by operation; the result prints side by side.

    Comments do not count.

    >>> import torch
    >>> old = Trace("computation")
    >>> print(diff(old, old.replace(output=1)))
      by hand            | by hand
      def computation(): | def computation():
    ~   return None      |   return 1
    1 same, 0 removed, 0 added, 1 changed
    """
    old, new = _lines(before), _lines(after)
    keys = (_Line.by_text, _Line.by_value, _Line.by_operation)
    rows = [
        Row(_kind(left, right), left.text if left else "", right.text if right else "")
        for left, right in _aligned(old, new, keys)
    ]
    return Difference(before, after, tuple(rows))


# Which line of the one is which of the other


@dataclass(frozen=True)
class _Line:
    """The text of a bound symbol, or of the signature or the return, which have none."""

    text: str
    bsym: BoundSymbol | None
    role: str

    def by_text(self) -> Hashable:
        return self.text

    def by_value(self) -> Hashable:
        made = [] if self.bsym is None else new_values(self.bsym)
        return made[0].name if made else (self.role,)

    def by_operation(self) -> Hashable:
        return self.role


def _lines(trace: Trace) -> list[_Line]:
    """The signature, each bound symbol and the return, each with the lines that it stands on."""
    code = MinimalPrinter().code(trace)
    texts = code.source.splitlines()
    first = next(n for n, text in enumerate(texts) if text.startswith("def "))
    last = max(n for n, text in enumerate(texts) if text.startswith(f"{INDENT}return "))
    body = [*(number - 1 for number in code.lines), last]
    signature = _Line("\n".join(texts[first : body[0]]), None, "def")
    lines = [
        _Line("\n".join(texts[start:end]), bsym, bsym.sym.name)
        for bsym, (start, end) in zip(trace.bound_symbols, pairwise(body), strict=True)
        if start < end
    ]
    return [signature, *lines, _Line("\n".join(texts[last:]), None, "return")]


def _aligned(
    old: Sequence[_Line], new: Sequence[_Line], keys: Sequence[Callable[[_Line], Hashable]]
) -> Iterator[tuple[_Line | None, _Line | None]]:
    """Pairs of lines that are equal by the first key; what is between them, by the next ones; alone what is left."""
    if not keys or not old or not new:
        yield from ((line, None) for line in old)
        yield from ((None, line) for line in new)
        return
    key, *rest = keys
    matcher = SequenceMatcher(None, [*map(key, old)], [*map(key, new)], autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(old[i:j], new[k:m], strict=True)
        else:
            yield from _aligned(old[i:j], new[k:m], rest)


def _kind(old: _Line | None, new: _Line | None) -> str:
    if old is None:
        return "added"
    if new is None:
        return "removed"
    return "same" if old.text == new.text else "changed"


# Text


def _title(trace: Trace) -> str:
    return f"{trace.stage}: {trace.constructed_by}" if trace.stage else "by hand"


def _wrapped(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2 * len(INDENT))
        wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_on_hyphens=False)
        lines += wrapper.wrap(line)
    return lines


def _cells(row: Row) -> tuple[str, str]:
    """A row's two texts as HTML, with the words that changed marked."""
    if row.kind != "changed":
        return render(row.before, ()), render(row.after, ())
    old, new = ([*re.finditer(r"\w+|\s+|.", text)] for text in (row.before, row.after))
    marks: tuple[list[Mark], list[Mark]] = ([], [])
    words = SequenceMatcher(None, [w[0] for w in old], [w[0] for w in new], autojunk=False)
    for tag, i, j, k, m in words.get_opcodes():
        for found, start, end, into in ((old, i, j, marks[0]), (new, k, m, marks[1])):
            if tag != "equal" and start < end:
                into.append(Mark(found[start].start(), found[end - 1].end(), "<mark>", "</mark>"))
    return render(row.before, marks[0]), render(row.after, marks[1])
