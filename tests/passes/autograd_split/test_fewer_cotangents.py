"""Fewer cotangents: whichever outputs a backward begins from, the gradients are eager's, and no value is missing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tracemill as tm

torch.manual_seed(0)
RECURRENT = [nn.LSTM(3, 4, 2, batch_first=True), nn.GRU(3, 4, bidirectional=True)]
ATTENTION = nn.MultiheadAttention(4, 2, dropout=0.4)


def dropped(x: Tensor) -> Any:
    made = F.dropout(x * 2, 0.5)
    return made * x, made.sin(), made.exp() * x.sin()


def dropped_attention(x: Tensor) -> Any:
    made = F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)
    return made, made.sin(), made * x


def normalised(x: Tensor) -> Any:
    made = F.batch_norm(x, None, None, training=True)
    return made, F.layer_norm(x, (3,)), x.exp() * made


def drawn_over(x: Tensor) -> Any:
    made = x * 2
    made.add_(x)
    return made * 3, made.mul_(F.dropout(x, 0.5)), made * 1


def recurrent(x: Tensor) -> Any:
    made, (hidden, cell) = RECURRENT[0](x)
    return made, hidden, cell


def without_a_derivative(x: Tensor) -> Any:
    made = F.rrelu(x, training=True)
    return made, made.sin(), x.exp() * made


PROGRAMS: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    **{fn.__name__: (fn, (4, 3)) for fn in (dropped, normalised, drawn_over, without_a_derivative)},
    "dropped_attention": (dropped_attention, (1, 3, 4)),
    "lstm": (recurrent, (2, 3, 3)),
    "gru": (RECURRENT[1], (2, 3, 3)),
    "attention": (lambda x: ATTENTION(x, x, x), (3, 2, 4)),
    "svd": (lambda x: torch.linalg.svd(x, full_matrices=False), (4, 3)),
    "slogdet": (lambda x: torch.linalg.slogdet(x @ x.t()), (3, 3)),
    "group_norm": (lambda x: torch.native_group_norm(x, None, None, 2, 4, 3, 2, 1e-5), (2, 4, 3)),
    "topk": (lambda x: (x.topk(2, 0).values, x * x.topk(2, 0).values[:1]), (4, 3)),
    "many": (lambda x: tuple(row.sin() for row in x.exp().unbind(1)), (2, 6)),
    "four": (lambda x: (x.sin(), x.sin() * x, F.dropout(x.exp(), 0.5) * x, x.softmax(0)), (4, 3)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_set_of_outputs_has_eagers_gradients(name: str) -> None:
    program, shape = PROGRAMS[name]
    jitted = tm.jit(program)
    torch.manual_seed(1)
    x = torch.randn(shape, requires_grad=True)
    wanted = [x, *(p for m in (*RECURRENT, ATTENTION) for p in m.parameters())]

    def outputs(called: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(2)
        return [out for out in called(x) if out.requires_grad]

    for mask in list(product([False, True], repeat=len(outputs(program))))[1:]:
        found = []
        for called in (program, jitted):
            chosen = [out for out, there in zip(outputs(called), mask, strict=True) if there]
            cotangents = [torch.linspace(1, 2, out.numel()).view(out.shape) for out in chosen]
            found.append(torch.autograd.grad(chosen, wanted, cotangents, allow_unused=True))
        for want, got in zip(*found, strict=True):
            assert (want is None) == (got is None)
            if want is not None:
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_outputs_one_after_another() -> None:
    """Each output has its own backward, as its own graph has in eager, without retain_graph."""
    x = torch.ones(4, 3, requires_grad=True)

    def one_by_one(called: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(0)
        return [
            torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
            for out in (*called(x), called(x)[0])
        ]

    assert all(map(torch.equal, one_by_one(dropped), one_by_one(tm.jit(dropped))))
