"""Training under symbolic values: one specialisation for many shapes, eager's gradients for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import checkpoint

import tracemill as tm
from tests.models import bert, gpt2, llama
from tests.specialisations import has_entries
from tests.test_symbolic_values import Called, shapes, symbolic

pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again")
Program = Callable[..., Any]


def learning(*sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.randn(size, requires_grad=True) for size in sizes)


def gradients(program: Program, given: tuple[Tensor, ...]) -> list[Any]:
    """What the program returns, and the gradients of a sum of it in which every element counts differently."""
    returned = program(*given)
    outs = returned if isinstance(returned, tuple) else (returned,)
    tensors = [out for out in outs if isinstance(out, Tensor) and out.requires_grad]
    loss = torch.stack([(out * _weights(out)).sum() for out in tensors]).sum()
    found = torch.autograd.grad(loss, given, allow_unused=True)
    return [*(out.detach() if isinstance(out, Tensor) else out for out in outs), *found]


def _weights(out: Tensor) -> Tensor:
    return torch.arange(out.numel(), dtype=out.dtype).view(out.shape).cos()


def learns(program: Program, *calls: tuple[Tensor, ...], entries: int = 1) -> Any:
    """The jitted program, after calls whose results and gradients are eager's, with so many specialisations."""
    jitted = symbolic(program)
    for call in calls:
        got, want = gradients(jitted, call), gradients(program, call)
        assert [type(value) for value in got] == [type(value) for value in want]
        torch.testing.assert_close(got, want)
    has_entries(jitted, entries)
    return jitted


def many(*dims: Callable[[int], int]) -> list[tuple[Tensor, ...]]:
    return [learning(tuple(dim(n) for dim in dims)) for n in (3, 4, 7, 12)]


def rows(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[1],)).view(-1).sin() * x.shape[0]


def test_sizes_are_saved_as_values_and_printed(golden: Any) -> None:
    jitted = learns(rows, *many(lambda n: n, lambda n: n + 1))
    golden(str(tm.last_traces(jitted)[-1]), "computation")
    golden(str(tm.last_backward_traces(jitted)[-1]), "backward")
    golden(str(tm.last_prologue_traces(jitted)[-1]), "prologue")


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.sum(0) * x.mean(),
        lambda x: (x.t().contiguous().view(-1), x.sum(1)),
        lambda x: x.t(),
        lambda x: x.expand(2, *x.shape).transpose(0, 1).reshape(-1),
        lambda x: torch.cat([x, x[1:]])[: x.shape[0]],
        lambda x: F.pad(x, (0, x.shape[0])).unfold(1, 2, 1),
        lambda x: x[:, : x.shape[1] // 2] @ x[: x.shape[1] // 2],
        lambda x: F.softmax(x / x.shape[0] ** 0.5, dim=-1) @ x if x.shape[0] < 0 else x.softmax(0),
        lambda x: x.cumsum(1).flip(0).roll(1, 0),
        lambda x: torch.where(x > 0, x, x * x.shape[1]),
        lambda x: F.avg_pool1d(x, 2).repeat(2, 1),
        lambda x: (x * 2, x.shape[0], x.shape[0] * 2 + 1, x.numel()),
        lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long)),
        lambda x: F.embedding(torch.arange(x.shape[0] - 1), x).prod(1),
        lambda x: x.gather(1, x.argsort(1)),
        lambda x: torch.einsum("ij,kj->ik", x, x).triu().logsumexp(1),
        lambda x: x.sin().view(x.shape[1], -1),
        lambda x: (x.cos().t()[: x.shape[1] // 2], x.exp().expand(2, *x.shape)),
        lambda x: x.detach() * x + x.shape[0],
        lambda x: x.diagonal().outer(x[0]),
        lambda x: x.view(x.shape[0], 1, -1).squeeze(1).unsqueeze(0).permute(2, 0, 1),
    ],
)
def test_gradients_are_eager_s_for_every_size(program: Program) -> None:
    learns(program, *many(lambda n: n, lambda n: n + 1))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: F.interpolate(x[None, None], size=(2 * x.shape[0], x.shape[1]))[0, 0],
        lambda x: (x * 2, len(x)),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        lambda x: torch.stack([part.sum() for part in x.split(1)]),
        lambda x: x.std(0) / x.norm(),
    ],
)
def test_what_needs_a_size_itself_is_compiled_for_each(program: Program) -> None:
    learns(program, *many(lambda n: n, lambda n: n + 1), entries=4)


def test_guards_of_python_are_kept_in_training() -> None:
    def program(x: Tensor) -> Tensor:
        return x.view(2, -1).sin() if x.shape[0] % 2 == 0 else x.cos()

    jitted = learns(program, *[learning((n,)) for n in (4, 5, 6, 7, 10)], entries=2)
    assert "if x.shape[0] % 2 == 0" in str(tm.last_prologue_traces(jitted)[-1])


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * len(f"{x.shape[0]:04d}{x.shape[0]}") if isinstance(x.shape[0], int) else x,
        lambda x: sum(x[i] * i for i in range(x.shape[0])),
        lambda x: x * {3: 0.5}.get(x.shape[0], 2.0) * (x.shape[0] / 3),
        lambda x: x / __import__("math").sqrt(x.shape[0]),
    ],
)
def test_python_s_numbers_in_training(program: Program) -> None:
    jitted = symbolic(program)
    for n in (3, 4, 5, 3):
        call = learning((n, 2))
        torch.testing.assert_close(gradients(jitted, call), gradients(program, call))
    assert tm.cache_info(jitted).entries == 3  # each needed the number itself


def two(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin().view(-1) * x.shape[0]
    return y.cos(), x.t().exp()


@pytest.mark.parametrize("used", [0, 1])
def test_only_some_outputs_have_a_cotangent(used: int) -> None:
    jitted = symbolic(two)
    for n in (3, 5, 8):
        (x,) = learning((n, n + 1))
        got, want = (
            torch.autograd.grad(program(x)[used].square().sum(), x) for program in (jitted, two)
        )
        torch.testing.assert_close(got, want)
    has_entries(jitted, 1)


def test_cotangents_of_any_layout() -> None:
    jitted = symbolic(lambda x: x.t())
    for n in (3, 5):
        (x,) = learning((n, 4))
        for cotangent in (torch.randn(4, n), torch.randn(n, 4).t(), torch.ones(()).expand(4, n)):
            (got,) = torch.autograd.grad(jitted(x), x, cotangent)
            torch.testing.assert_close(got, cotangent.t())


def test_dropout_draws_what_eager_draws() -> None:
    def program(x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.3).cos()

    jitted = symbolic(program)
    for (x,) in many(lambda n: n, lambda n: n + 1):
        found = []
        for each in (jitted, program):
            torch.manual_seed(0)
            found.append(gradients(each, (x,)))
        torch.testing.assert_close(*found)
    has_entries(jitted, 1)


def test_gradients_of_gradients() -> None:
    jitted = symbolic(rows)
    for call in many(lambda n: n, lambda n: n + 1):
        twice = []
        for program in (jitted, rows):
            (first,) = torch.autograd.grad(program(*call).square().sum(), call, create_graph=True)
            twice.append(torch.autograd.grad(first.square().sum(), call))
        torch.testing.assert_close(*twice, rtol=1e-4, atol=1e-4)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        return cotangents[0] * 3


def test_a_derivative_of_the_user_s() -> None:
    learns(lambda x: Doubled.apply(x.sin()).view(-1), *many(lambda n: n, lambda n: n + 1))


def test_what_a_checkpoint_wraps_is_computed_again() -> None:
    learns(
        lambda x: checkpoint.checkpoint(
            lambda y: y.sin().exp() * y.shape[0], x, use_reentrant=False
        ),
        *many(lambda n: n, lambda n: n + 1),
    )


@pytest.mark.parametrize("build", [llama, gpt2, bert])
def test_a_language_model_learns_from_many_shapes(build: Any) -> None:
    model, _, kwargs = build()
    called = Called(model, **{} if build is bert else kwargs)
    jitted = symbolic(called)
    for shape in shapes():
        tokens, found = torch.randint(0, 128, shape), []
        for program in (jitted, called):
            called.zero_grad()
            out = program(tokens)
            (out * _weights(out)).mean().backward()
            grads = {
                name: parameter.grad.clone()
                for name, parameter in called.named_parameters()
                if parameter.grad is not None
            }
            found.append({"out": out.detach(), **grads})
        torch.testing.assert_close(*found)
    has_entries(jitted, 1)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("batch_first", [False, True])
def test_dropout_between_recurrent_layers_draws_as_in_eager(
    kind: Any, *, batch_first: bool
) -> None:
    layers = kind(4, 4, 2, dropout=0.5, batch_first=batch_first)
    jitted = symbolic(lambda x: layers(x)[0])
    for length in (3, 5):
        x = torch.randn(length, 2, 4, requires_grad=True)
        torch.manual_seed(length)
        found, after = jitted(x), torch.rand(1)
        torch.manual_seed(length)
        torch.testing.assert_close(found, layers(x)[0])
        assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.combinations(x).prod(1),
        lambda x: x[x > 0].exp(),
        lambda x: x.index_fill(0, torch.tensor([0, 2]), 2).exp(),
        lambda x: torch.ops.aten.native_group_norm(x.view(1, -1, 1), None, None, 1, 4, 1, 2, 0.5)[
            0
        ],
    ],
    ids=["combinations", "masked", "filled", "group norm"],
)
def test_what_has_no_derivative_in_symbols_has_one_at_each_call(program: Program) -> None:
    jitted = symbolic(program)
    for seed in range(2):
        torch.manual_seed(seed)
        given = learning((4,))
        torch.testing.assert_close(gradients(jitted, given), gradients(program, given))
