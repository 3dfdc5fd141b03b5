"""The executor itself: symbolic sizes, random numbers, definitions that are shared, and what becomes of failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm
from tests.nvfuser.harness import (
    ON_GPU,
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
from tracemill.executors.nvfuser.fused import Fused
from tracemill.executors.nvfuser.layout import Layout


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


def report(fast: Any) -> str:
    return next(
        row.facts["nvfuser, computation:"] for row in tm.last_report(fast) if row.name == "claim"
    )


def test_updates_of_parameters_that_are_alike_share_a_definition() -> None:
    def step(weights: list[torch.Tensor], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        return [w - 0.1 * g / (g * g).sqrt() for w, g in zip(weights, gradients, strict=True)]

    weights, gradients = ([on_device(some(4, n)) for n in (8, 8, 6)] for _ in range(2))
    fast = tm.jit(step, executors=[executor_for()])
    compare(fast(weights, gradients), step(weights, gradients))
    made: list[Any] = [bsym.sym.impl for bsym in regions(tm.last_traces(fast)[-1])]
    assert [len({id(impl.definition()) for impl in made[:n]}) for n in (2, 3)] == [1, 2]
    assert report(fast) == "3 regions (3 x 5 lines), split: 1 because its parts share no values"


def test_a_region_is_of_so_many_operations_as_a_user_says() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = x.sin()
        return x

    fast = tm.jit(chain, executors=[type(executor_for())(most_operations=4)])
    x = on_device(some(8))
    compare(fast(x), chain(x))
    assert report(fast) == (
        "3 regions (2 x 4 + 2 lines), split: 1 because it has more than 4 operations"
    )


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
    """A region that nvFuser does not run, with what it says of one, such as that its kernels do not compile."""

    message = """INTERNAL ASSERT FAILED at compiled_kernel.cpp:187, please report a bug

// Codegen generated code
} // namespace nvf

CUDA NVRTC compile error: kernel.cu(12731): error: no instance of overloaded function
         = relu(T2[0]);

Exception raised from invoke at compiled_kernel.cpp:187 (most recent call first):"""
    error: type[Exception] = RuntimeError

    def run(
        self, definition: Definition, inputs: Sequence[Any], device: torch.device
    ) -> list[torch.Tensor]:
        raise self.error(self.message)


class Refusing(Failing):
    """A region of which nvFuser refuses an input."""

    message = "Expected (stride)==(expected) . Found 2 vs 1.\nException raised from validate at metadata.cpp"


class OutOfMemory(Failing):
    """A region for which there is no memory at this moment."""

    error = torch.cuda.OutOfMemoryError


def executor_of(kind: type[Fused], *, strict: bool = False) -> NvFuserExecutor:
    class OfKind(InterpretedAnything):
        function = kind

    return OfKind(strict=strict)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            Failing,
            r"CUDA NVRTC compile error: kernel.cu\(12731\): error: no instance of .*function$",
        ),
        (Refusing, r"Expected \(stride\)==\(expected\) . Found 2 vs 1.$"),
    ],
)
def test_a_region_that_nvfuser_does_not_run_runs_by_pytorch_with_one_warning(
    kind: type[Failing], reason: str
) -> None:
    fast = tm.jit(lambda x: x.exp() + 1, executors=[executor_of(kind)])
    x = some(3, 8)
    with pytest.warns(
        UserWarning,
        match=f"nvFuser could not run region nvfuser0, which PyTorch runs instead: {reason}",
    ):
        compare(fast(x), x.exp() + 1)
    compare(fast(x), x.exp() + 1)
    strict = tm.jit(lambda x: x.exp() + 1, executors=[executor_of(kind, strict=True)])
    with pytest.raises(RuntimeError, match="Exception raised from"):
        strict(x)


def test_a_region_that_found_no_memory_is_nvfusers_still() -> None:
    fast = tm.jit(lambda x: x.exp() + 1, executors=[executor_of(OutOfMemory)])
    for _ in range(2):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            fast(some(3, 8))


class Late(Interpreted):
    """A region that nvFuser runs, but not for sizes from ten on, which need other kernels."""

    def run(
        self, definition: Definition, inputs: Sequence[Any], device: torch.device
    ) -> list[torch.Tensor]:
        if max(inputs[0].shape) >= 10:
            raise RuntimeError("Expected size < 10 .")
        return super().run(definition, inputs, device)


def test_a_region_that_fails_at_another_size_runs_by_pytorch() -> None:
    fast = tm.jit(lambda x: x.exp() + 1, executors=[executor_of(Late)], cache="symbolic values")
    small, large = some(3), some(10)
    compare(fast(small), small.exp() + 1)
    with pytest.warns(UserWarning, match="could not run region nvfuser0"):
        compare(fast(large), large.exp() + 1)
    compare(fast(small), small.exp() + 1)
    assert tm.cache_info(fast).misses == 1


class Looking(Interpreted):
    """A region that refuses inputs of another layout than its definition is for, as nvFuser does."""

    def run(
        self, definition: Definition, inputs: Sequence[Any], device: torch.device
    ) -> list[torch.Tensor]:
        if definition is not self.definition([Layout.of(x.shape, x.stride()) for x in inputs]):
            raise RuntimeError("Expected (stride)==(expected) . Found 1 vs 8.")
        return super().run(definition, inputs, device)


def test_a_region_looks_at_its_inputs_where_they_are_not_as_recorded() -> None:
    fast = tm.jit(lambda x: x.exp() + 1, executors=[executor_of(Looking)])
    x = some(4, 8)
    compare(fast(x), x.exp() + 1)
    (region,) = regions(tm.last_traces(fast)[-1])
    function: Any = region.sym.impl
    other = some(8, 4).t()  # as a kernel of PyTorch's may give it
    for _ in range(2):
        (made,) = function(other)
        torch.testing.assert_close(made, other.exp() + 1, rtol=1e-5, atol=1e-5)
        assert made.stride() == x.stride()


class Captured(Interpreted):
    """A region in a CUDA graph that is being captured."""

    def is_captured(self) -> bool:
        return True


def test_in_a_cuda_graph_pytorch_draws_the_random_numbers() -> None:
    """A graph repeats nvFuser's seed and offset at each replay; PyTorch's it knows."""
    drop = torch.ops.aten.native_dropout.default
    fast = tm.jit(lambda x: drop(x, 0.5, True)[0] * 2, executors=[executor_of(Captured)])
    x = torch.ones(64)
    torch.manual_seed(1)
    got = fast(x)
    torch.manual_seed(1)
    assert torch.equal(got, drop(x, 0.5, True)[0] * 2)


def test_memory_that_does_not_hold_the_values_is_left_to_pytorch() -> None:
    fast = tm.jit(lambda x: x.sin() * 2, executors=[executor_for(anything=True)])
    negative = torch.ones(4, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    for x, reason in (
        (negative, "1 of a tensor with the negative bit"),
        (torch.eye(4).to_sparse(), "2 of torch.sparse_coo"),
    ):
        x = on_device(x)
        torch.testing.assert_close(fast(x), x.sin() * 2)
        assert reason in str(tm.last_report(fast))


@pytest.mark.skipif(
    ON_GPU and torch.cuda.device_count() < 2,
    reason="where there are GPUs, PyTorch makes fakes of those alone",
)
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
