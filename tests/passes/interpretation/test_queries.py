"""Calls that are not recorded as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm

INDICES = torch.tensor([[0, 2, 2], [3, 1, 0]])


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize(
    "made",
    [
        lambda: nn.Embedding(4, 3, max_norm=0.5),
        lambda: nn.Embedding(4, 3, max_norm=0.5, norm_type=1.0, sparse=True),
        lambda: nn.EmbeddingBag(4, 3, max_norm=0.5, mode="sum"),
    ],
)
def test_an_embedding_scales_its_weight_down(made: Callable[[], Any], cache: str) -> None:
    """`max_norm` writes to the weight, a leaf that requires grad, where autograd does not see it."""
    module = made()
    twin, jitted = copy.deepcopy(module), tm.jit(module, cache=cache)
    for indices in (INDICES, INDICES, INDICES[:, :2]):
        with torch.no_grad():
            for one in (module, twin):
                one.weight.add_(0.1)
        got, want = jitted(indices), twin(indices)
        for one, value in ((module, got), (twin, want)):
            one.zero_grad()
            value.square().sum().backward()

        assert torch.equal(got, want)
        assert torch.equal(module.weight, twin.weight)
        assert torch.equal(
            module.weight.grad.to_dense(),
            twin.weight.grad.to_dense(),
        )


def test_an_embedding_bag_given_weight_and_indices_the_other_way_round() -> None:
    weight = torch.randn(4, 3)

    def program(w: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding_bag(w, INDICES, max_norm=0.5)

    other = weight.clone()
    with pytest.warns(UserWarning, match="Argument order"):
        want = program(other)
    with pytest.warns(UserWarning, match="Argument order"):
        got = tm.jit(program)(weight)

    assert torch.equal(got, want)
    assert torch.equal(weight, other)


def test_a_module_is_brought_to_the_dtype_that_it_has() -> None:
    linear = nn.Linear(3, 2)
    jitted = tm.jit(lambda x: linear.to(x.dtype)(x))
    x = torch.randn(2, 3)

    assert torch.equal(jitted(x), linear(x))
    with pytest.raises(
        tm.UnsupportedError, match=r"assignment to Tensor.data is asked for at .*linear.to"
    ):
        jitted(x.double())
    assert linear.weight.dtype is torch.float32
