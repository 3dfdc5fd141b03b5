"""inductor: regions compiled by PyTorch's own code generator, for CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeGuard

import torch

from tracemill.compiler import torch_internals
from tracemill.compiler.proxy import IntegerProxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.torch_internals import OpOverload
from tracemill.executors.fusion import FusionExecutor, Region, computes
from tracemill.executors.inductor.compilation import Prepared, function_for, settings_for
from tracemill.executors.inductor.description import described
from tracemill.executors.inductor.symbols import places, symbols_are_given, with_sizes
from tracemill.executors.lowering import fakes_of, function_of

_aten = torch.ops.aten
_DTYPES = {
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}
_HALF = (torch.bfloat16, torch.float16)
_MASKS = (torch.bool, torch.uint8)
_UNFIT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_LIBRARY_CALLS = {
    *(_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.addmv, _aten.mv, _aten.dot),
    *(_aten.convolution, _aten.convolution_backward, _aten.linear, _aten.matmul),
    *(_aten._scaled_dot_product_flash_attention_for_cpu, _aten._scaled_dot_product_attention_math),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward,
    *(_aten._scaled_dot_product_flash_attention, _aten._scaled_dot_product_efficient_attention),
}
"""What compiled code calls a library for, as PyTorch itself does."""

MANY_LIBRARY_CALLS = 5
"""From so many on, a region has kernels enough for calling them from C++ to be worth its longer compilation."""

_JOINS = (_aten.cat, _aten.stack)
FEW_TENSORS = 8
"""Up to so many, compiled code reads the tensors that it joins where they are; more it copies one by one."""
SMALL_TENSOR = 4096
"""Elements from which on copying a tensor takes longer than addressing the place that it is copied to."""


class InductorExecutor(FusionExecutor):
    """Compiles regions with `torch._inductor`; results agree with eager's to rounding.

    strict: whether a region that fails to compile is an error.
    settings: of `torch._inductor.config`, by dotted name, such as {"cpp.threads": 1}.
    """

    name: ClassVar[str] = "inductor"
    takes_symbolic: ClassVar[bool] = True

    def __init__(self, *, strict: bool = False, settings: Mapping[str, Any] | None = None) -> None:
        self.strict = strict
        self.settings = dict(settings or {})

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether all that a line does are ATen functions of dense tensors of common dtypes that have elements.

        Joins of many small tensors are left to torch, which makes one call of them.
        """
        operations = bsym.operations
        tensors = [v for v in (*bsym.inputs, *bsym.outputs) if type(v) is not IntegerProxy]
        if not operations or not all(map(_is_plain, tensors)) or _joins_many_small_tensors(bsym):
            return False
        if any(value.dtype in _HALF for value in tensors if _is_plain(value)) and not rounds():
            return False
        masked = any(value.dtype in _MASKS for value in tensors if _is_plain(value))
        return all(_fits(operation, masked) for operation in operations)

    def is_worth(self, region: Region) -> bool:
        """Whether the region computes in two lines at least, and not by calling libraries alone.

        Its symbolic sizes must follow from its inputs.
        """
        computing = [bsym for bsym in region.bound_symbols if computes(bsym)]
        return (
            len(computing) > 1
            and symbols_are_given(region)
            and any(
                not calls_library(operation) and not _is_view(operation)
                for bsym in computing
                for operation in bsym.operations
            )
        )

    def fuse(self, region: Region) -> BoundSymbol:
        """The line that runs the compiled region; it hands its inputs over in a list."""
        wanted, count = places(region), len(region.inputs)

        def prepare() -> Prepared:
            fakes, function = fakes_of(region), function_of(region)
            fakes.inputs.extend([fakes.inputs[position].shape[dim] for position, dim in wanted])
            return lambda *inputs: function(*inputs[:count]), fakes

        made = function_for(prepare, settings_for(**self.options_of(region)), described(region))
        return region.bind(with_sizes(made, wanted), boxed=True)

    def options_of(self, region: Region) -> dict[str, Any]:
        """What Inductor's settings for a region follow from, as `settings_for` takes it."""
        operations = [item for bsym in region.bound_symbols for item in bsym.operations]
        return {
            "chosen": self.settings,
            "many_kernels": sum(map(calls_library, operations)) >= MANY_LIBRARY_CALLS,
            "inputs_are_checked": region.inputs_are_checked,
        }


def rounds() -> bool:
    """Whether Inductor can round half types on the CPU where eager does; PyTorch 2.10's cannot."""
    return torch_internals.inductor().rounds_half_types


def calls_library(operation: OpOverload) -> bool:
    """Whether compiled code leaves an operation to a library, with kernels of its own before and after."""
    return operation.overloadpacket in _LIBRARY_CALLS


def _joins_many_small_tensors(bsym: BoundSymbol) -> bool:
    if not any(operation.overloadpacket in _JOINS for operation in bsym.operations):
        return False
    sizes = [value.meta.numel for value in bsym.inputs if isinstance(value, TensorProxy)]
    return len(sizes) > FEW_TENSORS and sum(sizes) < SMALL_TENSOR * len(sizes)


def _fits(operation: Any, masked: bool) -> bool:
    """Whether an operation's outputs follow from metadata; indexing is one such where no mask is among the inputs."""
    if not isinstance(operation, OpOverload) or operation.namespace != "aten":
        return False
    if operation is _aten.index.Tensor and not masked:
        return True
    return not any(tag in operation.tags for tag in _UNFIT)


def _is_view(operation: OpOverload) -> bool:
    return any(argument.alias_info is not None for argument in operation._schema.arguments)


def _is_plain(value: Any) -> TypeGuard[TensorProxy]:
    return (
        isinstance(value, TensorProxy)
        and value.dtype in _DTYPES
        and value.meta.layout == torch.strided
        and value.device.type in ("cpu", "cuda")
        and not (value.meta.conj or value.meta.neg)
        and value.meta.numel > 0  # reductions of nothing are not always eager's
    )
