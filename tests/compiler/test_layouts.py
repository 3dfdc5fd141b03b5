"""Layouts of fake tensors are those of the CPU's kernels, for operands that are not contiguous too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracemill as tm
from tests import op_database
from tracemill.compiler.layouts import ASKED, Fakes
from tracemill.compiler.torch_internals import TorchDispatchMode
from tracemill.compiler.values import leaves, map_leaves

RANDOM = torch.Tag.nondeterministic_seeded


def _strides(tensor: torch.Tensor) -> list[int]:
    return [n for n, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


class Compared(TorchDispatchMode):
    """Runs each operation for real, and on fakes of the same layouts; notes where these differ."""

    def __init__(self) -> None:
        super().__init__()
        self.different: dict[Any, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        real = func(*args, **kwargs)
        operands = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        aliases = func._schema.is_mutable or any(out.alias_info for out in func._schema.returns)
        strided = all(tensor.layout == torch.strided for tensor in operands)
        if aliases or not strided or RANDOM in func.tags or func.namespace != "aten":
            return real
        mode = Fakes(allow_non_fake_inputs=True)

        def fake(leaf: Any) -> Any:
            return mode.from_tensor(leaf.detach()) if isinstance(leaf, torch.Tensor) else leaf

        try:
            with mode:
                faked = func(*map_leaves(fake, args), **map_leaves(fake, kwargs))
        except Exception:  # data-dependent, or without fake tensors
            return real
        for one, two in zip(leaves(real), leaves(faked), strict=False):
            if isinstance(one, torch.Tensor) and one.shape == two.shape and one.numel() > 1:
                if _strides(one) != _strides(two):
                    self.different[func] = f"{one.stride()}, not {two.stride()}"
        return real


def _last_swapped(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1) if tensor.dim() > 2 else tensor


def _samples(name: str) -> Iterator[tuple[Callable[..., Any], Any, Any]]:
    operator = op_database.database()[name]
    for sample in islice(operator.sample_inputs("cpu", torch.float32), 6):
        given = sample.input, sample.args, sample.kwargs
        for order in (_last_swapped, _channels_last):

            def leaf(leaf: Any, order: Any = order) -> Any:
                if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
                    return leaf
                return order(leaf.detach()).requires_grad_(leaf.is_floating_point())

            first, args, kwargs = map_leaves(leaf, given)
            yield operator.op, (first, *args), kwargs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each operator; the database is not imported where slow tests are left out."""
    if metafunc.function is test_operators:
        left_out = "not slow" in metafunc.config.option.markexpr
        every = [] if left_out else op_database.names()
        metafunc.parametrize("name", [name for name in every if not name.startswith("sparse")])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_operators(name: str) -> None:
    with Compared() as compared:
        for op, args, kwargs in _samples(name):
            try:
                outs = [out for out in leaves(op(*args, **kwargs)) if isinstance(out, torch.Tensor)]
                outs = [out for out in outs if out.requires_grad]
                if outs:
                    torch.autograd.backward(outs, [torch.ones_like(out) for out in outs])
            except (RuntimeError, ValueError, AssertionError):
                continue  # not for such operands
    assert not compared.different


def test_batch_norm_between_transposes() -> None:
    torch.manual_seed(0)
    norm, head = nn.BatchNorm1d(4), nn.Linear(4, 5)

    def program(x: torch.Tensor) -> torch.Tensor:
        return head(norm(x.transpose(1, 2)).transpose(1, 2)).sum()

    gradients = []
    for fn in (program, tm.jit(program)):
        x = torch.arange(24.0).reshape(2, 3, 4).sin().requires_grad_()
        fn(x).backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, (4,), torch.ones(4)),
        lambda x: F.binary_cross_entropy(x, torch.full((2, 3, 4), 0.5), reduction="none"),
        lambda x: F.softplus(x) * F.elu(x),
    ],
    ids=["layer_norm", "binary_cross_entropy", "softplus"],
)
def test_gradients_that_come_in_another_layout(function: Callable[..., Any]) -> None:
    """The gradient of the transposed result is brought to the operation as a view of it."""
    weight = torch.linspace(0, 1, 24).reshape(2, 4, 3)
    with Compared() as compared:
        x = torch.linspace(0.1, 0.9, 24).reshape(2, 3, 4).requires_grad_()
        (function(x).mT * weight).sum().backward()
    assert not compared.different


ORDERS = ((0, 1, 2), (0, 2, 1), (2, 0, 1))
"""Orders in memory of the dimensions of an operand."""


def _two_operands() -> Iterator[Any]:
    """Operations of autograd, element by element, that take a gradient and one more tensor."""
    for name in torch.ops.aten:
        operation = getattr(getattr(torch.ops.aten, name), "default", None)
        if name.endswith("_backward") and torch.Tag.pointwise in getattr(operation, "tags", ()):
            yield operation


def test_operands_of_unlike_layouts() -> None:
    given = [torch.rand(2, 3, 4).mul_(0.5).add_(0.25)] * 2
    with Compared() as compared:
        for operation in _two_operands():
            kinds = [str(argument.type) for argument in operation._schema.arguments]
            numbers = [1 if kind != "bool" else False for kind in kinds if kind != "Tensor"]
            if kinds.count("Tensor") != 2 or len(numbers) + 2 != len(kinds):
                continue
            for order, other in ((o, p) for o in ORDERS for p in ORDERS):
                pair = [
                    tensor.permute(way).contiguous().permute([way.index(dim) for dim in range(3)])
                    for tensor, way in zip(given, (order, other), strict=True)
                ]
                operands = iter(pair)
                rest = iter(numbers)
                args = [next(operands if kind == "Tensor" else rest) for kind in kinds]
                try:
                    operation(*args)
                except (RuntimeError, TypeError):  # other types than these
                    break
    assert not compared.different


def test_what_is_asked_is_not_random() -> None:
    assert not [operation for operation in ASKED if RANDOM in operation.tags]
