"""What a backward finds of values that the program wrote to after the line that it differentiates."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from tracemill.compiler import prims
from tracemill.compiler.errors import MutationError
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol, Overwritten
from tracemill.passes.autograd_split.links import at

_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)


def read(
    bsym: BoundSymbol,
    lines: Sequence[BoundSymbol],
    known: Set[Proxy],
    saved: Collection[Proxy] | None,
) -> list[BoundSymbol]:
    """The backward's lines for `bsym`, with what they find in the end in place of what was.

    known: the values of the program. saved: those that eager keeps for the lines, None for those that the lines read.
    Where version counters tell of one of these, the lines begin with eager's error. Raises MutationError where what a
    value holds in the end is not at hand.
    """
    given = {proxy for line in lines for proxy in line.inputs}
    found: list[BoundSymbol] = list(lines)
    for each in bsym.overwritten:
        if each.seen:
            if each.value in (given if saved is None else saved):
                return [_failure(bsym, each), *found]
            if each.value in given:
                raise MutationError(
                    f"{_where(each)} writes to what the backward of {bsym.sym.name}{at(bsym)} reads and does not count the "
                    "writes to; write to a clone, or use the functional form"
                )
            continue
        if each.value not in given:
            continue
        if each.now not in known:
            raise MutationError(
                f"{_where(each)} writes by .data to what the backward of {bsym.sym.name}{at(bsym)} reads; write to a "
                "clone, or use the functional form"
            )
        found = [line.substitute({each.value: each.now}) for line in found]
    return found


def _failure(bsym: BoundSymbol, each: Overwritten) -> BoundSymbol:
    kind = f"{list(each.value.shape)}, which {bsym.sym.name}{at(bsym)} read or made, is written to at {_where(each)}"
    return prims.FAILURE.bind(f"{_MODIFIED}: a tensor of shape {kind}", output=None).from_bsym(
        source=bsym.source, module_path=bsym.module_path, differentiates=bsym
    )


def _where(each: Overwritten) -> str:
    return "a line" if each.where is None else f"{each.where.file}:{each.where.line}"
