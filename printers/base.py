"""The walk that all printers share: a trace as one Python function.

A printer's program always parses and computes the same; printers differ in comments, and in what they show of it. The
base prints no comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tracemill.compiler import torch_names
from tracemill.compiler.calling import signature_text
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Trace
from tracemill.compiler.tree import is_dataclass_instance
from tracemill.compiler.values import leaves, proxies
from tracemill.printers.literals import Literals

INDENT = "  "
WIDTH = 100


@dataclass(frozen=True)
class Code:
    """Generated code as a value: the text, and the objects that it needs in its globals.

    lines: for each bound symbol, the number (from 1) of the first line that it stands on.
    """

    source: str
    bound: dict[str, Any] = field(default_factory=dict)
    lines: tuple[int, ...] = ()


class Writer:
    """Writes the lines of bound symbols; what symbols with a form of their own use."""

    def __init__(self, trace: Trace) -> None:
        self.literals = Literals(trace.names)

    def value(self, value: Any) -> str:
        """The expression of a value."""
        return self.literals.value(value)

    def default(self, value: Any) -> str:
        """The expression of a parameter's default: a name for what can be written to, which is one object at all calls."""
        return self.literals.bind(value) if _is_mutable(value) else self.value(value)

    def bind(self, value: Any, name: str) -> None:
        """Makes `name`, which the trace has given to a value, stand for an object in the text's globals."""
        self.literals.define(name, value)

    def target(self, output: Any) -> str:
        """The left-hand side that receives an output; empty where there is nothing to receive."""
        if isinstance(output, Proxy):
            return output.name
        if isinstance(output, (tuple, list)):
            if not any(True for _ in proxies(output)):
                return ""
            return ", ".join(self._item(item) for item in output) + ","
        return ""

    def _item(self, output: Any) -> str:
        target = self.target(output)
        if not target:
            return "_"
        return f"({target})" if isinstance(output, (tuple, list)) else target

    def call(self, bsym: BoundSymbol) -> str:
        """The call expression of a bound symbol, its arguments one per line when they are long."""
        args = [self.broken(arg) for arg in bsym.args]
        args += [f"{name}={self.broken(value)}" for name, value in bsym.kwargs.items()]
        return self.function(bsym) + parenthesized(args)

    def broken(self, value: Any, depth: int = 1) -> str:
        """The expression of a value, the items of a long list or tuple one per line."""
        text = self.value(value)
        if len(text) <= WIDTH - 20 or type(value) not in (list, tuple):
            return text
        items = [self.broken(item, depth + 1) for item in value]
        return one_per_line(items, *("[]" if type(value) is list else "()"), depth=depth)

    def function(self, bsym: BoundSymbol) -> str:
        """The expression of the operation itself."""
        if bsym.sym.path is not None:
            return torch_names.expression(bsym.sym.path)
        return self.literals.bind(bsym.sym.impl, bsym.sym.name.replace(".", "_"), bsym.sym.note)


def parenthesized(items: Sequence[str]) -> str:
    """Items between parentheses: on one line, or one per line when they are long."""
    inline = f"({', '.join(items)})"
    if len(inline) <= WIDTH - 20 and "\n" not in inline:
        return inline
    return one_per_line(items)


def one_per_line(
    items: Sequence[str], opening: str = "(", closing: str = ")", depth: int = 0
) -> str:
    """Items between brackets, each on a line of its own."""
    inner = "".join(f"\n{INDENT * (depth + 2)}{item}," for item in items)
    return f"{opening}{inner}\n{INDENT * (depth + 1)}{closing}"


class Printer:
    """Prints a trace as Python. Subclasses override the comments, each a list of lines without `#`.

    `code` is the program that runs; `text` is what is shown, the program unless it is overridden.

    name: how the printer is asked for.
    """

    name: ClassVar[str] = ""
    decorated: ClassVar[bool] = False
    """Whether the function is decorated with the modes it runs under."""

    def header(self, trace: Trace) -> Iterable[str]:
        """Comments above the imports."""
        return ()

    def on_arguments(self, trace: Trace) -> Iterable[str]:
        """Comments below the `def` line."""
        return ()

    def before(
        self, bsym: BoundSymbol, previous: BoundSymbol | None, trace: Trace
    ) -> Iterable[str]:
        """Comments above a bound symbol's line; an empty one leaves a blank line."""
        return ()

    def beside(self, bsym: BoundSymbol, trace: Trace) -> str:
        """A comment at the end of a bound symbol's line."""
        return ""

    def after(self, bsym: BoundSymbol, trace: Trace, writer: Writer) -> Iterable[str]:
        """Comments below a bound symbol's line."""
        return ()

    def on_bound(self, name: str, note: str) -> Iterable[str]:
        """Comments about an object that is bound by name."""
        return ()

    # The walk

    def code(self, trace: Trace) -> Code:
        """The program, with what it needs to run."""
        writer = Writer(trace)
        body = [f"# {comment}" for comment in self.on_arguments(trace)]
        starts: list[int] = []
        previous: BoundSymbol | None = None
        for bsym in trace.bound_symbols:
            body.extend(
                f"# {comment}" if comment else "" for comment in self.before(bsym, previous, trace)
            )
            starts.append(len(body))
            body.extend(self._lines(bsym, trace, writer))
            body.extend(_comment(comment) for comment in self.after(bsym, trace, writer))
            previous = bsym
        body.extend(f"# {note}" for note in trace.notes if self.decorated)
        body.append(self._return(trace, writer))
        signature = self._signature(trace, writer)
        return self._joined([*self._top(trace, writer), signature], body, starts, writer)

    def _joined(self, top: list[str], body: list[str], starts: list[int], writer: Writer) -> Code:
        """The code of lines that may themselves be of several lines."""
        numbers: list[int] = []
        number = sum(text.count("\n") + 1 for text in top) + 1
        for text in body:
            numbers.append(number)
            number += text.count("\n") + 1
        source = "\n".join([*top, *(INDENT + text if text else "" for text in body)]) + "\n"
        return Code(source, writer.literals.bound, tuple(numbers[start] for start in starts))

    def text(self, trace: Trace) -> str:
        """What is shown of the trace: the program, unless a printer shows more than Python. What runs is `code`."""
        return self.code(trace).source

    def _lines(self, bsym: BoundSymbol, trace: Trace, writer: Writer) -> Iterator[str]:
        lines = bsym.sym.lines(bsym, writer)
        beside = self.beside(bsym, trace)
        for index, line in enumerate(lines):
            yield f"{line}  # {beside}" if beside and index == len(lines) - 1 else line

    def _return(self, trace: Trace, writer: Writer) -> str:
        return f"return {writer.broken(trace.output, depth=0)}"

    def _signature(self, trace: Trace, writer: Writer) -> str:
        if trace.signature is None:
            parameters = [proxy.name for proxy in trace.args]
        else:
            parameters = signature_text(trace.signature, writer.default).split(", ")
        return f"def {trace.name}{parenthesized(parameters)}:"

    def _top(self, trace: Trace, writer: Writer) -> Iterator[str]:
        for comment in self.header(trace):
            yield f"# {comment}"
        yield "import torch"
        yield from sorted(writer.literals.imports)
        for name, note in writer.literals.notes.items():
            yield from (f"# {comment}" for comment in self.on_bound(name, note))
        yield ""
        if self.decorated and trace.no_grad:
            yield "@torch.no_grad()"


def _is_mutable(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_mutable, value))
    return isinstance(value, (list, dict, set)) or is_dataclass_instance(value)


def _comment(text: str) -> str:
    """A comment line; one that begins with two spaces is a detail, indented before its mark."""
    detail = text.startswith(INDENT)
    return f"{INDENT}# {text[len(INDENT) :]}" if detail else f"# {text}"


def named(value: Any) -> list[Proxy]:
    """The distinct proxies in a value, in order."""
    return list(dict.fromkeys(leaf for leaf in leaves(value) if isinstance(leaf, Proxy)))
