"""Models: fake or real tensors with a proxy's metadata, on which PyTorch is asked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.proxy import TensorProxy


class _NonLeaf(torch.autograd.Function):
    """Gives a fake a grad_fn, so that autograd treats it as the intermediate value that it stands for."""

    @staticmethod
    def forward(ctx: Any, _tensor: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        return make()

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return cotangents[0], None


def non_leaf(tensor: torch.Tensor, make: Callable[[], torch.Tensor] | None = None) -> torch.Tensor:
    """A tensor like this one, with a grad_fn; `make` makes a tensor like it."""

    def like() -> torch.Tensor:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )

    return _NonLeaf.apply(tensor, make or like)


def stand_in_for(tensor: TensorProxy, fake_mode: internals.FakeTensorMode | None) -> torch.Tensor:
    """A fake tensor with a proxy's metadata; real zeros where there is no fake mode."""
    meta = tensor.meta
    if fake_mode is not None and _is_plain(tensor):
        return _plain_fake(meta, fake_mode)
    mode: AbstractContextManager[Any] = fake_mode or nullcontext()
    with mode, torch.enable_grad():
        if meta.layout != torch.strided:
            model = _of_layout(meta)
        else:
            model = _strided(tensor, real=fake_mode is None)
        if meta.requires_grad:
            model.requires_grad_()
            if not meta.is_leaf:
                is_strided = meta.layout == torch.strided
                model = non_leaf(model, None if is_strided else lambda: _of_layout(meta))
    return model


def _of_layout(meta: TensorMeta) -> torch.Tensor:
    return torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device, layout=meta.layout)


def _is_plain(tensor: TensorProxy) -> bool:
    """Whether a tensor is all of its memory, and neither a view's other reading of it nor autograd's own."""
    meta = tensor.meta
    return (
        meta.layout == torch.strided
        and not (tensor.storage_offset or meta.conj or meta.neg)
        and meta.device.type != "meta"
    )


def _plain_fake(meta: TensorMeta, fake_mode: internals.FakeTensorMode) -> torch.Tensor:
    """A fake made without asking the mode for one, which takes ten times as long."""

    def make() -> torch.Tensor:
        return internals.FakeTensor(fake_mode, _empty(meta, "meta"), meta.device)

    model = make()
    if meta.requires_grad:
        with torch.enable_grad():
            model.requires_grad_()
            if not meta.is_leaf:
                model = non_leaf(model, make)
    return model


def _empty(meta: TensorMeta, device: torch.device | str) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=device)


def _strided(tensor: TensorProxy, *, real: bool) -> torch.Tensor:
    meta = tensor.meta
    if tensor.storage_offset:
        extent = max(
            tensor.storage.nbytes // meta.dtype.itemsize, tensor.storage_offset + extent_of(meta)
        )
        flat = torch.empty(extent, dtype=meta.dtype, device=meta.device)
        model = flat.as_strided(meta.shape, meta.stride, tensor.storage_offset).detach()
    else:
        model = _empty(meta, meta.device)
    if real:
        model.zero_()
    if meta.conj:
        model = model.conj()
    if meta.neg:
        model = internals.neg_view(model)
    return model


def is_dense(meta: TensorMeta) -> bool:
    """Whether a tensor's elements fill its memory without gaps or overlaps, in whatever order of dimensions."""
    step = 1
    pairs = zip(meta.stride, meta.shape, strict=True)
    for stride, size in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != step:
            return False
        step *= size
    return True


def extent_of(meta: TensorMeta) -> int:
    """How many elements of storage a strided tensor reaches over, from its first element."""
    if meta.numel == 0:
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(meta.shape, meta.stride, strict=True)
    )
