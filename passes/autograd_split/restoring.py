"""Restoring: values that the forward did not save are computed again in the backward, each before its first use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.symbol import BoundSymbol


def producers(lines: Iterable[BoundSymbol]) -> dict[Proxy, BoundSymbol]:
    """The line that makes each value."""
    return {out: bsym for bsym in lines for out in bsym.made}


def restored(
    lines: Sequence[BoundSymbol],
    gradients: Sequence[Proxy | None],
    made_by: dict[Proxy, BoundSymbol],
    saved: Iterable[Proxy],
) -> list[BoundSymbol]:
    """The backward's lines with those of the forward put in that make what was not saved.

    made_by: the forward's line for each of its values. Raises UnsupportedError for a value that cannot be made again.
    """
    known = set(saved)
    result: list[BoundSymbol] = []
    for bsym in lines:
        for proxy in bsym.inputs:
            result += _making(proxy, made_by, known)
        result.append(bsym)
        known.update(bsym.outputs)
    for gradient in gradients:
        if gradient is not None:
            result += _making(gradient, made_by, known)
    return result


def _making(
    wanted: Proxy, made_by: dict[Proxy, BoundSymbol], known: set[Proxy]
) -> Iterator[BoundSymbol]:
    """The lines, in order, that make a value; what they make becomes `known`."""
    stack = [wanted]
    while stack:
        bsym = made_by.get(stack[-1])
        if bsym is None or stack[-1] in known:
            stack.pop()
            continue
        if bsym.is_random or bsym.mutates:
            raise UnsupportedError(
                f"this backward needs {stack[-1].name!r}, which was not saved, because only some of the program's outputs "
                "have a cotangent; use all of its outputs that require grad"
            )
        missing = [value for value in bsym.inputs if value in made_by and value not in known]
        if missing:
            stack += reversed(missing)
            continue
        yield bsym
        known.update(bsym.outputs)
