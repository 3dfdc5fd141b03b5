"""Stand-ins: the tensors that a program runs on while it is traced."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from tracemill.compiler.dispatch_keys import at_the_kernels, is_below_autograd
from tracemill.compiler.errors import LeakedValueError, TracemillError, UnsupportedError
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.torch_internals import (
    DisableTorchFunction,
    function_mode_depth,
    functorch_interpreter,
    no_torch_function,
)


class Recording(Protocol):
    """What a stand-in needs of the interpretation that it belongs to.

    refused: the first refusal that the program met; it may catch it, where eager would have gone on.
    """

    refused: TracemillError | None

    def record_below_autograd(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Records a call that autograd has seen, and returns its outputs, as stand-ins that autograd has not."""
        ...

    def at(self) -> str:
        """The user's line that runs, for errors."""
        ...

    def current(self, storage: Any) -> list[TensorProxy]:
        """The proxies of the stand-ins that lie in a storage."""
        ...


interpretation: ContextVar[Recording | None] = ContextVar("interpretation", default=None)
"""The interpretation that is under way in this thread."""


under_way: set[Recording] = set()
"""The interpretations of all threads."""


def refusal(error: TracemillError) -> TracemillError:
    """The error that a program is refused with, taken note of: it is raised again at the end of one that catches it."""
    recording = interpretation.get()
    if recording is not None and recording.refused is None:
        recording.refused = error
    return error


def refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that the program calls, whose refusals are taken note of."""

    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TracemillError as error:
            refusal(error)
            raise

    return noting


def own_attributes(tensor: Any) -> list[str]:
    """The names of the attributes that the program gave to a stand-in."""
    return [
        name for name in getattr(tensor, "__dict__", ()) if name not in _OURS and _SIZES not in name
    ]


_OURS = frozenset({"proxy", "_param", "_eager_class"})
_SIZES = "s_capsule"  # where PyTorch keeps symbolic sizes and strides for its code in C++


def _say_parameter(tensor: TracedTensor, is_parameter: bool) -> None:
    tensor._param, tensor._eager_class = is_parameter, torch.nn.Parameter


def _refuse_class(tensor: TracedTensor, cls: type) -> None:
    if cls is not tensor.__class__:
        changed = f"the class of a tensor is changed to {cls.__name__}; make a new one instead"
        raise refusal(UnsupportedError(changed))


class TracedTensor(torch.Tensor):
    """A tensor with a proxy's metadata and no data; every call on it is recorded.

    layout: shape, strides and offset where they are symbolic.
    """

    proxy: TensorProxy
    _param = False
    _is_param = property(  # pyright: ignore[reportAssignmentType]
        operator.attrgetter("_param"), _say_parameter
    )
    """What isinstance(x, nn.Parameter) looks at, and nn.Parameter(x) sets."""

    _eager_class: type = torch.Tensor
    # Asked for at every turn, so that it is no function in Python.
    __class__ = property(  # pyright: ignore[reportIncompatibleMethodOverride]
        operator.attrgetter("_eager_class"), _refuse_class
    )

    def take_after(self, tensor: torch.Tensor) -> None:
        """Makes this a parameter where `tensor` is one, with the attributes that somebody gave to it."""
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):
            vars(self).update(vars(tensor))
        if isinstance(tensor, torch.nn.Parameter):
            self.be_parameter()

    def be_parameter(self) -> None:
        """Makes this the stand-in of a parameter."""
        self._is_param = True

    @staticmethod
    def __new__(cls: type[TracedTensor], proxy: TensorProxy, layout: Any = None) -> TracedTensor:
        meta = proxy.meta
        shape, stride, offset = layout or (meta.shape, meta.stride, proxy.storage_offset)
        with DisableTorchFunction():
            tensor = torch.Tensor._make_wrapper_subclass(
                cls,
                shape,
                strides=stride if meta.layout == torch.strided else None,
                storage_offset=offset if meta.layout == torch.strided else None,
                dtype=meta.dtype,
                layout=meta.layout,
                device=meta.device,
                requires_grad=meta.requires_grad and not is_below_autograd(),
                storage_size=meta.nbytes,  # else PyTorch computes it, symbolically where sizes are
            )
        tensor.proxy = proxy
        return tensor

    def lie_like(self, proxy: TensorProxy) -> None:
        """Becomes the stand-in of `proxy`, which lies otherwise in the same memory, below autograd."""
        with at_the_kernels():
            self.as_strided_(proxy.meta.shape, proxy.meta.stride, proxy.storage_offset)
        self.proxy = proxy

    __torch_function__ = no_torch_function  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Reached by what function modes do not see: C++ code, functorch, TorchScript."""
        recording = interpretation.get()
        if recording is None:
            raise _without_recording(func, [arg.proxy for arg in args if isinstance(arg, cls)])
        with DisableTorchFunction():
            return recording.record_below_autograd(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        if (
            interpretation.get() is not None
            and function_mode_depth()
            and not functorch_interpreter()
        ):
            return torch.Tensor.__repr__(self)  # asked by the program: what the tensor holds
        return f'<traced {self.proxy.name}: "{self.proxy.type_string}">'

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise LeakedValueError(f"{self!r} has no data and cannot be pickled")


def _without_recording(func: Any, proxies: Sequence[TensorProxy]) -> TracemillError:
    """The error for a call on stand-ins in a thread that interprets nothing."""
    names = ", ".join(proxy.name for proxy in proxies) or "a value"
    for recording in tuple(under_way):
        if any(proxy in recording.current(proxy.storage) for proxy in proxies):
            error = UnsupportedError(
                f"{func} is called on {names} by a thread that the program starts, or in a function whose results "
                "functools.lru_cache keeps; neither's calls are part of the program: start threads outside of it, and call "
                "the function's __wrapped__"
            )
            recording.refused = recording.refused or error
            return error
    return LeakedValueError(
        f"{func} was called on {names} of a finished trace: the traced program stored it outside (in an attribute, a "
        "global or a list); return it instead"
    )
