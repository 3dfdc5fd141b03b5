"""Writes under symbolic values: inputs, buffers and views of any size end up as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tracemill as tm
from tests.models import cnn
from tests.specialisations import has_entries
from tests.test_symbolic_training import learning, many
from tests.test_symbolic_values import symbolic

pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again")
Program = Callable[..., Any]


def halve_rows(x: Tensor) -> Tensor:
    x[: x.shape[0] // 2].mul_(0.5)
    return x.sum(0)


def test_the_text_of_a_write(golden: Any) -> None:
    jitted = symbolic(halve_rows)
    for shape in [(4, 3), (6, 5), (9, 2)]:
        x = torch.randn(shape)
        y = x.clone()
        torch.testing.assert_close(jitted(x), halve_rows(y), rtol=0, atol=0)
        assert torch.equal(x, y)
    has_entries(jitted, 1)
    golden(str(tm.last_traces(jitted)[-1]), "computation")
    golden(str(tm.last_epilogue_traces(jitted)[-1]), "epilogue")


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.add_(1),
        lambda x: x[0].fill_(x.shape[0]),
        lambda x: x.t()[1:].sin_().sum(),
        lambda x: x.view(-1)[:: x.shape[1]].zero_().clone(),
        lambda x: x.copy_(x.flip(0)) * 2,
        lambda x: x.clone().squeeze_().unsqueeze_(0).mul_(x),
        lambda x: x.index_add_(0, torch.arange(x.shape[0]), x.cos()),
        lambda x: x.masked_fill_(x > 0, 2.0).chunk(2, 1)[0].exp_(),
        lambda x: torch.add(x, 1, out=torch.empty(x.shape)).relu_(),
        lambda x: torch.zeros(x.shape[0], x.shape[1] * 2).narrow(1, 0, x.shape[1]).add_(x),
        lambda x: (x.clamp_(min=0), x[1:], x.t()),
        lambda x: F.relu(x, inplace=True).diagonal().add_(x.shape[1]),
    ],
)
def test_writes_of_every_size(program: Program) -> None:
    jitted = symbolic(program)
    for shape in [(4, 4), (6, 4), (5, 8), (8, 6)]:
        x = torch.randn(shape)
        y = x.clone()
        torch.testing.assert_close(jitted(x), program(y), rtol=0, atol=0)
        assert torch.equal(x, y)
    has_entries(jitted, 1)


def test_inputs_that_share_memory() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x.sum() + y.sum()

    jitted = symbolic(program)
    for n, begin in [(4, 0), (4, 2), (6, 3), (6, 6), (4, 4), (8, 8)]:
        base = torch.randn(3 * n)
        other = base.clone()
        got = jitted(base[:n], base[begin : begin + n])
        torch.testing.assert_close(got, program(other[:n], other[begin : begin + n]))
        assert torch.equal(base, other)


class Counts(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.scale = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.detach().sum(0) * x.shape[0])
        y = x * self.scale
        y[1:] *= 2
        y[: x.shape[0] // 2] = x[: x.shape[0] // 2]
        return y.sin_().view(-1)


def trained(build: Callable[[], nn.Module], inputs: list[Tensor]) -> nn.Module:
    """A jitted model, after steps in which it learned what eager's learns, buffers included."""
    torch.manual_seed(0)
    eager = build().train()
    torch.manual_seed(0)
    model = build().train()
    jitted = symbolic(model)
    for x in inputs:
        states = []
        for program, owner in ((eager, eager), (jitted, model)):
            owner.zero_grad()
            out = program(x)
            (out * torch.arange(out.shape[-1], dtype=out.dtype).cos()).mean().backward()
            gradients = {name: each.grad for name, each in owner.named_parameters()}
            states.append((out.detach(), gradients, dict(owner.named_buffers())))
        torch.testing.assert_close(states[1], states[0])
    has_entries(jitted, 1)
    return jitted


def test_buffers_and_fresh_values_in_training() -> None:
    trained(Counts, [torch.randn(n, 3) for n in (4, 5, 6, 9)])


def test_a_convolutional_net_learns_from_many_shapes() -> None:
    sizes = [(2 + n % 4, 3, 8 + n, 9 + 2 * n) for n in range(20)]
    trained(lambda: cnn()[0], [torch.randn(size) for size in sizes])


def test_a_write_that_gradients_flow_through() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.sin()
        y[0] = y[1] * x.shape[0]
        y.t()[: x.shape[1] // 2] *= 3
        return y.exp_()

    jitted = symbolic(program)
    for (x,) in many(lambda n: n, lambda n: n + 1):
        got, want = (torch.autograd.grad(f(x).square().sum(), x) for f in (jitted, program))
        torch.testing.assert_close(got, want)
    has_entries(jitted, 1)


def test_a_write_that_autograd_forbids_is_eager_s_error() -> None:
    with pytest.raises(RuntimeError, match="leaf Variable"):
        symbolic(lambda x: x.add_(1))(*learning((3, 4)))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.cumsum_(0),
        lambda x: x.fill_diagonal_(2.0),
        lambda x: x[1:].cumsum_(0).mul_(2),
    ],
)
def test_writes_that_ask_of_sizes_carry_gradients(program: Callable[[Tensor], Any]) -> None:
    jitted = tm.jit(program, cache="symbolic values")
    for rows in (3, 5):
        found = []
        for compiled in (program, jitted):
            leaf = (torch.arange(rows * 4.0).reshape(rows, 4) * 0.1 + 1).requires_grad_()
            x = leaf * 2
            made = compiled(x)
            found.append([x.detach(), *torch.autograd.grad(made.sum() + x.sum(), leaf)])
        for one, other in zip(*found, strict=True):
            assert torch.equal(other, one)


def test_sizes_stay_symbolic_after_a_write_that_gradients_flow_through() -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        y = x + 1
        y.mul_(w)
        x.mul_(w)
        return torch.zeros(x.shape[0]), torch.zeros(y.numel()), torch.zeros(len(y))

    jitted = symbolic(program)
    for rows in (4, 7, 4):
        x, w = torch.ones(rows, 3), torch.ones(rows, 3, requires_grad=True)
        assert [made.shape for made in jitted(x, w)] == [(rows,), (rows * 3,), (rows,)]
