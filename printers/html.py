"""html: a trace as a piece of a page, for notebooks: coloured, and telling more where the pointer is.

A value shows its type and the user's line that made it, and all its uses light up. An operation shows the user's line, the
module and the ATen operations that it does; in a backward it links to the forward line that it differentiates. The page
needs no scripts, and nothing from elsewhere. Without Pygments it has all of this but the colours of Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import ClassVar, NamedTuple

from tracemill.compiler import prims
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace
from tracemill.printers.base import Code, Printer, Writer
from tracemill.printers.default import DefaultPrinter, new_values
from tracemill.printers.html_style import STYLE, lit_up


class HtmlPrinter(Printer):
    """The program of another printer as HTML, with types, source lines and links.

    base: the printer whose text is shown, and runs; the default one unless given.
    """

    name: ClassVar[str] = "html"

    def __init__(self, base: Printer | None = None) -> None:
        self.base = base or DefaultPrinter()

    def code(self, trace: Trace) -> Code:
        """The program, as `base` writes it."""
        return self.base.code(trace)

    def text(self, trace: Trace) -> str:
        """The piece of a page, in ASCII."""
        code = self.code(trace)
        values = list(trace.values())
        marks = _Marks(trace, code, values)
        body = render(code.source, [*marks.lines(), *marks.names()])
        return page(f"<pre>{body}</pre>", len(values))


def page(body: str, values: int = 0) -> str:
    """HTML under tracemill's style sheet, in ASCII; values: how many of them light up."""
    text = f'<style>\n{STYLE}{lit_up(values)}</style>\n<div class="tracemill">{body}</div>\n'
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


# Text with tags in it


class Mark(NamedTuple):
    """Characters of a text that stand in an element; elements nest."""

    start: int
    end: int
    opening: str
    closing: str


def render(source: str, marks: Sequence[Mark]) -> str:
    """Python as HTML: everything escaped, coloured, and with elements around what is marked."""
    opening: dict[int, list[str]] = {}
    closing: dict[int, list[str]] = {}
    for mark in sorted(marks, key=lambda mark: mark.start - mark.end):  # the outer ones first
        opening.setdefault(mark.start, []).append(mark.opening)
        closing.setdefault(mark.end, []).insert(0, mark.closing)
    tokens = dict(_tokens(source))
    cuts = sorted({0, len(source), *tokens, *opening, *closing})
    pieces: list[str] = []
    css = ""
    for start, end in pairwise(cuts):
        css = tokens.get(start, css)
        text = escape(source[start:end])
        pieces += [*closing.get(start, ()), *opening.get(start, ())]
        pieces.append(f'<span class="{css}">{text}</span>' if css and text.strip() else text)
    return "".join([*pieces, *closing.get(len(source), ())])


def _tokens(source: str) -> Iterator[tuple[int, str]]:
    """Where each token of Python begins, and the class of its colour."""
    try:  # optional, and slow to import
        from pygments.lexers.python import PythonLexer
        from pygments.token import Comment, Keyword, Number, Operator, String
    except ImportError:
        return
    classes = (
        (Comment, "c"),
        (Keyword, "k"),
        (Operator.Word, "k"),
        (String, "s"),
        (Number, "m"),
    )
    for offset, kind, _ in PythonLexer().get_tokens_unprocessed(source):
        yield offset, next((css for family, css in classes if kind in family), "")


class _Marks:
    """The elements of a trace's text: its lines, the names of its values, and its operations."""

    def __init__(self, trace: Trace, code: Code, values: Sequence[Proxy]) -> None:
        self._code = code
        self._writer = Writer(trace)
        self._classes = {value.name: (n, value) for n, value in enumerate(values)}
        self._makers = {
            value: bsym for bsym in reversed(trace.bound_symbols) for value in new_values(bsym)
        }
        self._at = dict(zip(code.lines, trace.bound_symbols, strict=False))
        self._texts = code.source.split("\n")
        self._starts = [0]
        for text in self._texts:
            self._starts.append(self._starts[-1] + len(text) + 1)

    def lines(self) -> Iterator[Mark]:
        """The lines of bound symbols, with the places that links lead to."""
        for number, bsym in self._at.items():
            text = self._texts[number - 1]
            start = self._starts[number - 1] + len(text) - len(text.lstrip())
            end = self._starts[number] - 1
            css = "line del" if bsym.sym is prims.DELETE else "line"
            places = "".join(f'<span id="{escape(place)}"></span>' for place in _places(bsym))
            if start < end:
                yield Mark(start, end, f'<span class="{css}">{places}', "</span>")

    def names(self) -> Iterator[Mark]:
        """Each name of a value, and each operation that is called."""
        for node in ast.walk(ast.parse(self._code.source)):
            if isinstance(node, (ast.Name, ast.arg)):
                name = node.id if isinstance(node, ast.Name) else node.arg
                known = self._classes.get(name)
                if known is not None:
                    start = self._offset(node.lineno, node.col_offset)
                    yield self._value(start, start + len(name), *known)
            elif isinstance(node, (ast.Assign, ast.Expr)) and isinstance(node.value, ast.Call):
                bsym = self._at.get(node.lineno)
                function = node.value.func
                names = {leaf.id for leaf in ast.walk(function) if isinstance(leaf, ast.Name)}
                if bsym is not None and not names & self._classes.keys():
                    yield self._operation(function, bsym)

    def _value(self, start: int, end: int, number: int, value: Proxy) -> Mark:
        tip = [f'{value.name}: "{value.type_string}"']
        maker = self._makers.get(value)
        if maker is not None:
            tip += _origin(maker)
        return Mark(
            start, end, f'<span class="value v{number}" data-tip="{_attribute(tip)}">', "</span>"
        )

    def _operation(self, function: ast.expr, bsym: BoundSymbol) -> Mark:
        start = self._offset(function.lineno, function.col_offset)
        end = self._offset(function.end_lineno or 0, function.end_col_offset or 0)
        tip = [*_origin(bsym)]
        tip += [line for inner in bsym.subsymbols for line in inner.sym.lines(inner, self._writer)]
        forward = _differentiated(bsym)
        if forward is not None:
            tip.insert(0, f"differentiates {' '.join(forward.sym.lines(forward, self._writer))}")
        about = f' data-tip="{_attribute(tip)}"' if tip else ""
        if forward is None or not _place(forward):
            return Mark(start, end, f'<span class="operation"{about}>', "</span>")
        opening = f'<a class="operation" href="#{escape(_place(forward))}"{about}>'
        return Mark(start, end, opening, "</a>")

    def _offset(self, line: int, column: int) -> int:
        """Where a place is that `ast` gives: a line from 1, and bytes of UTF-8."""
        text = self._texts[line - 1].encode()
        return self._starts[line - 1] + len(text[:column].decode())


def _attribute(lines: Sequence[str]) -> str:
    return escape("\n".join(lines)).replace("\n", "&#10;")


def _origin(bsym: BoundSymbol) -> Iterator[str]:
    if bsym.source is not None:
        yield f"{bsym.source}  {bsym.source.text}"
    if bsym.module_path:
        yield f"module {bsym.module_path}"


def _differentiated(bsym: BoundSymbol) -> BoundSymbol | None:
    """The forward line that a line differentiates; the first one of a region."""
    lines = (bsym, *(bsym.subsymbols if bsym.source is None else ()))
    return next((line.differentiates for line in lines if line.differentiates is not None), None)


def _places(bsym: BoundSymbol) -> Iterator[str]:
    """What links to a forward line name, and those to each line of a region; only what gradients flow to is linked to."""
    if _differentiated(bsym) is None:
        for line in [bsym] if bsym.source is not None else bsym.subsymbols:
            if any(getattr(value, "requires_grad", False) for value in line.outputs):
                yield from filter(None, [_place(line)])


def _place(bsym: BoundSymbol) -> str:
    """What a link to a line is made of: the user's line and the first value that it makes; the same in all stages."""
    made = new_values(bsym)
    if bsym.source is None or not made:
        return ""
    return f"tracemill-{bsym.source}-{made[0].name}".replace(" ", "-")
