"""Training steps as one program: `.grad`, `backward()` and optimisers inside, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracemill as tm

Program = Callable[..., Any]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)
    )


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(5, 3), torch.randn(5, 2)) for _ in range(count)]


def tensors_of(module: nn.Module) -> list[Any]:
    return [*module.parameters(), *(p.grad for p in module.parameters()), *module.buffers()]


def as_in_eager(
    build: Callable[[nn.Module], Program],
    state: Callable[[nn.Module], Any] = tensors_of,
    calls: int = 3,
    programs: int = 1,
    tolerance: float = 0.0,
    **options: Any,
) -> Any:
    """Each call of the jitted step leaves what eager's leaves, by so many programs; the jitted step."""
    modules = network(), network()
    eager, jitted = build(modules[0]), tm.jit(build(modules[1]), **options)
    for batch in batches(calls):
        torch.manual_seed(2)
        want = eager(*batch)
        torch.manual_seed(2)
        got = jitted(*batch)
        pairs = (got, want), (state(modules[1]), state(modules[0]))
        for found, expected in pairs:
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        assert requires_grad(got) == requires_grad(want)
    assert tm.cache_info(jitted).misses == programs
    return jitted


def requires_grad(value: Any) -> Any:
    return [x.requires_grad for x in optree.tree_leaves(value) if torch.is_tensor(x)]


# .grad


WEIGHT = nn.Parameter(torch.ones(3))


@pytest.fixture(autouse=True)
def no_gradient() -> None:
    WEIGHT.grad = None


def test_a_gradient_is_written_and_is_the_one_that_is_returned() -> None:
    @tm.jit
    def program(x: torch.Tensor) -> Any:
        WEIGHT.grad = x * 2
        x.grad = WEIGHT.grad
        return WEIGHT.grad

    for x in torch.ones(3), torch.zeros(3):
        made = program(x)
        assert made is WEIGHT.grad is x.grad
        assert torch.equal(made, x * 2)
    assert tm.cache_info(program).misses == 1
    assert "WEIGHT.grad = t0\n" in tm.last_epilogue_traces(program)[-1].text("minimal")


def test_whether_there_is_a_gradient_is_checked() -> None:
    @tm.jit
    def program(x: torch.Tensor) -> torch.Tensor:
        return x if WEIGHT.grad is None else x + WEIGHT.grad

    x = torch.ones(3)
    for grad in (None, torch.ones(3), None, torch.full((3,), 2.0)):
        WEIGHT.grad = grad
        assert torch.equal(program(x), x if grad is None else x + grad)
    assert tm.cache_info(program).misses == 2
    prologue = tm.last_prologue_traces(program)[-1].text("minimal")
    assert "WEIGHT_grad = WEIGHT.grad\n" in prologue


def test_a_gradient_that_is_only_dropped_is_not_handed_to_the_computation() -> None:
    @tm.jit
    def program(x: torch.Tensor) -> torch.Tensor:
        if WEIGHT.grad is not None:
            WEIGHT.grad = None
        return x * 2

    WEIGHT.grad = torch.ones(3)
    program(torch.ones(3))
    assert WEIGHT.grad is None
    assert [arg.name for arg in tm.last_traces(program)[-1].args] == ["x", "WEIGHT"]
    assert "WEIGHT.grad = None\n" in tm.last_epilogue_traces(program)[-1].text("minimal")


def test_a_gradient_that_is_written_to_stays_the_same_tensor() -> None:
    @tm.jit
    def program() -> None:
        assert WEIGHT.grad is not None
        WEIGHT.grad.mul_(2)

    WEIGHT.grad = grad = torch.ones(3)
    program()
    assert WEIGHT.grad is grad
    assert torch.equal(grad, torch.full((3,), 2.0))


def test_a_gradient_is_deleted() -> None:
    @tm.jit
    def program() -> Any:
        del WEIGHT.grad
        return WEIGHT.grad

    WEIGHT.grad = torch.ones(3)
    assert program() is None
    assert WEIGHT.grad is None


@pytest.mark.parametrize("grad", [torch.ones(2), torch.ones(3, dtype=torch.float64), WEIGHT, 1.0])
def test_a_gradient_that_does_not_fit_raises_as_in_eager(grad: Any) -> None:
    def program() -> None:
        WEIGHT.grad = grad

    with pytest.raises(Exception, match="grad") as eager:
        program()
    with pytest.raises(type(eager.value), match="assign"):
        tm.jit(program)()


# backward


def plain_step(model: nn.Module) -> Program:
    parameters = list(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for parameter in parameters:
            parameter.grad = None
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None
                parameter -= 0.1 * parameter.grad
        return loss

    return step


def test_a_step_of_its_own() -> None:
    jitted = as_in_eager(plain_step)
    assert not tm.last_backward_traces(jitted)


def accumulating(model: nn.Module) -> Program:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = [
            F.mse_loss(model(part), label)
            for part, label in zip(x.split(3), y.split(3), strict=True)
        ]
        for loss in losses:
            (loss / 2).backward()
        return losses

    return step


def test_gradients_of_micro_batches_and_of_calls_add_up() -> None:
    as_in_eager(accumulating, programs=2)  # without gradients, and with them


def test_gradients_stay_the_tensors_that_they_are() -> None:
    model = network()
    step = tm.jit(accumulating(model))
    for batch in batches(3):
        before = [parameter.grad for parameter in model.parameters()]
        step(*batch)
        if before[0] is not None:
            assert all(p.grad is grad for p, grad in zip(model.parameters(), before, strict=True))


def retained(x: torch.Tensor) -> Any:
    other = WEIGHT + x
    other.retain_grad()
    assert other.retains_grad
    for _ in range(2):
        (other * 2).sum().backward(retain_graph=True)
    return other.grad


def by_hand(x: torch.Tensor) -> None:
    leaf = x.detach().requires_grad_()
    torch.autograd.backward([(leaf * WEIGHT).sum(), leaf * 2], [None, torch.ones(3)])
    x.grad = leaf.grad


def some(x: torch.Tensor) -> None:
    other = x.detach().requires_grad_()
    (WEIGHT * other).sum().backward(inputs=[WEIGHT])
    assert other.grad is None


def twice(x: torch.Tensor) -> None:
    made = (WEIGHT * x).exp().sum()
    made.backward(retain_graph=True)
    made.backward()


def differentiable(x: torch.Tensor) -> torch.Tensor:
    (WEIGHT * x).exp().sum().backward(create_graph=True)
    assert WEIGHT.grad is not None
    made = WEIGHT.grad.square().sum()
    WEIGHT.grad = None
    made.backward()
    return made.detach()


def one_for_two(x: torch.Tensor) -> None:
    leaf = x.detach().requires_grad_()
    (leaf + WEIGHT).backward(x)
    assert leaf.grad is not None
    leaf.grad.mul_(5)
    x.grad = leaf.grad


@pytest.mark.parametrize("program", [by_hand, some, twice, retained, differentiable, one_for_two])
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_backward_does_what_eagers_does(program: Program) -> None:
    found = []
    for run in (program, tm.jit(program)):
        WEIGHT.grad = None
        x = torch.tensor([1.0, 2.0, 3.0])
        made = [run(x) for _ in range(2)]
        found.append((made, x, x.grad, WEIGHT.grad))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


# Optimisers


def state_of(optimiser: torch.optim.Optimizer) -> Any:
    return optimiser.state_dict()["state"]


def optimised(make: Callable[[Any], torch.optim.Optimizer]) -> Callable[[nn.Module], Program]:
    def build(model: nn.Module) -> Program:
        optimiser = make(model.parameters())
        OPTIMISERS[id(model)] = optimiser

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimiser.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimiser.step()
            return loss

        return step

    return build


OPTIMISERS: dict[int, torch.optim.Optimizer] = {}


def with_state(model: nn.Module) -> Any:
    return tensors_of(model), state_of(OPTIMISERS[id(model)])


optim: Any = torch.optim
SETTINGS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "SGD": (optim.SGD, {"lr": 0.1}, 2),
    "SGD with momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, 2),
    "SGD nesterov": (
        optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True},
        2,
    ),
    "SGD foreach": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}, 2),
    "Adam": (optim.Adam, {"lr": 0.1}, 2),
    "Adam amsgrad": (optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}, 2),
    "Adam foreach": (optim.Adam, {"lr": 0.1, "foreach": True}, 2),
    "Adam fused": (optim.Adam, {"lr": 0.1, "fused": True}, 2),
    "Adam with a tensor": (optim.Adam, {"lr": torch.tensor(0.1)}, 2),
    "AdamW": (optim.AdamW, {"lr": 0.1}, 2),
    "NAdam": (optim.NAdam, {"lr": 0.1}, 2),
    "NAdam foreach": (optim.NAdam, {"lr": 0.1, "foreach": True}, 2),
    "RAdam": (optim.RAdam, {"lr": 0.1, "betas": (0.5, 0.9)}, 3),
    "Adamax": (optim.Adamax, {"lr": 0.1}, 2),
    "Adagrad": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}, 2),
    "Adagrad foreach": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "foreach": True}, 2),
    "Adadelta": (optim.Adadelta, {"lr": 0.1}, 2),
    "RMSprop": (optim.RMSprop, {"lr": 0.1, "momentum": 0.9, "centered": True}, 2),
    "RMSprop foreach": (optim.RMSprop, {"lr": 0.1, "foreach": True}, 2),
    "Rprop": (optim.Rprop, {"lr": 0.1}, 2),
    "ASGD": (optim.ASGD, {"lr": 0.1, "t0": 2}, 3),
    "Adafactor": (optim.Adafactor, {"lr": 0.1}, 2),
}

ROUNDED = {"Adam with a tensor", "NAdam", "NAdam foreach", "RAdam"}
"""Numbers that meet tensors of one element round otherwise."""


@pytest.mark.parametrize("name", SETTINGS)
def test_an_optimiser_does_what_it_does_in_eager(name: str) -> None:
    cls, settings, programs = SETTINGS[name]

    def make(parameters: Any) -> Any:
        return cls(parameters, **settings)

    tolerance = 1e-5 if name in ROUNDED else 0.0
    as_in_eager(optimised(make), with_state, calls=7, programs=programs, tolerance=tolerance)


def careful(model: nn.Module) -> Program:
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    OPTIMISERS[id(model)] = optimiser

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        for part, label in zip(x.split(3), y.split(3), strict=True):
            scaler.scale(F.mse_loss(model(part), label) / 2).backward()
        scaler.unscale_(optimiser)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad(set_to_none=False)
        return norm

    return step


def test_micro_batches_clipping_a_scaler_and_zeros() -> None:
    as_in_eager(careful, with_state, calls=4, programs=2)


def test_one_region_computes_forward_backward_and_update() -> None:
    make = optimised(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    jitted = as_in_eager(make, with_state, programs=2, tolerance=1e-5, executors=["inductor"])
    lines = [line.sym.name for line in tm.last_traces(jitted)[-1].bound_symbols]
    assert any("inductor" in name for name in lines)


scheduled = optimised(lambda parameters: torch.optim.Adam(parameters, lr=0.1, weight_decay=0.1))


def scheduled_state(model: nn.Module) -> Any:
    """The state after a step, and another learning rate for the next one."""
    (group,) = OPTIMISERS[id(model)].param_groups
    group["lr"] *= 0.9
    return with_state(model), group["lr"]


def test_a_schedule_makes_no_other_program() -> None:
    jitted = as_in_eager(scheduled, scheduled_state, calls=5, programs=2)
    assert "_lr_1 = as_tensor(" in tm.last_prologue_traces(jitted)[-1].text("minimal")


@pytest.mark.parametrize("own", [True, False])
def test_a_rate_that_others_read_is_checked(own: bool) -> None:
    optimiser = torch.optim.SGD([WEIGHT], lr=0.5)

    @tm.jit
    def step(x: torch.Tensor) -> Any:
        WEIGHT.grad = x
        optimiser.step()
        groups = optimiser.param_groups if own else optimiser.state_dict()["param_groups"]
        return x * groups[0]["lr" if own else "".join("lr")]

    for rate in (0.5, 0.25):
        optimiser.param_groups[0]["lr"] = rate
        assert torch.equal(step(torch.ones(3)), torch.full((3,), rate))


# Results


def test_a_second_backward_of_the_result_raises_as_in_eager() -> None:
    loss = tm.jit(plain_step(network()))(*batches(1)[0])
    assert loss.requires_grad
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_graph_that_is_kept_goes_on_outside() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        made = (WEIGHT * x).exp().sum()
        made.backward(retain_graph=True)
        return made

    found = []
    for run in (program, tm.jit(program)):
        WEIGHT.grad = None
        run(torch.ones(3)).backward()
        found.append(WEIGHT.grad)
    assert torch.equal(*found)


# Refusals


def grown(x: torch.Tensor) -> None:
    (x.exp() * WEIGHT).sum().backward()


def kept(x: torch.Tensor) -> torch.Tensor:
    made = WEIGHT * x
    made.retain_grad()
    made.sum().backward(retain_graph=True)
    return made


def searched(x: torch.Tensor) -> None:
    def closure() -> torch.Tensor:
        loss = (x * WEIGHT).sum()
        loss.backward()
        return loss

    torch.optim.LBFGS([WEIGHT]).step(closure)


SPARSE = nn.Embedding(4, 2, sparse=True)


def sparse(x: torch.Tensor) -> None:
    SPARSE(x.long()).sum().backward()


GROWN = torch.ones(3, requires_grad=True) * 1
REFUSED: dict[str, tuple[Program, torch.Tensor]] = {
    "computed outside of the program": (grown, GROWN),
    "with the .grad that it gave": (kept, torch.ones(3)),
    "layout torch.sparse_coo .* make it dense": (sparse, torch.ones(3)),
    "goes by the values of tensors .__float__.": (searched, torch.ones(3)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_told_is_refused_before_any_effect(message: str) -> None:
    program, x = REFUSED[message]
    with pytest.raises(tm.UnsupportedError, match=message):
        tm.jit(program)(x)
    assert WEIGHT.grad is None


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_parameters_are_refused_and_looked_for_at_each_call(kind: str) -> None:
    weight = torch.ones(3, requires_grad=True)

    @tm.jit
    def program(x: torch.Tensor) -> None:
        (x * weight).sum().backward()

    program(torch.ones(3))
    getattr(weight, kind)(lambda _: None)
    weight.grad = None
    with pytest.raises(tm.UnsupportedError, match="a tensor that has hooks"):
        program(torch.ones(3))
    assert weight.grad is None
