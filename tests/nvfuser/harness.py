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
from tracemill.compiler.symbol import FusedSymbol
from tracemill.compiler.values import leaves
from tracemill.executors.nvfuser.definition import OFFSETS_PER_DRAW, Definition
from tracemill.executors.nvfuser.executor import NvFuserExecutor
from tracemill.executors.nvfuser.fused import Fused

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


class Interpreted(Fused):
    """A region of CPU tensors, its definition compiled, and run by PyTorch."""

    def run(
        self, definition: Definition, inputs: Sequence[Any], device: torch.device
    ) -> list[torch.Tensor]:
        given = list(inputs)
        if definition.draws:
            given += [torch.initial_seed(), int(torch.randint(2**30, ())) * OFFSETS_PER_DRAW]
        if not compiling.obstacle():
            fault = COMPILER.fault(str(definition), given)
            assert not fault, f"{definition}\n{fault[:2000]}"
        return interpreter.run(str(definition), given)


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
