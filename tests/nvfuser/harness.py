"""Programs fused by nvFuser, compared with eager: on a GPU for real, elsewhere on the CPU, definition by definition.

Without a GPU, the regions are formed of lines on CPU tensors, and each definition is run by `interpreter`, and compiled by
`compiling`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch

import tracemill as tm
from tests.nvfuser import compiling, interpreter
from tracemill.compiler.answer import NewTensor
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbol import FusedSymbol
from tracemill.compiler.values import leaves, map_leaves
from tracemill.executors.nvfuser.definition import Definition, random_state
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


class CountedGenerator:
    """Counts as a generator of CUDA's does, without its numbers."""

    def __init__(self, seed: int) -> None:
        self._seed, self._offset = seed, 0

    def initial_seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> None:
        assert offset % 4 == 0, "offset must be a multiple of 4"
        self._offset = offset


def interpreted(
    definition: Definition, inputs: Sequence[Any], generator: Any = None
) -> list[torch.Tensor]:
    """Compiles a definition for inputs like these, where no GPU does, and runs it on them by PyTorch.

    generator: whose random numbers it draws; those of a new one, which PyTorch's seed decides on, unless given.
    """
    given = list(inputs)
    if definition.draws:
        generator = generator or CountedGenerator(int(torch.randint(2**62, ())))
        given += random_state(generator, definition.draws)
    if not ON_GPU and not compiling.obstacle():
        fault = COMPILER.fault(str(definition), given)
        assert not fault, f"{definition}\n{fault[:2000]}"
    return interpreter.run(str(definition), given)


class Interpreted(Fused):
    """A region of CPU tensors, its definition compiled, and run by PyTorch."""

    generator: ClassVar[CountedGenerator | None] = None

    def run(
        self, definition: Definition, inputs: Sequence[Any], device: torch.device
    ) -> list[torch.Tensor]:
        return interpreted(definition, inputs, self.generator)


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


PRINTED = 1e-5
"""What six digits of constants, and another order of summing, make of float32 in a whole block, of the largest value."""


def as_exact(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """Raises AssertionError where a result is further from the exact one than twice what eager's is.

    One rounding to its dtype is allowed besides, and what float32 may differ by.
    """
    assert got.dtype == eager.dtype
    assert got.shape == exact.shape
    if not got.dtype.is_floating_point:
        assert torch.equal(got, eager)
        return
    error, own = ((value - exact).abs().max().item() for value in (got.double(), eager.double()))
    rounding = torch.finfo(got.dtype).eps / 2 + PRINTED
    assert error <= 2 * own + rounding * exact.abs().max().item(), (error, own)


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
        eager, exact = (_by_lines(bsym, inputs, rounded=rounded) for rounded in (True, False))
        for one, own, other, proxy in zip(got, eager, exact, bsym.outputs, strict=True):
            assert isinstance(proxy, TensorProxy)
            assert (one.dtype, tuple(one.shape)) == (proxy.dtype, proxy.shape)
            as_exact(one.cpu(), own, other)


def _numbers_like(proxy: TensorProxy) -> torch.Tensor:
    """Numbers between 0 and 1, where every function is defined, and integers that are 0 or 1."""
    meta = proxy.meta
    numbers = torch.empty_strided(meta.shape, meta.stride)
    numbers.uniform_(0.1, 1.0)
    if not meta.dtype.is_floating_point:
        numbers = numbers > 0.5
    return numbers.to(DEVICE, meta.dtype)


def _by_lines(
    region: tm.BoundSymbol, inputs: Sequence[torch.Tensor], *, rounded: bool
) -> list[torch.Tensor]:
    """The region's lines, one after the other; on the CPU, as a GPU's kernels compute them.

    rounded: whether each gives what it is recorded to give, half types computed in float32 and rounded then, as by eager;
    else all is computed in float64.
    """
    computed = torch.float32 if rounded else torch.float64
    given = [widened(value, computed) for value in inputs]
    values: dict[Any, Any] = dict(zip(region.inputs, given, strict=True))

    def argument(leaf: Any) -> Any:
        return values.get(leaf, leaf) if isinstance(leaf, tm.Proxy) else widened(leaf, computed)

    for bsym in region.subsymbols:
        run: Any = ON_CPU.get(bsym.sym.impl, bsym.sym.impl)
        args, kwargs = map_leaves(argument, (bsym.args, bsym.kwargs))
        for proxy, value in zip(leaves(bsym.output), leaves(run(*args, **kwargs)), strict=True):
            if rounded and isinstance(proxy, TensorProxy) and proxy.dtype in HALF_TYPES:
                value = value.to(proxy.dtype).to(computed)
            values[proxy] = value
    outputs = [proxy for proxy in region.outputs if isinstance(proxy, TensorProxy)]
    return [values[one].to(one.dtype) if rounded else values[one] for one in outputs]


def widened(value: Any, dtype: torch.dtype) -> Any:
    """An argument for computing in a dtype of floats, on the CPU."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.Tensor):
        return value.to("cpu", widened(value.dtype, dtype))
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return dtype
    return value


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
