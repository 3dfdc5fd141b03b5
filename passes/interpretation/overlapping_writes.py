"""Writes to memory that the call also reads elsewhere: eager refuses some of them, fakes of one tensor each see none.

PyTorch is asked with real zeros that share memory as the tensors do; only its word on shared memory counts, as zeros
may be wrong for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.meta import Storage
from tracemill.compiler.models import extent_of
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.random_state import kept_random_state
from tracemill.compiler.values import substitute

_ABOUT_SHARED_MEMORY = "single memory location"


def raise_as_eager(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[TensorProxy],
) -> None:
    """Raises eager's RuntimeError for a write to memory that `tensors`, the call's own, share in a way it forbids."""
    strided = [tensor for tensor in tensors if tensor.meta.layout == torch.strided]
    if len(strided) < len(tensors) or not _may_overlap(strided):
        return
    with internals.DisableTorchFunction(), internals.no_user_modes(), torch.no_grad():
        memory: dict[Storage, torch.UntypedStorage] = {}
        models: dict[Proxy, Any] = {tensor: _model(tensor, strided, memory) for tensor in strided}
        try:
            with kept_random_state():
                fn(*substitute(tuple(args), models), **substitute(dict(kwargs), models))
        except RuntimeError as error:
            if _ABOUT_SHARED_MEMORY in str(error):
                raise
        except Exception:
            return  # zeros are no values for this call; what it says of shared memory is not known


def _may_overlap(tensors: Sequence[TensorProxy]) -> bool:
    shared = len({tensor.storage for tensor in tensors}) < len(tensors)
    repeated = any(0 in tensor.meta.stride and tensor.meta.numel > 1 for tensor in tensors)
    return shared or repeated


def _model(
    tensor: TensorProxy,
    tensors: Sequence[TensorProxy],
    memory: dict[Storage, torch.UntypedStorage],
) -> torch.Tensor:
    """Zeros with a tensor's metadata, in memory that tensors of one storage share."""
    meta = tensor.meta
    storage = memory.get(tensor.storage)
    if storage is None:
        ends = [
            (other.storage_offset + extent_of(other.meta)) * other.meta.dtype.itemsize
            for other in tensors
            if other.storage is tensor.storage
        ]
        zeros = torch.zeros(max(ends), dtype=torch.uint8, device=meta.device)
        storage = memory[tensor.storage] = zeros.untyped_storage()
    model = torch.empty(0, dtype=meta.dtype, device=meta.device)
    return model.set_(storage, tensor.storage_offset, meta.shape, meta.stride)
