"""Functions whose results `functools.lru_cache` keeps: filled as by eager, and never with what belongs to the trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tracemill as tm
from tracemill.compiler.errors import UnsupportedError

X = torch.arange(3.0)
pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again")


def table(size: int, *, scale: float = 2.0) -> Tensor:
    return torch.arange(float(size)) * scale


def tables(size: int) -> tuple[Tensor, dict[str, Tensor]]:
    return torch.ones(size), {"sin": torch.arange(float(size)).sin()}


@pytest.mark.parametrize("limit", [None, 2])
def test_a_cache_that_the_program_fills(limit: int | None) -> None:
    def follow(compiled: Callable[[Any], Any]) -> list[Any]:
        cached = functools.lru_cache(maxsize=limit)(table)
        program = lambda x: cached(x.shape[0], scale=3.0) + x + cached(2)[1]  # noqa: E731
        called = compiled(program)
        found = [called(torch.ones(size)).tolist() for size in (3, 3, 4, 3, 3)]
        return [*found, cached.cache_info().misses, cached.cache_info().currsize]

    assert follow(tm.jit) == follow(lambda program: program)


def test_a_cached_result_is_one_object_at_all_calls() -> None:
    cached = functools.lru_cache(tables)
    called = tm.jit(lambda x: (cached(x.shape[0]), x * cached(3)[1]["sin"]))
    (first, others), product = called(X)
    assert first is cached(3)[0]
    assert others["sin"] is cached(3)[1]["sin"]
    for _ in range(3):
        (again, _), product = called(X)
        assert again is first
    torch.testing.assert_close(product, X * X.sin())
    assert tm.cache_info(called).misses == 2
    cached.cache_clear()
    assert called(X)[0][0] is cached(3)[0] is not first


def test_a_method_that_reads_a_module_and_one_under_other_settings() -> None:
    class Tabled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((3,), 2.0))

        @functools.lru_cache  # noqa: B019
        @torch.no_grad()
        def table(self, dtype: torch.dtype) -> Tensor:
            return (self.scale * torch.arange(3)).to(dtype)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.table(torch.float64) * self.scale

    module = Tabled()
    expected = module(X)
    module.table.cache_clear()
    called = tm.jit(module)
    for _ in range(2):
        result = called(X)
        torch.testing.assert_close(result, expected)
        (gradient,) = torch.autograd.grad(result.sum(), module.scale)
        torch.testing.assert_close(gradient, (X * X * 2.0).double().float())


def test_a_cache_asked_about_a_tensor_of_the_call_is_refused_and_not_filled() -> None:
    doubled = functools.lru_cache(lambda x: x * 2)
    for asked in (lambda x: doubled(x), lambda x: doubled(x + 1)):
        with pytest.raises(
            UnsupportedError, match=r"is called on a tensor of the call at .*asked in"
        ):
            tm.jit(asked)(X)
        assert doubled.cache_info().currsize == 0


def test_a_table_for_a_symbolic_size_is_refused_with_a_way_round() -> None:
    cached = functools.lru_cache(table)
    with pytest.raises(UnsupportedError, match=r"table, whose results .* call it on int\(size\)"):
        tm.jit(lambda x: cached(x.shape[0]) + x, cache="symbolic values")(X)
    assert cached.cache_info().currsize == 0
    called = tm.jit(lambda x: cached(int(x.shape[0])) + x, cache="symbolic values")
    for size in (3, 3, 4):
        torch.testing.assert_close(called(torch.ones(size)), table(size) + 1)


def test_a_table_that_would_read_what_the_program_wrote_is_refused() -> None:
    weight = torch.ones(3)
    cached = functools.lru_cache(lambda scale: weight * scale)

    def program(x: Tensor) -> Tensor:
        weight.add_(x)
        return cached(2)

    with pytest.raises(UnsupportedError, match="after the program wrote to a tensor"):
        tm.jit(program)(X)
    assert cached.cache_info().currsize == 0
    assert weight.tolist() == [1.0, 1.0, 1.0]


def test_a_cached_function_that_raises_is_left_as_in_eager() -> None:
    @functools.cache
    def checked(size: int) -> Tensor:
        if size > 3:
            raise ValueError("too large")
        return torch.ones(size)

    called = tm.jit(lambda x: checked(x.shape[0]) + torch.sin(x))
    with pytest.raises(ValueError, match="too large"):
        called(torch.ones(4))
    torch.testing.assert_close(called(X), torch.ones(3) + X.sin())
