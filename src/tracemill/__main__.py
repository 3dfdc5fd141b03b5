"""The command line: `python -m tracemill plugins`, and `python -m tracemill show module:function --input ...`."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tracemill.compiler.calling import CallForm
from tracemill.compiler.errors import TracemillError
from tracemill.compiler.ordering import passes_for
from tracemill.compiler.pass_base import Call, PassContext
from tracemill.compiler.pipeline import History, run
from tracemill.compiler.plugins import EXECUTORS, PRINTERS, Registered
from tracemill.compiler.specialise import Options
from tracemill.compiler.torch_internals import dtype_abbrs
from tracemill.compiler.trace import STAGES, Trace

ROLES = ("computation", "prologue", "backward", "epilogue")
TENSOR = re.compile(r"(?P<device>\S+) (?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]")


class UsageError(Exception):
    """Raised for an argument of the command line that means nothing; says what is wanted."""


# plugins


def plugins() -> str:
    """All stages with their passes in order, printers and executors, each with its distribution and one line."""
    passes = passes_for()
    lines: list[str] = []
    for stage in STAGES:
        lines.append(f"stage {stage}")
        lines += _table(registered for registered in passes if registered.item.stage == stage)
    for kind, registry in (("printers", PRINTERS), ("executors", EXECUTORS)):
        lines.append(kind)
        lines += _table(registry.registered().values())
    return "\n".join(lines)


def _table(items: Iterable[Registered[Any]]) -> list[str]:
    rows = [
        (item.item.name, item.distribution or item.plugin, _one_line(item.item)) for item in items
    ]
    if not rows:
        return ["  (none)"]
    widths = [max(len(row[n]) for row in rows) for n in range(2)]
    return [
        f"  {name.ljust(widths[0])}  {owner.ljust(widths[1])}  {line}".rstrip()
        for name, owner, line in rows
    ]


def _one_line(item: Any) -> str:
    text = inspect.getdoc(item) or ""
    return text.split("\n", 1)[0]


# show


def show(
    target: str, inputs: Sequence[str], stage: str, role: str, printer: str | None, grad: bool
) -> str:
    """The text of a program's trace as a stage leaves it, for inputs given by their types."""
    program = callable_at(target)
    values = [value_of(text, requires_grad=grad) for text in inputs]
    form = CallForm(program)
    try:
        bound = form.bind(*values)
    except TypeError as error:
        raise UsageError(f"{error}; give one --input for each argument") from error
    context = PassContext(Call(form, bound), executors=Options().resolved_executors())
    history = History()
    chosen = [
        registered
        for registered in passes_for()
        if STAGES.index(registered.item.stage) <= STAGES.index(stage)
    ]
    with torch.set_grad_enabled(grad):
        run(chosen, context, history)
    traces: list[Trace] = history.traces(role)
    if not traces:
        raise UsageError(f"this program has no {role}")
    return traces[-1].text(printer).rstrip("\n")


def callable_at(target: str) -> Callable[..., Any]:
    """What `module:name` or `module:object.attribute` names; a class of modules is instantiated."""
    module, _, path = target.partition(":")
    if not path:
        raise UsageError(f"{target!r} is not of the form module:function")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{target!r}: {error}") from error
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        found = found()
    if not callable(found):
        raise UsageError(f"{target!r} is a {type(found).__name__}, not a callable")
    return found


def value_of(text: str, *, requires_grad: bool = False) -> Any:
    """The value that a text stands for: zeros for `cpu f32[2, 3]`, else a Python literal.

    >>> value_of("cpu i64[2]"), value_of("[1, 2.5]")
    (tensor([0, 0]), [1, 2.5])
    """
    match = TENSOR.fullmatch(text.strip())
    if match is None:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError) as error:
            raise UsageError(
                f'{text!r} is neither a tensor type such as "cpu f32[2, 3]" nor a Python literal'
            ) from error
    dtypes = {short: dtype for dtype, short in dtype_abbrs.items()}
    if match["dtype"] not in dtypes:
        raise UsageError(f"{text!r}: unknown dtype; the known ones are {', '.join(sorted(dtypes))}")
    shape = [int(size) for size in match["shape"].split(",") if size.strip()]
    try:
        tensor = torch.zeros(shape, dtype=dtypes[match["dtype"]], device=match["device"])
    except RuntimeError as error:
        raise UsageError(f"{text!r}: {str(error).splitlines()[0]}") from error
    return tensor.requires_grad_(requires_grad and tensor.dtype.is_floating_point)


# The command line


def parser() -> argparse.ArgumentParser:
    """What the command line takes."""
    made = argparse.ArgumentParser(
        prog="python -m tracemill", description="See what tracemill does."
    )
    commands = made.add_subparsers(dest="command", required=True)
    commands.add_parser("plugins", help="list stages and passes in order, printers and executors")
    command = commands.add_parser("show", help="trace a function and print the trace of a stage")
    command.add_argument(
        "target", help="module:function, also of a module or an attribute of an object"
    )
    command.add_argument(
        "--input",
        action="append",
        default=[],
        help='one for each argument: "cpu f32[2, 3]" for a tensor, or a Python literal',
    )
    command.add_argument("--stage", choices=STAGES, default=STAGES[-1])
    command.add_argument("--trace", choices=ROLES, default=ROLES[0])
    command.add_argument("--printer", help="the name of a printer")
    command.add_argument(
        "--grad",
        action="store_true",
        help="with gradients: floating-point inputs require them; else it is traced under torch.no_grad()",
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        if options.command == "plugins":
            print(plugins())
        else:
            print(
                show(
                    options.target,
                    options.input,
                    options.stage,
                    options.trace,
                    options.printer,
                    options.grad,
                )
            )
    except (UsageError, TracemillError) as error:
        print(f"tracemill: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
