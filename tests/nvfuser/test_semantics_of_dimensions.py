"""Where an operation on dimensions could mean another thing to nvFuser than to PyTorch: against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.nvfuser.harness import fused_like_eager, some
from tests.nvfuser.test_semantics import INF, Fn, ints, truths

REDUCED: dict[str, tuple[Fn, Callable[[], torch.Tensor]]] = {
    "sums in a dtype": (
        lambda x: (
            x.sum(dtype=torch.float64),
            x.sum(0, dtype=torch.int64),
            x.sum(dtype=torch.float16),
            x.mean(dtype=torch.float64),
            x.cumsum(0, dtype=torch.int64),
            x.cumsum(-1, dtype=torch.float64),
            x.prod(dtype=torch.float64),
        ),
        lambda: some(3, 4, high=3.9),
    ),
    "sums of ints in a dtype": (
        lambda x: (
            x.sum(dtype=torch.float32),
            x.mean(dtype=torch.float32),
            x.sum(dtype=torch.int32),
            x.prod(0, dtype=torch.float32),
            x.cumsum(0),
            x.cumprod(0),
            x.cumsum(0, dtype=torch.int32),
        ),
        ints,
    ),
    "sums of truths": (
        lambda x: (x.sum(), x.cumsum(0), x.prod(), x.sum(dtype=torch.float32)),
        truths,
    ),
    "no dimensions named": (
        lambda x: (
            x.sum(()),
            x.mean(()),
            x.amax(()),
            x.var(()),
            x.std(()),
            x.sum((), keepdim=True),
        ),
        lambda: some(3, 4),
    ),
    "no dimensions, truths": (lambda x: (x.any(()), x.all(())), truths),
    "kept": (
        lambda x: (
            x.sum(None, keepdim=True),
            x.mean((-1, 0), keepdim=True),
            x.var(None, keepdim=True),
            x.amin((-2,), keepdim=True),
            x.any(-1, keepdim=True),
            x.prod(-2, keepdim=True),
        ),
        lambda: some(3, 4),
    ),
    "single numbers": (
        lambda x: (
            x.sum(0),
            x.sum(-1, keepdim=True),
            x.amax(-1),
            x.cumsum(0),
            x.prod(0),
            x.any(0),
            x.mean(0),
            x.softmax(0),
            x.logsumexp(0),
        ),
        lambda: some(),
    ),
    "corrections": (
        lambda x: (
            x.var(-1, correction=0),
            x.var(-1, correction=2),
            x.var(-1, correction=3),
            x.var(-1, correction=4),
            x.var(-1, correction=7),
            x.std(-1, correction=0),
            *torch.var_mean(x, 0, correction=3),
        ),
        lambda: some(3, 4),
    ),
    "a broken correction": (lambda x: x.var(-1, correction=0.5), lambda: some(3, 4)),
    "of one element": (
        lambda x: (x.var(-1), x.std(-1, correction=0), x.mean(-1)),
        lambda: some(3, 1),
    ),
    "halves of large ones": (
        lambda x: (x.sum(), x.mean(), x.var(), x.amax()),
        lambda: (some(64) + 100).bfloat16(),
    ),
}

MOVED: dict[str, tuple[Fn, Callable[[], torch.Tensor]]] = {
    "slices out of range": (
        lambda x: (x[-100:2] + 1, x[1:100] + 1, x[:, -3:100] + 1, x[:, -100:-2] + 1, x[:-1] + 1),
        lambda: some(4, 6),
    ),
    "slices with steps": (
        lambda x: (x[::2] + 1, x[1::3] + 1, x[:, 1:100:2] + 1, x[:, -5:-1:2] + 1, x[::7] + 1),
        lambda: some(4, 6),
    ),
    "padded by less than nothing": (
        lambda x: (
            F.pad(x, (-1, -2)) + 1,
            F.pad(x, (-1, 1, 2, -3)) + 1,
            F.pad(x, (0, -5)) + x,
            F.pad(x, (-2, -3), value=3.0) + x,
            F.pad(x, (0, 0)) + 1,
        ),
        lambda: some(4, 6),
    ),
    "padded ints": (
        lambda x: (F.pad(x, (1, 2), value=3), F.pad(x, (1, 0), value=1.7), F.pad(x, (2, -1))),
        ints,
    ),
    "padded truths": (lambda x: (F.pad(x, (1, 2), value=1), F.pad(x, (1, 2))), truths),
    "expanded": (
        lambda x: (
            x.expand(-1, 3) + 1,
            x.expand(2, -1, -1) + 1,
            x.expand(2, 4, 3) + 1,
            x.expand_as(x.new_zeros(4, 3)) + 1,
            x.broadcast_to(4, 2) + 1,
        ),
        lambda: some(4, 1),
    ),
    "a number expanded": (lambda x: (x.expand(3) + 1, x.expand(2, 3) * 2), lambda: some()),
    "negative dimensions": (
        lambda x: (
            x.permute(-1, 0, -2) + 1,
            x.transpose(-3, -1) + 1,
            x.unsqueeze(-1) + 1,
            x.unsqueeze(-4) + 1,
            x.unsqueeze(1).squeeze(-3) + 1,
            x.flip(-1) + 1,
            x.select(-2, -1) + 1,
            x.unbind(-1)[0] + 1,
            torch.stack([x, x], -1) + 1,
            torch.cat([x, x], -2) + 1,
            x.cumsum(-3),
            x.split(2, -1)[1] + 1,
        ),
        lambda: some(2, 3, 4),
    ),
    "squeezed of what is not one": (
        lambda x: (x.squeeze(0) + 1, x.squeeze((0, 1)) + 1, x.squeeze(-1) + 1),
        lambda: some(3, 1),
    ),
    "of size one, and broadcast": (
        lambda x: (
            x[:, 1:2] * x,
            x[:, -1:] + x,
            x[:, 5:] + x,
            x[:, ::6] + x,
            x.split([1, 5], 1)[0] + x,
            x.flip(0)[:1] + x,
            x.sum(1, keepdim=True) + x,
            x.narrow(0, 2, 1) + x,
        ),
        lambda: some(4, 6),
    ),
    "one position, and broadcast": (
        lambda x: (
            x.index_select(1, torch.tensor([2], device=x.device)) + x,
            x[:, torch.tensor([-1], device=x.device)] + x,
            x.gather(1, torch.zeros(4, 1, dtype=torch.int64, device=x.device)) + x,
        ),
        lambda: some(4, 6),
    ),
    "made of size one, and broadcast": (
        lambda x: (
            x.new_zeros(1, 6) + x,
            torch.full((4, 1), 2.0, device=x.device) * x,
            torch.arange(1, device=x.device) + x,
            torch.cat([x[:, :1]], 1) + x,
            x.reshape(4, 6, 1) + x.reshape(4, 1, 6),
            x.new_ones(1) + x,
        ),
        lambda: some(4, 6),
    ),
    "joined with nothing": (
        lambda x: (torch.cat([x, x.new_zeros(0)]), torch.cat([x[:0], x]), torch.cat([x, x[2:2]])),
        lambda: some(4),
    ),
    "joined of two dtypes": (
        lambda x: (
            torch.cat([x, x.long()]),
            torch.cat([x.half(), x.bfloat16()]),
            torch.stack([x, x > 0]),
        ),
        lambda: some(4),
    ),
    "filled": (
        lambda x: (
            torch.full((2, 3), 1.7, dtype=torch.int64, device=x.device) + x[0].long(),
            torch.full((2,), 2, dtype=torch.bool, device=x.device) ^ (x[0] > 0),
            torch.full_like(x, 0.1, dtype=torch.bfloat16) + x,
            torch.full((2,), -INF, device=x.device) + x[0],
            torch.ones_like(x, dtype=torch.int32) + x,
        ),
        lambda: some(4),
    ),
    "counted": (
        lambda x: (
            torch.arange(5, device=x.device) + x.sum(),
            torch.arange(2, 9, 3, device=x.device) * 2,
            torch.arange(9, 2, -3, device=x.device) * 2,
            torch.arange(0.5, 3, 0.5, device=x.device) + 1,
            torch.arange(1.5, 6.5, dtype=torch.int64, device=x.device) * 2,
            torch.arange(3, dtype=torch.float64, device=x.device) / 3,
            torch.arange(3, dtype=torch.bfloat16, device=x.device) / 3,
            torch.arange(1, 5, dtype=torch.int32, device=x.device) * 2,
            torch.linspace(0, 1, 5, device=x.device) + 1,
        ),
        lambda: some(4),
    ),
    "triangles": (
        lambda x: (x.tril(-1), x.triu(-2), x.tril(1), x.triu(3), x.bool().tril()),
        lambda: some(3, 4),
    ),
}

LOOKED_UP: dict[str, tuple[Fn, Callable[[], Any]]] = {
    "from the back": (
        lambda i, w: (w[i - 7] + 1, w[:, i - 5] + 1, w[i - 7, :2] + 1),
        lambda: (torch.tensor([0, 3, 4]), some(7, 5)),
    ),
    "by ints": (
        lambda i, w: (w.index_select(0, i) + 1, w[i] + 1, w[..., i] + 1, F.embedding(i, w) + 1),
        lambda: (torch.tensor([0, 3, 4], dtype=torch.int32), some(7, 5)),
    ),
    "ints": (
        lambda i, w: (w[i] * 2, w.index_select(0, i) + 1, w.gather(0, i) + 1, (w > 0)[i] ^ True),
        lambda: (torch.tensor([0, 3, 2, 1]), torch.tensor([5, 6, 7, 8])),
    ),
    "by itself": (lambda i: (i[i] * 2, i.gather(0, i) + 1), lambda: torch.tensor([0, 3, 2, 1])),
    "by a part of the size": (
        lambda i, w: (w.gather(0, i) + 1, w.gather(1, i) + 1),
        lambda: (torch.tensor([[0, 3], [4, 1]]), some(7, 5)),
    ),
    "by one of the size": (
        lambda i, w: (w.gather(0, i) + 1, w.gather(1, i.t()) + 1),
        lambda: (torch.tensor([[4], [2]]), some(7, 5)),
    ),
    "padding": (
        lambda i, w: F.embedding(i, w, padding_idx=2) + 1,
        lambda: (torch.tensor([[0, 2], [4, -3]]) % 7, some(7, 5)),
    ),
}

ALL = {
    f"{family}: {name}": case
    for family, cases in {"reduced": REDUCED, "moved": MOVED, "looked up": LOOKED_UP}.items()
    for name, case in cases.items()
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("name", ALL)
def test_values_and_dtypes(name: str) -> None:
    fn, make = ALL[name]
    made = make()
    fused_like_eager(fn, *(made if isinstance(made, tuple) else [made]), leaves_none=False)
