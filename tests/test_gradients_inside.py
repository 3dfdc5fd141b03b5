"""Gradients inside: programs that call torch.autograd.grad, against eager, with the gradients of what they return."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import optree
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import functional, grad
from torch.utils.checkpoint import checkpoint

import tracemill as tm

Program = Callable[..., Any]
CACHES = ("constant values", "symbolic values")
TAKES_DICTS = "dict[str, Tensor]" in (grad.__doc__ or "")
"""Whether `torch.autograd.grad` takes a dict of inputs and gives one of gradients."""


def run(program: Program, weights: Sequence[torch.Tensor], *inputs: torch.Tensor) -> list[Any]:
    """The results, whether each requires grad, and the gradients of weights and inputs."""
    torch.manual_seed(1)
    results = optree.tree_leaves(program(*inputs), none_is_leaf=True)
    wanted = [tensor for tensor in (*weights, *inputs) if tensor.requires_grad]
    outs = [out for out in results if isinstance(out, torch.Tensor) and out.requires_grad]
    found: Sequence[Any] = ()
    if outs and wanted:
        given = [torch.ones_like(out) for out in outs]
        found = grad(outs, wanted, given, allow_unused=True)
    return [*results, [getattr(out, "requires_grad", None) for out in results], *found]


def assert_as_eager(
    program: Program,
    make: Callable[[], Sequence[torch.Tensor]],
    weights: Sequence[torch.Tensor] = (),
    tolerance: float = 0.0,
    **options: Any,
) -> Any:
    """Two calls of the jitted program do what two calls of the program do, by one entry; the jitted program."""
    jitted = tm.jit(program, **options)
    for _ in range(2):
        inputs = make()
        want, got = run(program, weights, *inputs), run(jitted, weights, *inputs)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert tm.cache_info(jitted).misses == 1
    return jitted


# What people write


def pinn() -> tuple[Program, Callable[[], Sequence[torch.Tensor]], nn.Module]:
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 1))

    def residual(points: torch.Tensor) -> torch.Tensor:
        x = points.detach().requires_grad_()
        u = net(x)
        (slope,) = grad(u.sum(), x, create_graph=True)
        laplacian = torch.zeros_like(u)
        for i in range(2):
            (second,) = grad(slope[:, i].sum(), x, create_graph=True)
            laplacian = laplacian + second[:, i : i + 1]
        return (laplacian - u.sin()).square().mean()

    return residual, lambda: [torch.randn(5, 2)], net


def gradient_penalty() -> tuple[Program, Callable[[], Sequence[torch.Tensor]], nn.Module]:
    critic = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(4, 8, 3),
        nn.GroupNorm(2, 8),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(8, 1),
    )

    def loss(real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        part = torch.rand(real.shape[0], 1, 1, 1)
        mixed = (part * real + (1 - part) * fake).requires_grad_()
        scores = critic(mixed)
        (found,) = grad(scores, mixed, torch.ones_like(scores), create_graph=True)
        penalty = (found.flatten(1).norm(2, dim=1) - 1).square().mean()
        return critic(fake).mean() - critic(real).mean() + 10 * penalty

    return loss, lambda: [torch.randn(3, 1, 8, 8), torch.randn(3, 1, 8, 8)], critic


class Potential(nn.Module):
    """Energy and forces of atoms: the forces are trained too, and wanted where gradients are off."""

    def __init__(self) -> None:
        super().__init__()
        self.species = nn.Embedding(5, 8)
        self.message = nn.Sequential(nn.Linear(9, 16), nn.SiLU(), nn.Linear(16, 8))
        self.energy = nn.Linear(8, 1)

    def forward(
        self, species: torch.Tensor, positions: torch.Tensor, pairs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            one, other = pairs
            distances = (positions[one] - positions[other]).norm(dim=-1, keepdim=True)
            state = self.species(species)
            messages = self.message(torch.cat([state[other], distances], -1))
            received = torch.zeros_like(state)
            received.index_add_(0, one, messages)
            energy = self.energy(state + received).sum()
            (slope,) = grad(energy, positions, create_graph=self.training)
        return energy, -slope


def atoms() -> list[torch.Tensor]:
    pairs = torch.tensor([[0, 1, 2, 3, 0], [1, 0, 3, 2, 2]])
    return [torch.randint(0, 5, (4,)), torch.randn(4, 3), pairs]


def by_name(loss: torch.Tensor, weights: dict[str, torch.Tensor]) -> Any:
    if TAKES_DICTS:
        return grad(loss, weights, create_graph=True)
    return dict(zip(weights, grad(loss, [*weights.values()], create_graph=True), strict=True))


def inner_steps() -> tuple[Program, Callable[[], Sequence[torch.Tensor]], nn.Module]:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def adapted(x: torch.Tensor, y: torch.Tensor, held_out: torch.Tensor) -> torch.Tensor:
        weights: Any = dict(net.named_parameters())
        for _ in range(2):
            loss = F.mse_loss(torch.func.functional_call(net, weights, (x,)), y)
            steps = by_name(loss, weights)
            weights = {name: weight - 0.1 * steps[name] for name, weight in weights.items()}
        return torch.func.functional_call(net, weights, (held_out,)).square().mean()

    return adapted, lambda: [torch.randn(4, 3), torch.randn(4, 2), torch.randn(4, 3)], net


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("build", [pinn, gradient_penalty, inner_steps])
def test_training_by_gradients_of_gradients(build: Callable[[], Any], cache: str) -> None:
    program, make, net = build()
    state = {name: value.clone() for name, value in net.state_dict().items()}

    def from_the_start(jitted: Program) -> Program:
        def called(*inputs: torch.Tensor) -> Any:
            net.load_state_dict(state)
            return jitted(*inputs), *(buffer.clone() for buffer in net.buffers())

        return called

    jitted = tm.jit(program, cache=cache)
    for _ in range(2):
        inputs = make()
        want, got = (
            run(from_the_start(each), list(net.parameters()), *inputs) for each in (program, jitted)
        )
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert tm.cache_info(jitted).misses == 1


@pytest.mark.parametrize("cache", CACHES)
def test_forces_in_training(cache: str) -> None:
    model = Potential()
    assert_as_eager(model, atoms, list(model.parameters()), cache=cache)


@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad])
def test_forces_where_they_are_not_trained(around: Any) -> None:
    model = Potential().eval()
    with around():
        jitted = assert_as_eager(lambda *given: model(*given)[1], atoms)
    assert tm.last_backward_traces(jitted) == []


def test_inductor_takes_regions_of_inner_gradients() -> None:
    program, make, net = pinn()
    weights = list(net.parameters())
    assert_as_eager(program, make, weights, tolerance=1e-5, executors=["inductor"])


# What torch.autograd.grad can be asked


def options(x: torch.Tensor, y: torch.Tensor) -> Any:
    unused = grad((x * x).sum(), (x, y), allow_unused=True, create_graph=True)
    zeros = grad((x * x).sum(), (x, y), materialize_grads=True, create_graph=True)
    several = grad([x.exp(), (x * y).sin()], [y, x], [torch.ones_like(x), x], create_graph=True)
    again = grad((x * y).sum(), x, retain_graph=True)
    return unused, zeros[0], zeros[1] * 2, several, again


def batched(x: torch.Tensor, y: torch.Tensor) -> Any:
    return grad((x * y).sin(), x, torch.eye(3), is_grads_batched=True), x * y


def intermediates(x: torch.Tensor, y: torch.Tensor) -> Any:
    inner = x * y
    outer = inner.exp() * inner
    (first,) = grad(outer.sum(), inner, create_graph=True)
    (second,) = grad(first.sum(), inner, retain_graph=True)
    return first * second, grad(second.sum() * outer.sum(), y, retain_graph=True)


def twice_the_same(x: torch.Tensor, y: torch.Tensor) -> Any:
    (first,) = grad((x + y).sum(), x)
    (given,) = grad(x.view_as(x), x, y, create_graph=True)
    return first, given * x


def writes(x: torch.Tensor, y: torch.Tensor) -> Any:
    matrix = torch.zeros(3, 3)
    matrix[0, 0] = x[0].cos()
    matrix[1] = y
    matrix[:, 2] *= 2
    matrix[1:, 1:].mul_(x[0])
    matrix[[0, 1], [1, 2]] = (x * y)[:2]
    (first,) = grad((matrix @ x).square().sum(), x, create_graph=True)
    x = x * 1
    x.add_(first)
    return x.sum(), grad(x.square().sum(), y, create_graph=True)


def unseen_writes(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = (x * y).exp()
    total = made.sum()
    made.data.mul_(2)
    return grad(total, x)


def random_numbers(x: torch.Tensor, y: torch.Tensor) -> Any:
    dropped = F.dropout(x * y, 0.5)
    (found,) = grad(dropped.square().sum(), x, create_graph=True)
    return found + torch.rand(3), dropped


def checkpointed(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = cast(torch.Tensor, checkpoint(lambda x: (x * y).tanh().exp(), x, use_reentrant=False))
    return grad(made.sum(), x, create_graph=True)


def by_value(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = F.layer_norm(x * y, (3,)) * x
    if made.isfinite().all():
        made = made * 2
    (found,) = grad(made.square().sum(), x, create_graph=True)
    return found * 3 if found.isfinite().all() else found


def without_grad(x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.no_grad():
        with torch.enable_grad():
            made = (x * y).sin().sum()
        return grad(made, (x, y))


def under_autocast(x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        made = F.linear(x.expand(3, 3), y.expand(3, 3)).float().sum()
        (inside,) = grad(made, x, create_graph=True)
    return inside, grad(made, y, create_graph=True)


def caught(x: torch.Tensor, y: torch.Tensor) -> Any:
    try:
        return grad(x.detach().sum(), x)
    except RuntimeError:
        return grad((x * y).sum(), x)


def whole_functions(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        functional.jacobian(lambda x: x.sin() * x.sum(), x, create_graph=True),
        functional.jacobian(lambda x: x.sin() * y, x, vectorize=True),
        functional.hessian(lambda x: (x**3).sum(), x, create_graph=True),
        functional.vjp(torch.exp, x, y, create_graph=True),
        functional.jvp(lambda x: x.exp() * x, x, y, create_graph=True),
        functional.hvp(lambda x: (x**4).sum(), x, y),
    )


ASKED = [
    *(options, batched, intermediates, twice_the_same, writes, unseen_writes, random_numbers),
    *(checkpointed, by_value, without_grad, under_autocast, caught, whole_functions),
]


@pytest.mark.parametrize("program", ASKED)
def test_what_is_asked_is_answered_as_in_eager(program: Program) -> None:
    assert_as_eager(program, lambda: [torch.randn(3, requires_grad=True) for _ in range(2)])


# Operations

OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "group norm": lambda x: F.group_norm(x, 2),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "softmax": lambda x: x.softmax(-1) ** 2,
    "mish": F.mish,
    "cross entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3])),
    "logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.eye(4)),
    "norm": lambda x: (x.norm(dim=0) + torch.linalg.norm(x)).sin(),
    "inverse": lambda x: torch.linalg.inv(x + 5 * torch.eye(4)),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(4)),
    "scatter": lambda x: torch.zeros(4, 4).scatter_add(0, torch.zeros(2, 4).long(), x[:2] ** 2),
    "pool": lambda x: F.max_pool1d(x, 2) ** 2,
    "attention": lambda x: F.multi_head_attention_forward(
        *(x[:, None], x[:, None], x[:, None], 4, 2, torch.cat([x, x, x])),
        *(None, None, None, False, 0.0, x, None),
    )[0],
    "in place": lambda x: (x * 2).add_(1).mul_(x).relu_() ** 2,
    "fourier": lambda x: torch.fft.fft(x).abs(),
}


@pytest.mark.parametrize("create_graph", [True, False])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_that_keep_something_inside(name: str, create_graph: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        made = OPERATIONS[name](x)
        (found,) = grad(made.square().sum(), x, create_graph=create_graph, retain_graph=True)
        return found, made

    assert_as_eager(program, lambda: [torch.randn(4, 4, requires_grad=True)], tolerance=1e-6)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * cotangents[0] * x * ctx.factor, None


def test_a_function_with_its_own_backward_in_the_middle() -> None:
    def program(x: torch.Tensor) -> Any:
        made = cast(torch.Tensor, Square.apply(x.sin(), 3.0)).exp()
        (found,) = grad(made.sum(), x, create_graph=True)
        return found, made

    assert_as_eager(program, lambda: [torch.randn(3, requires_grad=True)])


# What eager raises

WEIGHT = torch.ones(3, requires_grad=True)


def freed(x: torch.Tensor) -> Any:
    made = (x * WEIGHT).exp().sum()
    grad(made, WEIGHT)
    return grad(made, WEIGHT)


def overwritten(x: torch.Tensor) -> Any:
    made = (x * WEIGHT).exp()
    total = made.sum()
    made.mul_(2)
    return grad(total, WEIGHT)


RAISING: dict[str, Program] = {
    "does not require grad": lambda x: grad(x.sum(), x),
    "not have been used": lambda x: grad((x * WEIGHT).sum(), torch.ones(1, requires_grad=True)),
    "only for scalar outputs": lambda x: grad(x * WEIGHT, WEIGHT),
    "a second time": freed,
    "modified by an inplace operation": overwritten,
}


@pytest.mark.parametrize("message", RAISING)
def test_what_eager_raises_is_raised(message: str) -> None:
    for program in (RAISING[message], tm.jit(RAISING[message])):
        with pytest.raises(RuntimeError, match=message):
            program(torch.ones(3))


# What is refused


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *cotangents: torch.Tensor
    ) -> Any:
        return cotangents[0] * 2 * ctx.saved_tensors[0]


class Inside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        inside = x.exp()
        ctx.save_for_backward(inside)
        return inside * x

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        return cotangents[0] * ctx.saved_tensors[0]


def hooked(x: torch.Tensor) -> Any:
    layer = nn.Linear(3, 3)
    layer.register_full_backward_hook(lambda *_: None)
    return grad(layer(x * WEIGHT).sum(), WEIGHT)


def chosen(x: torch.Tensor) -> Any:
    made = x * WEIGHT
    return grad(made[made > 0].sum(), WEIGHT)


def once(x: torch.Tensor) -> Any:
    return grad(cast(torch.Tensor, Once.apply(x * WEIGHT)).sum(), WEIGHT, create_graph=True)


REFUSED: dict[str, Program] = {
    "hooked at .* backward hooks": hooked,
    "made.made > 0.* on fakes": chosen,
    "PyTorch does not differentiate as recorded": once,
    "keeps inside": lambda x: grad(cast(torch.Tensor, Inside.apply(x * WEIGHT)).sum(), WEIGHT),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_told_is_refused_by_the_line(message: str) -> None:
    with pytest.raises(tm.UnsupportedError, match=message) as refusal:
        tm.jit(REFUSED[message])(torch.ones(3))
    assert "test_gradients_inside.py" in str(refusal.value)


def test_a_gradient_that_may_come_round_the_program_is_refused() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return grad((x * y).sum(), x, retain_graph=True)

    jitted = tm.jit(program)
    x = torch.ones(3, requires_grad=True)
    for y in (x.exp().detach(), torch.ones(3, requires_grad=True)):
        assert torch.equal(jitted(x, y)[0], program(x, y)[0])
    with pytest.raises(tm.UnsupportedError, match="computed outside of the program; detach"):
        jitted(x, x.exp())


def test_a_gradient_that_hooks_would_change_is_refused() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return grad((x * y).sum(), x, retain_graph=True)

    jitted = tm.jit(program)
    x = torch.ones(3, requires_grad=True)
    assert torch.equal(jitted(x, torch.ones(3))[0], torch.ones(3))
    x.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(tm.UnsupportedError, match="a tensor that has hooks"):
        jitted(x, torch.ones(3))


def test_a_write_to_shared_memory_is_refused() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        made = (x * WEIGHT).sum()
        y.add_(1)
        return grad(made, WEIGHT)

    x = torch.ones(3)
    with pytest.raises(tm.UnsupportedError, match="shares memory with another"):
        tm.jit(program)(x, x[:2])


# What is read


def slope(x: torch.Tensor) -> torch.Tensor:
    made = x.sigmoid() * 2
    (first,) = grad(made.sum(), x, create_graph=True)
    return first.square().sum()


def of_its_input() -> Any:
    """A jitted program that asked for the gradient of its input, of which each call is checked."""
    jitted = tm.jit(lambda x, y: grad((x * y).sum(), x, create_graph=True))
    jitted(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
    return jitted


def test_text(golden: Callable[[str, str], None]) -> None:
    jitted = tm.jit(slope)
    jitted(torch.ones(3, requires_grad=True))
    traces = tm.last_traces(jitted)
    acquired = next(trace for trace in traces if trace.stage == "interpretation")
    golden(str(acquired), "acquired")
    golden(str(tm.last_backward_traces(jitted)[-1]), "backward")
    golden(str(tm.last_prologue_traces(of_its_input())[-1]), "prologue")


def test_lines_know_the_line_that_they_differentiate() -> None:
    trace = tm.trace(slope, torch.ones(3, requires_grad=True))
    told = {
        line.output.name: line.differentiates.output.name
        for line in trace.bound_symbols
        if line.differentiates is not None
    }
    assert told == {"t4": "t2", "t5": "t1", "t6": "t0"}


def test_nothing_is_kept_of_gradients_that_are_not_used() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        made = x.sin()
        grad(made.sum(), x, create_graph=True)
        return made * 2

    jitted = tm.jit(program)
    jitted(torch.ones(3, requires_grad=True))
    lines = tm.last_traces(jitted)[-1].bound_symbols
    assert [line.sym.name for line in lines if line.outputs] == [
        "torch.Tensor.sin",
        "torch.Tensor.mul",
    ]


def test_nothing_holds_the_tensors_of_a_call() -> None:
    jitted = tm.jit(slope)
    x = torch.ones(3, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        jitted(x)
        kept = weakref.ref(x)
        del x
        assert kept() is None
    finally:
        gc.enable()
