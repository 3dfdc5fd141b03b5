"""Random numbers: nvFuser's are PyTorch's generator's, none is drawn twice, and forward and backward see the same."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tracemill as tm
from tests.nvfuser import compiling, philox
from tests.nvfuser.harness import (
    DEVICE,
    ON_GPU,
    CountedGenerator,
    FusedAnything,
    Interpreted,
    InterpretedAnything,
    executor_for,
    on_device,
)
from tracemill.executors.nvfuser.definition import NUMBERS_PER_OFFSET, random_state

SOURCE = Path(__file__).with_name("random_numbers.cpp")

DRAWING = """def nvfuser_fusion(fd : FusionDefinition) -> None :
    seed = fd.define_scalar(None, dtype=DataType.Int)
    offset = fd.define_scalar(None, dtype=DataType.Int)
    tv0 = fd.ops.uniform(0, 1, [8], rng_seed=seed, rng_offset=offset)
    fd.add_output(tv0)
"""


def curand_headers() -> list[Path]:
    """Where the header of CUDA's generators is: in its package, of whatever version of CUDA, or in a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    candidates = [folder / name / "include" for folder in folders for name in ("curand", "cu13")]
    return [
        one for one in (*candidates, *compiling.headers()) if (one / "curand_kernel.h").exists()
    ]


@pytest.fixture(scope="module")
def device_code(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """nvFuser's device code that makes random numbers, as it gives it to the compiler, and CUDA's own."""
    if compiling.obstacle() or not curand_headers():
        pytest.skip(compiling.obstacle() or "needs CUDA's header curand_kernel.h")
    compiler = compiling.Compiler(dump="cuda_full")
    fault = compiler.fault(DRAWING, [1, 0])
    text = compiler.dumped()
    compiler.close()
    assert not fault
    folder = tmp_path_factory.mktemp("device_code")
    names = "mulhilo32 single_round philox raw_uniform_float raw_uniform_double uniformf uniform normalf normal"
    rng = "rng_uniform rng_uniformf rng_normal_standard rng_normal_standardf"
    parts = [_function(text, name) for name in f"{names} {rng}".split()]
    (folder / "nvfuser_device_code.inc").write_text("\n".join(parts))
    (
        folder / "nv"
    ).mkdir()  # a header of CUDA's compiler; of each choice g++ takes the one that it knows
    (folder / "nv/target").write_text(
        "#define NV_IF_ELSE_TARGET(condition, one, other) other\n#define NV_IF_TARGET(...)\n"
    )
    includes = [f"-I{folder}", *(f"-I{found}" for found in curand_headers()[:1])]
    return ctypes.CDLL(str(compiling.built(SOURCE, folder / "numbers.so", "-w", *includes)))


def _function(text: str, name: str) -> str:
    found = re.search(
        rf"^__device__ [^;{{}}]*?\b{name}\([^;{{}}]*\) \{{\n.*?^\}}\n", text, re.M | re.S
    )
    assert found, name
    return found.group()


def made_by_nvfuser(code: ctypes.CDLL, *counters: int) -> tuple[list[float], ...]:
    words = (ctypes.c_uint32 * 4)()
    singles = [(ctypes.c_float * 4)() for _ in range(2)]
    doubles = [(ctypes.c_double * 2)() for _ in range(2)]
    code.nvfuser_numbers(*map(ctypes.c_uint64, counters), words, *singles, *doubles)
    return tuple(map(list, (words, *singles, *doubles)))


def made_by_pytorch(code: ctypes.CDLL, *counters: int) -> list[int]:
    words = (ctypes.c_uint32 * 4)()
    code.pytorch_numbers(*map(ctypes.c_uint64, counters), words)
    return list(words)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    subsequence=st.integers(0, 2**40),
    offset=st.integers(0, 2**40),
)
def test_an_offset_of_nvfuser_is_four_of_pytorch(
    device_code: ctypes.CDLL, seed: int, subsequence: int, offset: int
) -> None:
    """The numbers of a CUDA kernel of PyTorch's at the offset of its generator are nvFuser's at that of `random_state`."""
    generator: Any = CountedGenerator(seed)
    generator.set_offset(4 * offset)
    ours = [number % 2**64 for number in random_state(generator, 1)]
    theirs = made_by_pytorch(device_code, seed, subsequence, 4 * offset)
    assert made_by_nvfuser(device_code, ours[0], subsequence, ours[1])[0] == theirs
    numbers = philox.numbers(ours[0], torch.tensor([subsequence]), ours[1])
    assert [int(number) for number in numbers] == theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "distribution", [philox.uniform, philox.normal], ids=lambda fn: fn.__name__
)
def test_numbers_are_made_here_as_by_nvfuser(
    device_code: ctypes.CDLL, distribution: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    at = [philox.uniform, philox.normal].index(distribution) + (1 if dtype == torch.float32 else 3)
    found: list[float] = []
    for subsequence in range(6):
        found += made_by_nvfuser(device_code, 2**63 + 5, subsequence, 9)[at]
    wanted = torch.tensor(found, dtype=dtype)
    torch.testing.assert_close(distribution([len(found)], 5 - 2**63, 9, dtype), wanted)


def drawn_by_pytorch(generator: CountedGenerator | None) -> torch.Tensor:
    """64 uniform numbers of a CUDA kernel of PyTorch's, whose threads make four each; without a GPU, what it would draw."""
    if generator is None:
        return torch.rand(64, device=DEVICE)
    words = philox.numbers(
        generator.initial_seed(), torch.arange(16), generator.get_offset() // NUMBERS_PER_OFFSET
    )
    generator.set_offset(generator.get_offset() + 4)  # max_generator_offsets_per_curand_call
    return torch.stack(words).flatten() * 2.0**-32


def test_no_number_is_drawn_twice() -> None:
    """Not in one region, not in two calls, and not by PyTorch between them."""

    class Counted(Interpreted):
        generator = CountedGenerator(7)

    class CountedExecutor(InterpretedAnything):
        function = Counted

    def fn() -> tuple[torch.Tensor, ...]:
        return tuple(torch.rand(64, device=DEVICE) + 0 for _ in range(3))

    fast = tm.jit(fn, executors=[(FusedAnything if ON_GPU else CountedExecutor)(strict=True)])
    generator = None if ON_GPU else Counted.generator
    torch.manual_seed(7)
    found: list[torch.Tensor] = []
    for _ in range(4):
        found += [*fast(), *(drawn_by_pytorch(generator) for _ in range(5))]
    numbers = torch.cat(found)
    assert len(numbers.unique()) == len(numbers)
    if generator is not None:
        assert generator.get_offset() == 4 * (3 + 5) * NUMBERS_PER_OFFSET


def test_the_backward_leaves_out_what_the_forward_did() -> None:
    drop = torch.ops.aten.native_dropout.default  # what dropout is on a GPU

    def fn(x: torch.Tensor) -> torch.Tensor:
        return drop(drop(x * 1, 0.3, True)[0] * 1, 0.5, True)[0]

    fast = tm.jit(fn, executors=[executor_for(anything=True)])
    x = on_device(torch.ones(64, 64)).requires_grad_()
    for _ in range(2):
        made = fast(x)
        (gradient,) = torch.autograd.grad(made.sum(), x)
        torch.testing.assert_close(gradient, made)
        assert abs((made == 0).float().mean().item() - 0.65) < 0.05


def test_what_is_dropped_is_no_number_where_it_was_none() -> None:
    """As by PyTorch, which multiplies by zero."""
    fast = tm.jit(
        lambda x: torch.ops.aten.native_dropout(x, 0.5, True)[0],
        executors=[executor_for(anything=True)],
    )
    made = fast(on_device(torch.full((64,), float("inf"))))
    assert set(made.isnan().tolist()) == {True, False}
    assert made.isposinf().logical_or(made.isnan()).all()
