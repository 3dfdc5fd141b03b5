"""Restoring: values that the forward did not save are computed again in the backward, each before its first use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

    def provide(proxy: Proxy) -> None:
        if proxy in known or proxy not in made_by:
            return
        bsym = made_by[proxy]
        if bsym.is_random or bsym.mutates:
            raise UnsupportedError(
                f"this backward needs {proxy.name!r}, which was not saved, because only some of the program's outputs "
                "have a cotangent; use all of its outputs that require grad"
            )
        for source in bsym.inputs:
            provide(source)
        result.append(bsym)
        known.update(bsym.outputs)

    for bsym in lines:
        for proxy in bsym.inputs:
            provide(proxy)
        result.append(bsym)
        known.update(bsym.outputs)
    for gradient in gradients:
        if gradient is not None:
            provide(gradient)
    return result
