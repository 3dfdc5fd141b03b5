"""Gradients without autograd's engine: the same operations in the same order, and the same values, as with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests import op_database
from tracemill.compiler.body_log import BodyLog
from tracemill.compiler.gradients import asked_without_engine, walked
from tracemill.compiler.values import leaves

Tensor = torch.Tensor
Found = tuple[Sequence[Tensor | None], list[Any]]


def engine(outs: Sequence[Tensor], inputs: Sequence[Tensor], given: Sequence[Tensor]) -> Any:
    return torch.autograd.grad(outs, inputs, given, retain_graph=True, allow_unused=True)


def logged(
    find: Callable[..., Any],
    outs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    given: Sequence[Tensor],
) -> Found:
    """The gradients, and the operations that make them, on numbered values."""
    log = BodyLog()
    for tensor in (*outs, *inputs, *given):
        log.add(tensor)
    with log:
        found = find(outs, inputs, given)
    return found, [(item.fn, repr(item.args), repr(item.kwargs)) for item in log.operations]


def same_with_and_without_engine(outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    given = [torch.randn_like(out) for out in outs]
    want, its = logged(engine, outs, inputs, given)
    got, ours = logged(walked, outs, inputs, given)
    assert ours == its
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def _writes_to_a_view(x: Tensor, y: Tensor) -> Tensor:
    made = x * 1
    made[:, 1:3].mul_(y[1:3])
    return made.exp()


def _halves(x: Tensor, y: Tensor) -> Tensor:
    return x.bfloat16() * y.to(torch.float16).sum()


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "broadcast": lambda x, y: x * y + y.sum(),
    "used many times": lambda x, y: (x.sin() * x + x.exp()) * x - y,
    "several results": lambda x, y: (*x.split(4, 1), y.cumsum(0), torch.var_mean(x * y, 1)),
    "a result that nothing reads": lambda x, y: x.topk(2, dim=1).values,
    "an input that nothing reads": lambda x, y: y.exp(),
    "a norm": lambda x, y: F.layer_norm(x, (8,), y, y),
    "products": lambda x, y: (x @ x.t() @ x, x @ y),
    "in place": lambda x, y: x.mul(2).add_(y).relu_(),
    "in place on a view": _writes_to_a_view,
    "other dtypes": _halves,
    "complex": lambda x, y: (
        torch.complex(x, y.expand_as(x)).exp().real * y,
        torch.fft.rfft(x).abs(),
    ),
    "no gradient through one": lambda x, y: x.detach() * y + (x > 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str) -> None:
    x, y = torch.rand(3, 8, requires_grad=True), torch.rand(8, requires_grad=True)
    outs = [leaf for leaf in leaves(PROGRAMS[name](x, y)) if leaf.requires_grad]
    same_with_and_without_engine(outs, (x, y))


def test_values_on_the_way() -> None:
    x = torch.rand(3, 8, requires_grad=True)
    middle = x.exp()
    low, high = middle.split(4, 1)
    same_with_and_without_engine([(low * high).sum(), middle.sin()], (high, x, middle, low))


def test_a_deep_graph() -> None:
    x = y = torch.rand(3, requires_grad=True)
    for _ in range(3000):
        y = y.sin()
    same_with_and_without_engine([y], (x,))


class Cubed(torch.autograd.Function):
    """A node that is Python, which the engine alone calls as it expects to be called."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        return cotangents[0]


def test_a_function_of_the_users_is_refused() -> None:
    x = torch.rand(3, requires_grad=True)
    with pytest.raises(TypeError, match="not callable"):
        walked([Cubed.apply(x)], [x], [x])


NODES_OF_PYTHON = (
    "nn.functional.linear_cross_entropy.chunked",
    "nn.functional.linear_cross_entropy.chunked_none",
)
"""Operators that PyTorch differentiates by such."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each operator; the database is not imported where slow tests are left out."""
    if metafunc.function is test_every_operator:
        left_out = "not slow" in metafunc.config.option.markexpr
        every = [] if left_out else op_database.names(backward=True)
        metafunc.parametrize("operator", [name for name in every if name not in NODES_OF_PYTHON])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # deprecated operators are called too
def test_every_operator(operator: str) -> None:
    op = op_database.database()[operator]
    for sample in op_database.samples(op, 3, backward=True):
        try:
            result = sample.differentiable_part(op(*sample.args, **sample.kwargs))
        except RuntimeError:  # operators that are called on what they refuse
            continue
        given = [leaf for leaf in leaves((sample.args, sample.kwargs)) if isinstance(leaf, Tensor)]
        outs = [
            leaf
            for leaf in leaves(result)
            if isinstance(leaf, Tensor) and leaf.requires_grad and not leaf.is_leaf
        ]
        if outs:
            same_with_and_without_engine(outs, [tensor for tensor in given if tensor.requires_grad])


ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "graph": {"create_graph": True},
    "unused": {"allow_unused": True},
    "zeros": {"materialize_grads": True, "allow_unused": True},
}


@pytest.mark.parametrize("name", ASKED)
def test_what_autograd_is_asked_is_answered_without_its_engine(name: str) -> None:
    options = {
        "create_graph": False,
        "allow_unused": False,
        "is_grads_batched": False,
        "materialize_grads": False,
        **ASKED[name],
    }
    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    inputs = [x, y] if options["allow_unused"] else [x]
    outs = [x.sin().sum(), x.exp()]
    found = [
        ask(outs, inputs, [None, torch.ones(3)], options)
        for ask in (
            lambda *given: torch.autograd.grad(*given[:3], **given[3], retain_graph=True),
            asked_without_engine,
        )
    ]
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert getattr(got, "grad_fn", None).__class__ is getattr(want, "grad_fn", None).__class__


def test_without_its_engine_autograd_raises_the_same() -> None:
    options = {"create_graph": False, "allow_unused": False, "is_grads_batched": False}
    options["materialize_grads"] = False
    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    for outs, inputs in (([x.sin()], [x]), ([x.sum()], [y]), ([torch.ones(1)], [x])):
        messages: list[str] = []
        for ask in (
            lambda outs, inputs: torch.autograd.grad(outs, inputs),
            lambda outs, inputs: asked_without_engine(outs, inputs, None, options),
        ):
            with pytest.raises(RuntimeError) as raised:
                ask(outs, inputs)
            messages.append(str(raised.value))
        assert messages[0] == messages[1]
