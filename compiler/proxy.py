"""Proxies: the named values of a trace.

A proxy knows what a value is (shape, dtype, ...) and never holds it. Proxies are hashed by identity, and immutable.
Inside `tracemill.tracectx(trace)` a `TensorProxy` is used as a tensor is: `torch.sin(x)`, `x + y` and `x.sum(0)` record
bound symbols. `==` compares proxies by identity; `x.eq(y)` records a comparison of values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch

from tracemill.compiler import context
from tracemill.compiler.meta import Storage, Stride, TensorMeta


@functools.cache
def _slots_of(cls: type[Proxy]) -> tuple[str, ...]:
    """What a value of a class consists of."""
    return tuple(
        slot
        for owner in cls.__mro__
        for slot in getattr(owner, "__slots__", ())
        if slot not in ("__weakref__", "__dict__")
    )


class Proxy:
    """A named value of a trace."""

    __slots__ = ("__weakref__", "_name")
    prefix: ClassVar[str] = "v"
    """The first letter of the names that renaming gives to values of this kind."""

    def __init__(self, name: str | None = None) -> None:
        recorder = context.recorder.get()
        if recorder is not None:
            name = recorder.name(name, self.prefix)
        self._name = name if name is not None else self.prefix

    @property
    def name(self) -> str:
        """The name that the trace's text uses."""
        return self._name

    @property
    def type_string(self) -> str:
        """What the printers write in a type comment."""
        raise NotImplementedError

    def renamed(self, name: str) -> Self:
        """The same value under another name."""
        cls = type(self)
        other = cls.__new__(cls)
        for slot in _slots_of(cls):
            object.__setattr__(other, slot, getattr(self, slot))
        other._name = name
        return other

    def __repr__(self) -> str:
        return f'<{type(self).__name__} {self._name}: "{self.type_string}">'


class AnyProxy(Proxy):
    """An opaque object, such as a module or a generator."""

    __slots__ = ("python_type",)
    prefix = "a"

    def __init__(self, name: str | None = None, *, python_type: type = object) -> None:
        super().__init__(name)
        self.python_type = python_type

    @property
    def type_string(self) -> str:
        """The name of the object's class."""
        return self.python_type.__name__


class GeneratorProxy(AnyProxy):
    """A `torch.Generator`: a state of random numbers on `device`, which draws advance."""

    __slots__ = ("device",)
    prefix = "generator"

    def __init__(self, name: str | None = None, *, device: torch.device | str = "cpu") -> None:
        super().__init__(name, python_type=torch.Generator)
        self.device = torch.device(device)

    @property
    def type_string(self) -> str:
        """The device and the class: `cpu Generator`."""
        return f"{self.device} Generator"


class CollectionProxy(Proxy):
    """A tuple, list or dict before it is unpacked."""

    __slots__ = ("length", "python_type")
    prefix = "C"

    def __init__(
        self, name: str | None = None, *, python_type: type = tuple, length: int = 0
    ) -> None:
        super().__init__(name)
        self.python_type = python_type
        self.length = length

    @property
    def type_string(self) -> str:
        """Always `Collection`."""
        return "Collection"


class NumberProxy(Proxy):
    """A Python number; `value` is what it was while tracing, None where it is not known."""

    __slots__ = ("value",)
    prefix = "n"
    python_type: ClassVar[type]

    def __init__(
        self, name: str | None = None, *, value: int | float | complex | None = None
    ) -> None:
        super().__init__(name)
        self.value = value

    @property
    def type_string(self) -> str:
        """The number's Python type."""
        return self.python_type.__name__


class IntegerProxy(NumberProxy):
    """An int."""

    __slots__ = ()
    prefix = "i"
    python_type = int


class FloatProxy(NumberProxy):
    """A float."""

    __slots__ = ()
    prefix = "f"
    python_type = float


class BoolProxy(NumberProxy):
    """A bool."""

    __slots__ = ()
    prefix = "b"
    python_type = bool


def _record(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    recorder = context.recorder.get()
    if recorder is None:
        name = getattr(fn, "__name__", repr(fn))
        raise RuntimeError(
            f"{name} was called on a proxy outside of a trace; use `with tracemill.tracectx(trace):`"
        )
    return recorder.call(fn, args, kwargs)


class TensorProxy(Proxy):
    """A tensor: shape, stride (in elements), dtype, device and requires_grad, but no data.

    Raises RuntimeError when an operation is called on it outside of `tracemill.tracectx`.

    >>> TensorProxy("x", shape=(2, 9), dtype=torch.bfloat16).type_string
    'cpu bf16[2, 9]'
    """

    __slots__ = ("meta", "storage", "storage_offset")
    prefix = "t"

    def __init__(
        self,
        name: str | None = None,
        *,
        shape: Sequence[int] = (),
        stride: Sequence[int] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        requires_grad: bool = False,
        meta: TensorMeta | None = None,
        storage: Storage | None = None,
        storage_offset: int = 0,
    ) -> None:
        super().__init__(name)
        self.meta = meta or TensorMeta(shape, stride, dtype, device, requires_grad)
        self.storage = storage or Storage(self.meta.nbytes)
        self.storage_offset = storage_offset

    @classmethod
    def like(cls, tensor: torch.Tensor, name: str | None = None) -> TensorProxy:
        """A proxy with the metadata of `tensor`."""
        return cls(name, meta=TensorMeta.of(tensor))

    def changed(
        self,
        name: str,
        *,
        meta: TensorMeta,
        storage: Storage | None = None,
        storage_offset: int = 0,
    ) -> Self:
        """Another tensor of this shape and these strides, in the same memory where no other is given."""
        made = self.renamed(name)
        made.meta = meta
        if storage is not None:
            made.storage, made.storage_offset = storage, storage_offset
        return made

    @property
    def shape(self) -> torch.Size:
        """Sizes in elements."""
        return torch.Size(self.meta.shape)

    @property
    def sizes(self) -> tuple[Any, ...]:
        """Sizes in elements, those that differ from call to call as numbers of the trace."""
        return self.meta.shape

    @property
    def stride(self) -> Stride:
        """Strides in elements."""
        return Stride(self.meta.stride)

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""
        return self.meta.dtype

    @property
    def device(self) -> torch.device:
        """Where the data is."""
        return self.meta.device

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to it."""
        return self.meta.requires_grad

    @property
    def type_string(self) -> str:
        """Device, dtype and shape: `cuda:0 f32[2, 9]`."""
        return self.meta.type_string

    @classmethod
    def __torch_function__(
        cls,
        fn: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _record(fn, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        attribute = getattr(torch.Tensor, name)  # its AttributeError is the right one
        if not callable(attribute):
            return _record(attribute.__get__, (self,), {})

        def method(*args: Any, **kwargs: Any) -> Any:
            return _record(attribute, (self, *args), kwargs)

        method.__name__ = name
        return method

    def __bool__(self) -> bool:
        return _record(torch.Tensor.__bool__, (self,), {})

    def __len__(self) -> int:
        if not self.meta.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Any:
        return iter(self.unbind(0))


def _operator(fn: Callable[..., Any]) -> Callable[..., Any]:
    def operator(*args: Any) -> Any:
        return _record(fn, args, {})

    return operator


# What PyTorch itself calls for each operator: `x + y` arrives at function modes as `torch.Tensor.add`.
_AS_METHODS = {
    "add": "add",
    "radd": "add",
    "mul": "mul",
    "rmul": "mul",
    "sub": "sub",
    "truediv": "div",
    "matmul": "matmul",
    "mod": "remainder",
    "neg": "neg",
    "abs": "abs",
    "gt": "gt",
    "ge": "ge",
    "lt": "lt",
    "le": "le",
}
_AS_OPERATORS = (
    *("rsub", "rtruediv", "pow", "rpow", "floordiv", "rfloordiv", "rmod", "rmatmul"),
    *("and", "or", "xor", "invert", "getitem", "setitem", "lshift", "rshift"),
)
for _name in [*_AS_METHODS, *_AS_OPERATORS]:
    setattr(
        TensorProxy,
        f"__{_name}__",
        _operator(getattr(torch.Tensor, _AS_METHODS.get(_name, f"__{_name}__"))),
    )
