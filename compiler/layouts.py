"""Fake tensors that lay out what kernels lay out.

For some operations PyTorch's fake tensors have other strides than the CPU's kernels where an operand is not contiguous.
These kernels are asked once, on tensors of the same layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.values import leaves, map_leaves

_aten = torch.ops.aten

TRANSFORMS = frozenset((_aten._fft_c2c.default, _aten._fft_c2r.default, _aten._fft_r2c.default))
"""Of contiguous operands too the fakes of PyTorch 2.10 have other strides."""

ASKED = TRANSFORMS.union(
    (
        _aten._batch_norm_with_update.default,
        _aten._log_softmax_backward_data.default,
        _aten._native_batch_norm_legit.default,
        _aten._native_batch_norm_legit.no_stats,
        _aten._prelu_kernel_backward.default,
        _aten.binary_cross_entropy.default,
        _aten.binary_cross_entropy_backward.default,
        _aten.channel_shuffle.default,
        _aten.copysign.Tensor,
        _aten.div.Tensor_mode,
        _aten.elu_backward.default,
        _aten.floor_divide.default,
        _aten.hardsigmoid_backward.default,
        _aten.hardswish_backward.default,
        _aten.hardtanh_backward.default,
        _aten.heaviside.default,
        _aten.huber_loss_backward.default,
        _aten.ldexp.Tensor,
        _aten.log_sigmoid_forward.default,
        _aten.logaddexp.default,
        _aten.logaddexp2.default,
        _aten.logical_and.default,
        _aten.logical_or.default,
        _aten.logical_xor.default,
        _aten.logit_backward.default,
        _aten.max_unpool2d.default,
        _aten.mse_loss_backward.default,
        _aten.native_batch_norm.default,
        _aten.native_batch_norm_backward.default,
        _aten.native_dropout_backward.default,
        _aten.native_layer_norm_backward.default,
        _aten.pow.Scalar,
        _aten.reflection_pad2d_backward.default,
        _aten.reflection_pad3d.default,
        _aten.reflection_pad3d_backward.default,
        _aten.replication_pad2d.default,  # until PyTorch 2.10
        _aten.replication_pad2d_backward.default,
        _aten.replication_pad3d.default,
        _aten.replication_pad3d_backward.default,
        _aten.smooth_l1_loss_backward.default,
        _aten.soft_margin_loss_backward.default,
        _aten.softplus_backward.default,
        _aten.special_xlog1py.default,
        _aten.stack.default,  # until PyTorch 2.10
        _aten.xlogy.Tensor,
    )
)
"""Found by comparing both, over the operator database and over operands of unlike layouts: tests/compiler/test_layouts.py."""


class Fakes(internals.FakeTensorMode):
    """A mode of fake tensors; what the CPU would compute has the layout that the CPU gives it."""

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """What PyTorch's mode answers, laid out as the kernel does."""
        made = super().dispatch(func, types, args, kwargs or {})
        return _laid_out(func, args, kwargs or {}, made) if func in ASKED else made


def fake_tensors() -> Fakes:
    """A mode without a memory of its own, which costs more than it saves where each call is asked once."""
    mode = Fakes(allow_non_fake_inputs=True)
    mode.cache_enabled = False
    return mode


def _laid_out(func: Any, args: Any, kwargs: Any, made: Any) -> Any:
    operands = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    plain = func not in TRANSFORMS and all(operand.is_contiguous() for operand in operands)
    if plain or any(operand.device.type != "cpu" for operand in operands):
        return made
    try:
        with internals.no_dispatch(), torch.no_grad():
            real = func(*map_leaves(_filled, args), **map_leaves(_filled, kwargs))
    except (RuntimeError, TypeError):
        return made
    found = iter(leaves(real))
    return map_leaves(lambda fake: _like(fake, next(found)), made)


def _filled(operand: Any) -> Any:
    """A tensor of the operand's layout with data: ones, which every operation takes."""
    if not isinstance(operand, torch.Tensor):
        return operand
    shape, stride = ([_number(n) for n in sizes] for sizes in (operand.shape, operand.stride()))
    return torch.empty_strided(shape, stride, dtype=operand.dtype).fill_(1)


def _number(size: Any) -> int:
    """The size; of a symbolic one that of the call that is traced."""
    return size if type(size) is int else int(size.node.hint)


def _like(fake: Any, real: Any) -> Any:
    """The fake with its dimensions in the order in memory that the real tensor's have."""
    if not isinstance(fake, torch.Tensor) or _order(fake) == _order(real):
        return fake
    order = _order(real)
    made = fake.new_empty([fake.shape[dim] for dim in order])
    return made.permute([order.index(dim) for dim in range(len(order))])


def _order(tensor: torch.Tensor) -> list[int]:
    """The dimensions, the outermost in memory first."""
    return sorted(range(tensor.dim()), key=lambda dim: -_number(tensor.stride(dim)))
