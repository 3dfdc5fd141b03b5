"""Kinds of tensors: a lazy module's parameters get their shape from a call in eager; others are refused by name."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm


def _made() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that lazy modules may change
        return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))


@pytest.fixture
def lazy() -> Any:
    return _made()


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_a_lazy_module_takes_its_shape_in_eager_and_is_compiled_then(lazy: Any, cache: str) -> None:
    twin, jitted = _made(), tm.jit(lazy, cache=cache)
    x = torch.randn(3, 5)
    for misses in (0, 1, 1):
        torch.manual_seed(0)
        got = jitted(x)
        torch.manual_seed(0)
        want = twin(x)
        got.sum().backward()
        want.sum().backward()

        assert torch.equal(got, want)
        assert tm.cache_info(jitted).misses == misses
        assert [type(module) for module in lazy.modules()] == [type(m) for m in twin.modules()]
        for one, other in zip(lazy.parameters(), twin.parameters(), strict=True):
            assert torch.equal(one, other)
            assert torch.equal(one.grad, other.grad)
        assert all(map(torch.equal, lazy.buffers(), twin.buffers()))


def test_a_lazy_module_inside_of_a_function(lazy: Any) -> None:
    jitted = tm.jit(lambda x: lazy(x) * 2)
    x = torch.randn(3, 5)

    jitted(x)

    assert isinstance(lazy[0], nn.Linear)
    assert tm.cache_info(jitted).misses == 0
    jitted(x)
    assert tm.cache_info(jitted).misses == 1


def test_a_trace_of_a_lazy_module_is_refused(lazy: Any) -> None:
    with pytest.raises(tm.UnsupportedError, match=r"no shape yet at .*: call the module once"):
        tm.trace(lazy, torch.randn(3, 5))


def test_another_class_of_tensor_is_refused() -> None:
    class Named(torch.Tensor):
        pass

    with pytest.raises(tm.UnsupportedError, match="of class Named cannot be traced"):
        tm.jit(torch.sin)(torch.randn(2).as_subclass(Named))
