"""Slices: where PyTorch takes a gradient apart slice by slice, it is taken apart at once.

Before, as PyTorch differentiates `stack` and `cat`:

    t4 = torch.select(t3, 0, 0)
    t5 = torch.select(t3, 0, 1)
    t7 = torch.ops.aten.slice.Tensor(t6, 0, 0, 2)
    t8 = torch.ops.aten.slice.Tensor(t6, 0, 2, 6)

After:

    t4, t5, = torch.unbind(t3)
    t7, t8, = torch.split(t6, [2, 4])
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any

import torch

from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.passes.autograd_split.links import unnamed

_SELECT = symbol(torch.select)
_SLICE = symbol(torch.ops.aten.slice.Tensor)


def together(lines: Sequence[BoundSymbol], sizes: Sizes) -> list[BoundSymbol]:
    """The lines with every run that takes a whole tensor apart as one line."""
    found: list[BoundSymbol] = []
    index = 0
    while index < len(lines):
        run = _run(lines[index:])
        found.append(_one(run, sizes) if len(run) > 1 else lines[index])
        index += max(len(run), 1)
    return found


def _run(lines: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """The lines at the beginning that take all of a tensor apart, in order; none where they leave something out."""
    first = lines[0]
    if first.sym not in (_SELECT, _SLICE):
        return []
    tensor, dim, *_ = first.args
    end = tensor.meta.shape[dim]
    run = list(takewhile(lambda bsym: _is_of(bsym, first), lines))
    if first.sym is _SELECT:
        run = run[:end]
        return run if [bsym.args[2] for bsym in run] == list(range(end)) else []
    bounds = [tuple(bsym.args[2:]) for bsym in run]
    if not all(len(each) == 2 and type(each[0]) is type(each[1]) is int for each in bounds):
        return []
    follow = all(one[1] == other[0] for one, other in pairwise(bounds))
    return run if follow and bounds[0][0] == 0 and bounds[-1][1] == end else []


def _is_of(bsym: BoundSymbol, first: BoundSymbol) -> bool:
    return bsym.sym is first.sym and bsym.args[:2] == first.args[:2] and not bsym.kwargs


def _one(run: Sequence[BoundSymbol], sizes: Sizes) -> BoundSymbol:
    first = run[0]
    tensor, dim, *_ = first.args
    fn: Any = torch.unbind
    parts: tuple[Any, ...] = ()
    if first.sym is _SLICE:
        widths = [bsym.args[3] - bsym.args[2] for bsym in run]
        fn, parts = torch.split, (widths[0] if len(set(widths)) == 1 else widths,)
    args = (tensor, *parts, dim) if dim else (tensor, *parts)
    answer, _ = sizes.ask(fn, args, {}, unnamed)
    return BoundSymbol(
        symbol(fn),
        args,
        {},
        [bsym.output for bsym in run],
        answer=answer,
        source=first.source,
        module_path=first.module_path,
        differentiates=first.differentiates,
    )
