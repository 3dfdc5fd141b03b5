"""Calls on stand-ins that record nothing: metadata that a stand-in knows, and what it must not answer."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from tracemill.compiler import prims
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.torch_internals import set_grad_enabled
from tracemill.passes.interpretation.gradients import backward, gradients_inside, grads, optimisers

T: Any = torch.Tensor


class Recording(Protocol):
    """What these need of the interpreter."""

    def lift(self, tensor: torch.Tensor) -> Any:
        """The stand-in of a tensor."""
        ...

    unseen: set[Any]
    inputs: list[Any]
    bound_symbols: list[Any]
    lifted: dict[int, tuple[Any, torch.Tensor]]

    def require_grad(self, proxy: Any) -> None:
        """Makes a tensor that requires no grad a leaf that does."""
        ...

    def record(self, fn: Any, args: Any, kwargs: Any) -> Any:
        """Records a call, and returns what it returns, with stand-ins for tensors."""
        ...

    def at(self) -> str:
        """The user's line, for errors."""
        ...


def _properties(*names: str) -> list[Any]:
    """The getters that function modes see, those that this release of PyTorch has."""
    return [getattr(T, name).__get__ for name in names if hasattr(T, name)]


METADATA = frozenset(
    [
        *_properties(
            "shape",
            "dtype",
            "device",
            "layout",
            "ndim",
            "requires_grad",
            "is_cuda",
            "is_cpu",
            "is_meta",
            "is_mps",
        ),
        *_properties(
            "is_sparse", "is_quantized", "is_nested", "is_mkldnn", "itemsize", "nbytes", "names"
        ),
        *(
            T.size,
            T.dim,
            T.ndimension,
            T.numel,
            T.nelement,
            T.element_size,
            T.stride,
            T.is_contiguous,
            T.is_floating_point,
        ),
        *(
            T.is_complex,
            T.is_signed,
            T.get_device,
            T.storage_offset,
            T.__len__,
            T.__hash__,
            T.is_inference,
        ),
        *(
            torch.is_tensor,
            torch.is_floating_point,
            torch.is_complex,
            torch.numel,
            torch.is_storage,
        ),
    ]
)
"""Answered by the stand-in itself: PyTorch keeps a wrapper's sizes, strides, dtype and device."""

_PROFILER = [
    getattr(torch.ops.profiler, f"_record_function_{name}") for name in ("enter_new", "exit")
]
SETTINGS = frozenset(
    [
        set_grad_enabled,
        *_PROFILER,
        *(getattr(packet, name) for packet in _PROFILER for name in packet.overloads()),
    ]
)
"""Change a setting of PyTorch, seen in the ambient of the calls after it, or tell a profiler; done at once."""

VALUES = frozenset(
    [
        *(
            T.item,
            T.tolist,
            T.numpy,
            T.__bool__,
            T.__int__,
            T.__float__,
            T.__complex__,
            T.__index__,
            T.__contains__,
        ),
        *(
            T.__repr__,
            T.__format__,
            T.__array__,
            T.is_nonzero,
            torch.is_nonzero,
            torch.equal,
            torch.allclose,
            T.equal,
        ),
        *(T.allclose,),
    ]
)
"""Need the tensor's data now."""

_HOOKS = "register it on what the program returns, or a full backward hook on a module"
_RESIZED = "make a new tensor, and return it"
_WRITTEN = "use copy_, or make a new tensor"
_MEMORY = "do so outside of the program"

REFUSED: dict[Any, tuple[str, str]] = {
    T.data_ptr: ("the address of a tensor's data", _MEMORY),
    T.untyped_storage: ("a tensor's storage", _MEMORY),
    T.storage: ("a tensor's storage", _MEMORY),
    T.__dlpack__: ("a tensor's memory through DLPack", _MEMORY),
    T.apply_: ("Tensor.apply_", "use torch's own functions, or a torch.library custom operator"),
    T.map_: ("Tensor.map_", "use torch's own functions, or a torch.library custom operator"),
    T.set_: ("Tensor.set_", _WRITTEN),
    T.resize_: ("Tensor.resize_", _RESIZED),
    T.resize_as_: ("Tensor.resize_as_", _RESIZED),
    T.register_hook: ("Tensor.register_hook", _HOOKS),
    T._version.__get__: ("a tensor's version counter", _MEMORY),
    T._base.__get__: ("a view's base", "ask is_leaf, or keep the base by a name of its own"),
}
"""A stand-in would answer these wrongly; each with what it is called in the error, and what to do instead."""

PROXY_ANSWERS: dict[Any, Any] = {
    T.is_leaf.__get__: lambda proxy: proxy.meta.is_leaf,
    T.grad_fn.__get__: lambda proxy: _no_grad_fn(proxy),
}
"""Asked of a tensor, answered from its proxy: the stand-in's own is that of a wrapper."""


def _no_grad_fn(proxy: Any) -> None:
    if proxy.requires_grad and not proxy.meta.is_leaf:
        raise UnsupportedError(
            "the program asks for a tensor's grad_fn, which the compiled program does not have; ask requires_grad or "
            "is_leaf"
        )


def _switch_grad(recording: Recording, tensor: Any, requires_grad: Any = True) -> Any:
    """A tensor that the program made may become a leaf, to which gradients flow and go no further."""
    proxy = recording.lift(tensor).proxy
    if bool(requires_grad) == proxy.requires_grad:
        return tensor
    given = any(proxy is known for known, _ in recording.lifted.values())
    if not requires_grad or (given and not _may_grant(recording, proxy)):
        raise UnsupportedError(
            f"requires_grad of a tensor is changed{recording.at()}; change it before the jitted function is called, or "
            "use detach() for a tensor that does not require grad"
        )
    if not (proxy.dtype.is_floating_point or proxy.dtype.is_complex):
        raise RuntimeError("only Tensors of floating point and complex dtype can require gradients")
    recording.require_grad(proxy)
    return tensor


def _may_grant(recording: Recording, proxy: Any) -> bool:
    """Whether an input may be made to require grad: an argument, and on every path of the program."""
    on_a_path = any(line.sym is prims.PATH for line in recording.bound_symbols)
    return proxy in recording.inputs and not on_a_path


def _set_grad(recording: Recording, tensor: Any, requires_grad: Any) -> None:
    """`tensor.requires_grad = ...`: PyTorch would never let go of what a setter returns."""
    _switch_grad(recording, tensor, requires_grad)


def _data(recording: Recording, tensor: Any) -> Any:
    """`tensor.data`: like `detach`, with a version counter of its own."""
    made = recording.record(T.detach, (tensor,), {})
    recording.unseen.add(made.proxy)
    return made


def _set_data(recording: Recording, tensor: Any, value: Any) -> None:
    """`tensor.data = tensor`, as a module does that is brought to the dtype that it has; anything else is refused."""
    if recording.lift(tensor) is not recording.lift(value):
        raise UnsupportedError(
            f"an assignment to Tensor.data is asked for{recording.at()}; tracemill cannot compile that: {_WRITTEN}"
        )


def _copied(recording: Recording, tensor: Any, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy` of a tensor."""
    if recording.lift(tensor).proxy.requires_grad:
        raise UnsupportedError(
            f"a tensor that requires grad is copied deeply{recording.at()}; use clone, or copy it before the jitted "
            "function is called"
        )
    return recording.record(torch.clone, (tensor,), {})


def _renormed(function: Any) -> Any:
    """How an embedding is recorded: where `max_norm` makes it write to its weight, as that write and what comes after."""
    bind = inspect.signature(function).bind

    def recorded(recording: Recording, *args: Any, **kwargs: Any) -> Any:
        call = bind(*args, **kwargs)
        largest = call.arguments.pop("max_norm", None)
        if largest is None:
            return recording.record(function, args, kwargs)
        call.apply_defaults()
        given = call.arguments
        given["max_norm"] = None
        weight, indices = given["weight"], given["input"]
        if weight.dtype in (
            torch.int32,
            torch.int64,
        ):  # of embedding_bag, where they may be swapped
            weight, indices = indices, weight
        with torch.no_grad():
            recording.record(
                torch.embedding_renorm_,
                (weight, indices.contiguous(), largest, given["norm_type"]),
                {},
            )
        return recording.record(function, call.args, call.kwargs)

    return recorded


HANDLED: dict[Any, Any] = {
    F.embedding: _renormed(F.embedding),
    F.embedding_bag: _renormed(F.embedding_bag),
    T.requires_grad_: _switch_grad,
    T.requires_grad.__set__: _set_grad,
    T.__deepcopy__: _copied,
    T.data.__get__: _data,
    T.data.__set__: _set_data,
    torch.autograd.grad: gradients_inside.recorded,
    T.item: optimisers.item,
    **grads.HANDLED,
    **backward.HANDLED,
}
"""Calls that are not recorded as they are; each with what is done."""
