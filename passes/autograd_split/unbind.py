"""Unbind: the slices of a gradient, one for each index of a dimension, are taken at once.

Before, as PyTorch differentiates `stack`:

    t4 = torch.select(t3, 0, 0)
    t5 = torch.select(t3, 0, 1)

After:

    t4, t5, = torch.unbind(t3)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.passes.autograd_split.links import unnamed

_SELECT = symbol(torch.select)
_UNBIND = symbol(torch.unbind)


def unbound(lines: Sequence[BoundSymbol], sizes: Sizes) -> list[BoundSymbol]:
    """The lines with every complete run of `torch.select` as one line."""
    found: list[BoundSymbol] = []
    index = 0
    while index < len(lines):
        count = _run(lines, index)
        if count:
            found.append(_together(lines[index : index + count], sizes))
        else:
            found.append(lines[index])
        index += count or 1
    return found


def _run(lines: Sequence[BoundSymbol], start: int) -> int:
    """How many lines from `start` on take all slices of a tensor in order; 0 where they do not."""
    first = lines[start]
    if first.sym is not _SELECT or first.kwargs:
        return 0
    tensor, dim, _ = first.args
    count = tensor.meta.shape[dim]
    run = lines[start : start + count]
    fits = count > 1 and len(run) == count
    return count if fits and all(map(_takes, run, [(tensor, dim, i) for i in range(count)])) else 0


def _takes(bsym: BoundSymbol, args: tuple[Any, ...]) -> bool:
    return bsym.sym is _SELECT and bsym.args == args and not bsym.kwargs


def _together(run: Sequence[BoundSymbol], sizes: Sizes) -> BoundSymbol:
    first = run[0]
    tensor, dim, _ = first.args
    args = (tensor, dim) if dim else (tensor,)
    answer, _ = sizes.ask(torch.unbind, args, {}, unnamed)
    return BoundSymbol(
        _UNBIND,
        args,
        {},
        [bsym.output for bsym in run],
        answer=answer,
        source=first.source,
        module_path=first.module_path,
        differentiates=first.differentiates,
    )
