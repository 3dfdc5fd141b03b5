"""Programs fused by nvFuser, compared with eager: on a GPU for real, elsewhere on the CPU, definition by definition.

Without a GPU, the regions are formed of lines on CPU tensors, and each definition is run by `interpreter`, and compiled by
`compiling`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import tracemill as tm
from tests.nvfuser import compiling, interpreter
from tracemill.compiler.answer import NewTensor
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbol import FusedSymbol
from tracemill.compiler.values import leaves, map_leaves
from tracemill.executors.nvfuser.definition import OFFSETS_PER_DRAW, Definition
from tracemill.executors.nvfuser.executor import NvFuserExecutor
from tracemill.executors.nvfuser.fused import Fused
from tracemill.executors.nvfuser.library import HALF_TYPES

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
COMPILER = compiling.Compiler()

FLOATS = (torch.float32, torch.bfloat16)


def some(
    *sizes: int, dtype: torch.dtype = torch.float32, low: float = -2.0, high: float = 2.0
) -> torch.Tensor:
    """Numbers between two bounds."""
    return (torch.rand(sizes) * (high - low) + low).to(dtype)


TOLERANCES = {
    torch.float32: (2e-5, 2e-5),
    torch.bfloat16: (3e-2, 3e-2),
    torch.float16: (4e-3, 4e-3),
}
"""Relative and absolute: six printed digits of constants, and half types that are rounded less often than by eager."""


def interpreted(definition: Definition, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Compiles a definition for inputs like these, and runs it on them by PyTorch."""
    given = list(inputs)
    if definition.draws:
        given += [torch.initial_seed(), int(torch.randint(2**30, ())) * OFFSETS_PER_DRAW]
    if not compiling.obstacle():
        fault = COMPILER.fault(str(definition), given)
        assert not fault, f"{definition}\n{fault[:2000]}"
    return interpreter.run(str(definition), given)


class Interpreted(Fused):
    """A region of CPU tensors, its definition compiled, and run by PyTorch."""

    def run(
        self, definition: Definition, inputs: Sequence[Any], device: torch.device
    ) -> list[torch.Tensor]:
        return interpreted(definition, inputs)


class InterpretedExecutor(NvFuserExecutor):
    """Takes lines on the CPU."""

    device_type = "cpu"
    function = Interpreted


class Anything:
    """Mixed in: regions of single operations too, and of views."""

    def is_worth(self, region: Any) -> bool:
        return True


class InterpretedAnything(Anything, InterpretedExecutor):
    """For tests of single operations."""


class FusedAnything(Anything, NvFuserExecutor):
    """For tests of single operations on a GPU."""


def executor_for(options: Sequence[str] = (), *, anything: bool = False) -> NvFuserExecutor:
    """The executor of this machine, for which a failure is an error."""
    if anything:
        return (FusedAnything if ON_GPU else InterpretedAnything)(options, strict=True)
    return (NvFuserExecutor if ON_GPU else InterpretedExecutor)(options, strict=True)


def regions(trace: tm.Trace) -> Iterator[tm.BoundSymbol]:
    """The lines that are regions."""
    return (bsym for bsym in trace.bound_symbols if isinstance(bsym.sym, FusedSymbol))


def left(trace: tm.Trace) -> list[str]:
    """The operations that PyTorch runs, views and unpacking apart."""
    return [
        bsym.sym.name
        for bsym in trace.bound_symbols
        if not isinstance(bsym.sym, FusedSymbol) and bsym.is_recorded and _computes(bsym)
    ]


def _computes(bsym: tm.BoundSymbol) -> bool:
    assert bsym.answer is not None
    specs = [spec for spec in leaves(bsym.answer.output) if isinstance(spec, NewTensor)]
    return any(spec.storage[0] == "new" for spec in specs)


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    """Raises AssertionError where values differ by more than a part of the largest."""
    assert got.dtype == want.dtype
    scale = want.abs().max().item() if want.dtype.is_floating_point and want.numel() else 0
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance * scale)


def compare(got: Any, want: Any) -> None:
    """Raises AssertionError where results differ by more than `TOLERANCES`."""
    for one, other in zip(flat(got), flat(want), strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        relative, absolute = TOLERANCES.get(other.dtype, (0, 0))
        if other.dtype == torch.float64:
            relative = absolute = 1e-5
        torch.testing.assert_close(one, other, rtol=relative, atol=absolute, equal_nan=True)


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    return [value] if isinstance(value, torch.Tensor) else list(value)


def fused_like_eager(
    fn: Callable[..., Any],
    *args: Any,
    options: Sequence[str] = (),
    gradients: bool = False,
    leaves_none: bool = True,
) -> Any:
    """Runs `fn` fused and by eager, with gradients if asked, and compares; returns the jitted function.

    leaves_none: all that computes must be in regions.
    """
    args = tuple(on_device(arg) for arg in args)
    fast = tm.jit(fn, executors=[executor_for(options, anything=True)])
    ours, theirs = (_given(args, gradients=gradients) for _ in range(2))
    got, want = fast(*ours), fn(*theirs)
    compare(got, want)
    if leaves_none:
        assert not left(tm.last_traces(fast)[-1]), left(tm.last_traces(fast)[-1])
        assert list(regions(tm.last_traces(fast)[-1]))
    if gradients:
        cotangents = [torch.randn_like(tensor) for tensor in flat(want)]
        compare(
            *(
                _gradients(result, given, cotangents)
                for result, given in ((got, ours), (want, theirs))
            )
        )
        if leaves_none:
            last = left(tm.last_backward_traces(fast)[-1])
            assert not last, last
    return fast


def definitions_like_eager(trace: tm.Trace) -> None:
    """Runs each region of a program for a GPU, compiled without data, on numbers, and compares with its lines by eager."""
    for bsym in regions(trace):
        function: Any = bsym.sym.impl
        inputs = [_numbers_like(value) for value in bsym.inputs if isinstance(value, TensorProxy)]
        got = function(*inputs) if ON_GPU else interpreted(function.definition(), inputs)
        half = any(value.dtype in HALF_TYPES for value in (*inputs, *got))
        for one, other, proxy in zip(got, _by_lines(bsym, inputs), bsym.outputs, strict=True):
            assert isinstance(proxy, TensorProxy)
            assert (one.dtype, tuple(one.shape)) == (proxy.dtype, proxy.shape)
            close(one, other.to(proxy.dtype), 1e-1 if half else 1e-4)


def _numbers_like(proxy: TensorProxy) -> torch.Tensor:
    """Numbers between 0 and 1, where every function is defined, and integers that are 0 or 1."""
    meta = proxy.meta
    numbers = torch.empty_strided(meta.shape, meta.stride)
    numbers.uniform_(0.1, 1.0)
    if not meta.dtype.is_floating_point:
        numbers = numbers > 0.5
    return numbers.to(DEVICE, meta.dtype)


def _by_lines(region: tm.BoundSymbol, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The region's lines by eager; on the CPU in float32, which its kernels take for the statistics of half types too."""
    values: dict[Any, Any] = dict(zip(region.inputs, map(_here, inputs), strict=True))

    def given(leaf: Any) -> Any:
        return values.get(leaf, leaf) if isinstance(leaf, tm.Proxy) else _here(leaf)

    for bsym in region.subsymbols:
        run: Any = bsym.sym.impl if ON_GPU else ON_CPU.get(bsym.sym.impl, bsym.sym.impl)
        args, kwargs = map_leaves(given, (bsym.args, bsym.kwargs))
        values.update(zip(leaves(bsym.output), leaves(run(*args, **kwargs)), strict=True))
    return [values[proxy] for proxy in region.outputs]


def _here(value: Any) -> Any:
    """A value as the device of this machine takes it."""
    if isinstance(value, torch.device):
        return torch.device(DEVICE)
    if ON_GPU:
        return value
    if isinstance(value, torch.Tensor):
        return value.to(_here(value.dtype))
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF_TYPES else value


def _flash(query: Any, key: Any, value: Any, *options: Any, **scale: Any) -> tuple[Any, ...]:
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    state = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    found = attend(query, key, value, *options, **scale)
    return (*found, None, None, query.shape[2], key.shape[2], *state, query.new_empty(0))


def _flash_backward(*args: Any, **scale: Any) -> Any:
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return backward(*args[:6], *args[10:12], **scale)


ON_CPU: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._scaled_dot_product_flash_attention.default: _flash,
    torch.ops.aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
}
"""What PyTorch computes by other kernels where there is no GPU."""


def on_device(value: Any) -> Any:
    """A tensor where regions are tested."""
    return value.to(DEVICE) if isinstance(value, torch.Tensor) else value


def _given(args: Sequence[Any], *, gradients: bool) -> list[Any]:
    return [
        arg.detach().clone().requires_grad_() if gradients and _differentiable(arg) else arg
        for arg in args
    ]


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _gradients(result: Any, given: Sequence[Any], cotangents: Sequence[Any]) -> list[torch.Tensor]:
    inputs = [value for value in given if _differentiable(value)]
    return list(torch.autograd.grad(flat(result), inputs, list(cotangents)))
