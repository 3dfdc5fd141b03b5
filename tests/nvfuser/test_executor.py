"""The executor itself: symbolic sizes, random numbers, definitions that are shared, and what becomes of failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm
from tests.nvfuser.harness import (
    Interpreted,
    InterpretedAnything,
    compare,
    executor_for,
    on_device,
    regions,
    some,
)
from tracemill.executors.nvfuser.definition import Definition
from tracemill.executors.nvfuser.executor import NvFuserExecutor, definitions


def test_one_definition_for_many_sizes() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        scaled = F.layer_norm(x * w, (x.shape[-1],))
        return F.softmax(scaled, -1).reshape(-1, 8) + 1, (x[:, 1:] * 2).sum(0)

    fast = tm.jit(fn, executors=[executor_for(anything=True)], cache="symbolic values")
    for rows in (4, 6, 9):
        x, w = on_device(some(rows, 8)), on_device(some(8))
        compare(fast(x, w), fn(x, w))
    assert tm.cache_info(fast).misses == 1
    (text,) = definitions(tm.last_traces(fast)[-1]).values()
    assert "shape=[-1, 8]" in text


def test_ranges_of_symbolic_sizes() -> None:
    def fn(x: torch.Tensor) -> Any:
        n = x.shape[0]
        ends = ((n,), (1, n), (0, n, 2), (n, 0, -1), (n - 1, -1, -2))
        return tuple(torch.arange(*end, device=x.device) + x.sum().long() for end in ends)

    fast = tm.jit(fn, executors=[executor_for(anything=True)], cache="symbolic values")
    for rows in (4, 7, 12):
        x = on_device(torch.ones(rows))
        compare(fast(x), fn(x))
    assert tm.cache_info(fast).misses == 1


def test_layers_that_do_the_same_share_their_definition() -> None:
    def fn(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = F.gelu(x @ weight) + 1
        return x

    fast = tm.jit(fn, executors=[executor_for()])
    fast(on_device(some(8, 8)), *(on_device(some(8, 8)) for _ in range(3)))
    made: list[Any] = [bsym.sym.impl for bsym in regions(tm.last_traces(fast)[-1])]
    assert len(made) == 3
    assert len({id(impl.definition()) for impl in made}) == 1


def test_dropout_draws_anew_at_each_call_and_alike_after_a_seed() -> None:
    drop = torch.ops.aten.native_dropout.default  # what dropout is on a GPU
    fast = tm.jit(lambda x: drop(x, 0.25, True)[0], executors=[executor_for(anything=True)])
    x = on_device(torch.ones(64, 64))
    torch.manual_seed(1)
    first, second = fast(x), fast(x)
    torch.manual_seed(1)
    again = fast(x)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    assert first.unique().tolist() == [0.0, pytest.approx(1 / 0.75, rel=1e-5)]
    assert abs((first == 0).float().mean().item() - 0.25) < 0.03
    (text,) = definitions(tm.last_traces(fast)[-1]).values()
    assert "rng_seed=" in text


class Failing(Interpreted):
    """A region whose kernels do not compile."""

    def run(
        self, definition: Definition, inputs: Sequence[Any], device: torch.device
    ) -> list[torch.Tensor]:
        raise RuntimeError(" INTERNAL ASSERT FAILED at somewhere")


class FailingExecutor(InterpretedAnything):
    """An executor of such."""

    function = Failing


def test_a_region_that_does_not_compile_runs_by_pytorch_with_one_warning() -> None:
    fast = tm.jit(lambda x: x.exp() + 1, executors=[FailingExecutor()])
    x = some(3, 8)
    with pytest.warns(UserWarning, match="nvFuser could not compile region nvfuser0"):
        compare(fast(x), x.exp() + 1)
    compare(fast(x), x.exp() + 1)
    strict = tm.jit(lambda x: x.exp() + 1, executors=[FailingExecutor(strict=True)])
    with pytest.raises(RuntimeError, match="INTERNAL ASSERT"):
        strict(x)


def test_lines_on_two_gpus_are_in_two_regions() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> Any:
        return (x * scale).exp(), (y * scale).exp()

    fast = tm.jit(fn, executors=[NvFuserExecutor(strict=True)])
    fast(tm.fake("cuda:0 f32[4]"), tm.fake("cuda:1 f32[4]"), tm.fake("cpu f32[]"))
    texts = definitions(tm.last_traces(fast)[-1]).values()
    assert len(texts) == 2
    assert all(text.count("is_cpu=True") == 1 for text in texts)


def test_the_definition_of_a_program_for_a_gpu_is_read_without_one() -> None:
    fast = tm.jit(lambda x: F.silu(x) * 2)
    made = fast(tm.fake("cuda:0 bf16[4, 8]"))
    assert made.device.type == "cuda"
    (text,) = definitions(tm.last_traces(fast)[-1]).values()
    assert text.count("fd.ops.cast") == 2  # to Float and back, and nowhere between
    assert "is_cpu=False" in text
