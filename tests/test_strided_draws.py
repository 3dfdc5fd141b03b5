"""Random numbers go where eager puts them in memory that is not contiguous: values, gradients and states are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tracemill as tm

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.arange(1, 25.0).reshape(4, 6).t(),
    "channels last": lambda: (
        torch.arange(1, 121.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    ),
    "with gaps": lambda: torch.arange(1, 25.0).reshape(4, 6)[:, ::2],
    "expanded": lambda: torch.arange(1, 5.0).reshape(4, 1).expand(4, 6),
    "permuted, a part": lambda: (
        torch.arange(1, 121.0).reshape(2, 3, 4, 5).permute(2, 0, 3, 1)[:, 1:]
    ),
}
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout in place": lambda x: F.dropout(x * 1, 0.5, inplace=True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "alpha dropout in place": lambda x: F.alpha_dropout(x * 1, 0.5, training=True, inplace=True),
    "feature alpha dropout": lambda x: F.feature_alpha_dropout(x, 0.5, training=True),
    "bernoulli": lambda x: x * torch.bernoulli(x * 0.004),
    "bernoulli of a number": lambda x: x * torch.bernoulli(x.detach(), 0.4),
    "bernoulli in place": lambda x: (x * 1).bernoulli_(0.4) + x,
    "bernoulli of a tensor in place": lambda x: (x * 1).bernoulli_(x * 0.004) + x,
    "normal": lambda x: torch.normal(x, 1.0) * x,
    "normal in place": lambda x: (x * 1).normal_() + x,
    "uniform in place": lambda x: (x * 1).uniform_() + x,
    "exponential in place": lambda x: (x * 1).exponential_() + x,
    "integers in place": lambda x: (x * 1).random_(0, 50) + x,
    "randn_like": lambda x: x * torch.randn_like(x),
    "rrelu": lambda x: F.rrelu(-x, training=True),
    "rrelu in place": lambda x: F.rrelu(x * -1, training=True, inplace=True),
    "poisson": lambda x: torch.poisson(x) * x,
}


def drawn(draw: Callable[[Tensor], Tensor], layout: str, *, grad: bool) -> list[Any]:
    x = LAYOUTS[layout]().requires_grad_(grad)
    torch.manual_seed(1)
    made = draw(x)
    gradients = torch.autograd.grad(made.sum(), x) if grad else ()
    return [made.detach(), *gradients, torch.get_rng_state(), made.stride()]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_go_by_the_order_of_memory(name: str, grad: bool) -> None:
    for cache in ("constant values", "symbolic values"):
        jitted = tm.jit(DRAWS[name], cache=cache)
        for layout in LAYOUTS:
            want, got = (drawn(draw, layout, grad=grad) for draw in (DRAWS[name], jitted))
            for one, other in zip(want, got, strict=True):
                torch.testing.assert_close(other, one, rtol=0, atol=0, msg=layout)


@pytest.mark.parametrize("grad", [False, True])
def test_a_generator_draws_into_what_gradients_flow_through(grad: bool) -> None:
    def program(x: Tensor, generator: torch.Generator) -> Tensor:
        x.uniform_(generator=generator)
        x[:, ::2].normal_(generator=generator)
        x[0].bernoulli_(0.3, generator=generator)
        return x * 2

    jitted = tm.jit(program)
    for seed in range(2):
        found = []
        for compiled in (program, jitted):
            leaf = torch.ones(4, 3, requires_grad=grad)
            x, generator = leaf * 1, torch.Generator().manual_seed(seed)
            made = compiled(x, generator)
            gradients = torch.autograd.grad(made.sum(), leaf) if grad else ()
            found.append([made.detach(), x.detach(), *gradients, generator.get_state()])
        for one, other in zip(*found, strict=True):
            assert torch.equal(other, one)
