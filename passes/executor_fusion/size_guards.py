"""Size guards: the prologue checks what Python and PyTorch needed of the sizes that differ from call to call.

Before:

    def prologue(a):
      ...
      i0, i1, = a.shape
      return (a, i1)

After:

    def prologue(a):
      ...
      i0, i1, = a.shape
      (i0 % 2) == 0 or mismatch("model.py:7  if a.shape[0] % 2 == 0:")
      2 <= i0 or mismatch("model.py:5  def halve(a):")
      return (a, i1)

Backward formulas ask too, and so may passes and executors: this comes last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.guards import check
from tracemill.compiler.pass_base import PassContext, ProgramPass
from tracemill.compiler.proxy import NumberProxy, Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import SymbolicTensorProxy
from tracemill.compiler.symbolic_sizes import SymbolicSizes
from tracemill.compiler.trace import Program

_INEXACT = re.compile(r"(?<!/)/(?!/)|math|torch|float|int\(|trunc|round|\d\.\d|\*\* *-")
_NUMBER = r"\(?(?:tracemill_\d+_|-?[\d.]+(?:e[+-]?\d+)?)\)?"
_COMPARISON = re.compile(rf"{_NUMBER} (?:[<>]=?|[!=]=) {_NUMBER}")
_NO_NAN = re.compile(r"not .*isnan\((tracemill_\d+_)\)")
_TOKEN = re.compile(r"tracemill_(\d+)_")


@dataclass(frozen=True)
class SizeGuards(ProgramPass):
    """Adds the checks of symbolic sizes to the prologue."""

    name: ClassVar[str] = "size_guards"
    stage: ClassVar[str] = "executor_fusion"
    after: ClassVar[tuple[str, ...]] = ("delete_last_used",)

    def apply(self, program: Program, context: PassContext) -> Program:
        """The program with its prologue checked; one whose sizes are constants stays as it is."""
        sizes = context.sizes
        if not isinstance(sizes, SymbolicSizes) or not sizes.inputs or sizes.checked is not None:
            return program
        prologue = program.prologue
        lines = [*prologue.bound_symbols, *_guards(sizes)]
        sizes.checked = len(sizes.env.guards)
        return program.replace(prologue=prologue.replace(bound_symbols=lines))


def _guards(sizes: SymbolicSizes) -> Iterator[BoundSymbol]:
    references = _References(sizes)
    placeholders: list[Any] = [
        sizes.model(value) if isinstance(value, TensorProxy) else sizes.given(value)
        for value, _ in sizes.inputs
    ]
    produced, described = sizes.env.produce_guards_verbose(
        placeholders,
        [source for _, source in sizes.inputs],
        source_ref=references,
        ignore_static=False,  # a size that was specialised, which the check of metadata does not see
    )
    for text, verbose in zip(produced.exprs, described.exprs, strict=True):
        if not references.are_fixed(text):
            yield references.guard(_NO_NAN.sub(r"\1 == \1", text), _asked_by(verbose, sizes))
    for value, _ in sizes.inputs if sizes.reads_offsets else ():
        if isinstance(value, TensorProxy):
            subject = f"{value.name}: where it begins"
            yield check(subject, "{}.storage_offset() == {}", value, value.storage_offset)


def _asked_by(verbose: str, sizes: SymbolicSizes) -> str:
    """The user's lines that asked for a guard, which PyTorch names beside it."""
    lines = verbose.partition("  # ")[2].removesuffix("()").strip().split(" () and ")
    unknown = ("please file a bug", "implicit guard")
    known = [line for line in lines if not any(words in line for words in unknown)]
    return " and ".join(dict.fromkeys(known)) or sizes.described()


class _References:
    """The values of the prologue that guards are on, each with a path from it; called for each source."""

    def __init__(self, sizes: SymbolicSizes) -> None:
        self._by_source = {source: value for value, source in sizes.inputs}
        self._named_by: dict[Any, tuple[Proxy, int]] = {}
        for value, _ in sizes.inputs:
            for dim, size in enumerate(value.sizes if isinstance(value, TensorProxy) else ()):
                self._named_by.setdefault(size, (value, dim))
        self._operands: list[Proxy] = []
        self._suffixes: list[str] = []
        self._fixed: set[str] = set()

    def __call__(self, source: Any) -> str:
        operand, suffix, is_fixed = self._reference(source)
        index = str(len(self._operands))
        if is_fixed:
            self._fixed.add(index)
        self._operands.append(operand)
        self._suffixes.append(suffix)
        return f"tracemill_{index}_"

    def _reference(self, source: Any) -> tuple[Proxy, str, bool]:
        """A source as a value of the prologue and a path from it; whether the check of metadata covers it."""
        proxy = self._by_source.get(source)
        if isinstance(proxy, NumberProxy):
            return proxy, "", False
        proxy = self._by_source.get(getattr(source, "base", None))
        if not isinstance(proxy, SymbolicTensorProxy):
            raise UnsupportedError(f"a guard is on {source.name}, which is no size of an input")
        if source.prop is internals.TensorProperty.STORAGE_OFFSET:
            return proxy, ".storage_offset()", True
        if source.prop is internals.TensorProperty.STRIDE:
            is_fixed = type(proxy.layout.stride[source.idx]) is int
            return proxy, f".stride({source.idx})", is_fixed
        size = proxy.sizes[source.idx]
        if isinstance(size, Proxy) and self._named_by[size] == (proxy, source.idx):
            return size, "", False
        return proxy, f".shape[{source.idx}]", type(proxy.layout.shape[source.idx]) is int

    def are_fixed(self, text: str) -> bool:
        """Whether the check of metadata covers all that a guard is on."""
        return self._fixed.issuperset(_TOKEN.findall(text))

    def guard(self, text: str, line: str) -> BoundSymbol:
        """The check of a guard that PyTorch wrote on sources, asked for by a line of the user's."""
        used: dict[tuple[Proxy, str], int] = {}

        def place(match: re.Match[str]) -> str:
            source = self._operands[int(match[1])], self._suffixes[int(match[1])]
            return f"{{{used.setdefault(source, len(used))}}}{source[1]}"

        condition = _TOKEN.sub(place, text)
        if not _COMPARISON.fullmatch(text) and _INEXACT.search(
            text
        ):  # floats in guards are not Python's: what is in it is what it is now
            same = [f"{{{at}}}{source[1]} == {_now(*source)!r}" for source, at in used.items()]
            condition = " and ".join(same)
        return check(line, condition, *(operand for operand, _ in used))


def _now(operand: Proxy, suffix: str) -> Any:
    """What a source of the prologue is at the call that is traced."""
    if isinstance(operand, NumberProxy):
        return operand.value
    assert isinstance(operand, TensorProxy)
    table: Sequence[int] = operand.meta.stride if "stride" in suffix else operand.meta.shape
    return table[int(re.findall(r"\d+", suffix)[0])]
