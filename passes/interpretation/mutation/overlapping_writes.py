"""Writes to memory that the call also reads elsewhere: eager refuses some of them, fakes of one tensor each see none.

PyTorch is asked with real zeros that share memory as the tensors do; only its word on shared memory counts, as zeros
may be wrong for the rest. What it takes is asked for again with numbers: a functional program reads before it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import Answer
from tracemill.compiler.errors import MutationError
from tracemill.compiler.meta import Storage
from tracemill.compiler.models import extent_of
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.random_state import kept_random_state
from tracemill.compiler.symbol import symbol
from tracemill.compiler.values import leaves, substitute

_ABOUT_SHARED_MEMORY = "single memory location"


def raise_as_eager(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    answer: Answer,
    tensors: Sequence[TensorProxy],
    at: Callable[[], str],
) -> None:
    """Raises eager's RuntimeError for a write to memory that `tensors`, the call's own, share in a way it forbids.

    Raises MutationError where the result depends on the order in which a kernel goes through memory.
    """
    strided = [tensor for tensor in tensors if tensor.meta.layout == torch.strided]
    written = [tensors[position] for position in answer.mutated]
    is_elementwise = all(torch.Tag.pointwise in step.fn.tags for step in answer.body)
    given = leaves((args, kwargs))
    reads_itself = not is_elementwise and any(given.count(tensor) > 1 for tensor in written)
    if len(strided) < len(tensors) or not (reads_itself or _may_overlap(strided)):
        return
    with internals.DisableTorchFunction(), internals.no_user_modes(), torch.no_grad():
        try:
            _run(fn, args, kwargs, _zeros(strided))
        except RuntimeError as error:
            if _ABOUT_SHARED_MEMORY in str(error):
                raise
            return
        except Exception:
            return  # zeros are no values for this call; what it says of shared memory is not known
        if len(written) > 1 or not _depends_on_order(fn, args, kwargs, strided, written[0]):
            return
    raise MutationError(
        f"{symbol(fn).name} reads memory that it writes to at the same time{at()}, so that its result depends on the "
        "order in which it goes through it; read from a clone"
    )


def _run(fn: Any, args: Any, kwargs: Any, models: dict[Proxy, Any]) -> None:
    with kept_random_state():
        fn(*substitute(tuple(args), models), **substitute(dict(kwargs), models))


def _depends_on_order(
    fn: Any, args: Any, kwargs: Any, tensors: Sequence[TensorProxy], written: TensorProxy
) -> bool:
    """Whether numbers come out otherwise where what is read shares memory with what is written to, than where it is a copy."""
    found = []
    for is_shared in (True, False):
        models = _zeros(tensors)
        for model in models.values():
            model.untyped_storage().copy_(_numbers(model))
        target: torch.Tensor = models[written]
        given: Any = (tuple(args), dict(kwargs))
        if not is_shared:
            models = {proxy: model.clone() for proxy, model in models.items()}
            given = _only_into(target, written, *given)
        try:
            _run(fn, given[0], given[1], models)
        except Exception:
            return False  # these are no values for this call
        found.append(target)
    one, other = found
    return not bool(((one == other) | ((one != one) & (other != other))).all())


def _only_into(target: torch.Tensor, written: TensorProxy, args: Any, kwargs: Any) -> Any:
    """A call's arguments, with `target` in place of the tensor where it is written to, and not where it is read."""
    if "out" in kwargs:
        return args, {**kwargs, "out": substitute(kwargs["out"], {written: target})}
    first, *rest = args
    return (substitute(first, {written: target}), *rest), kwargs


def _numbers(like: torch.Tensor) -> torch.UntypedStorage:
    """Memory as large as a tensor's, of small numbers that differ from place to place."""
    size = like.untyped_storage().nbytes() // like.dtype.itemsize
    rest = like.untyped_storage().nbytes() % like.dtype.itemsize
    numbers = (torch.arange(size, device=like.device) % 5).to(like.dtype)
    return torch.cat(
        [numbers.view(torch.uint8), torch.zeros(rest, dtype=torch.uint8, device=like.device)]
    ).untyped_storage()


def _zeros(tensors: Sequence[TensorProxy]) -> dict[Proxy, Any]:
    memory: dict[Storage, torch.UntypedStorage] = {}
    return {tensor: _model(tensor, tensors, memory) for tensor in tensors}


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
