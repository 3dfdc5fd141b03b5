"""Metadata: what PyTorch knows of a tensor besides its data, and the memory that tensors share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch

from tracemill.compiler.torch_internals import dtype_abbrs


def memory_of(tensor: torch.Tensor) -> Any:
    """What tells the memory of a living tensor from that of others."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a contiguous tensor of `shape`."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


QUANTISED = frozenset([torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4])


class DecidedByDataError(ValueError):
    """Raised for a size that only a tensor's values decide."""


def hint(size: Any) -> int:
    """What a size is while tracing; raises DecidedByDataError for one that only a tensor's values decide."""
    if type(size) is not torch.SymInt:
        return size
    if size.node.hint is None:
        raise DecidedByDataError(f"{size} is decided by the values of a tensor")
    return size.node.hint


_FIELDS = (
    *("shape", "stride", "dtype", "device", "requires_grad", "is_leaf", "layout", "conj", "neg"),
)
"""The arguments of TensorMeta, in order."""


class TensorMeta:
    """What PyTorch knows of a tensor besides its data; equal ones are one object.

    Shape and stride are in elements. Sparse layouts have no stride.
    """

    __slots__ = (
        "__weakref__",
        "conj",
        "device",
        "dtype",
        "is_leaf",
        "layout",
        "neg",
        "requires_grad",
        "shape",
        "stride",
    )
    _known: ClassVar[WeakValueDictionary[tuple[Any, ...], TensorMeta]] = WeakValueDictionary()

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_leaf: bool
    layout: torch.layout
    conj: bool
    neg: bool

    def __new__(
        cls,
        shape: Sequence[int],
        stride: Sequence[int] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        requires_grad: bool = False,
        is_leaf: bool = True,
        layout: torch.layout = torch.strided,
        conj: bool = False,
        neg: bool = False,
    ) -> TensorMeta:
        shape = tuple(shape)
        stride = contiguous_stride(shape) if stride is None else tuple(stride)
        device = torch.device(device)
        key = (shape, stride, dtype, device, requires_grad, is_leaf, layout, conj, neg)
        meta = cls._known.get(key)
        if meta is None:
            meta = object.__new__(cls)
            for name, value in zip(_FIELDS, key, strict=True):
                object.__setattr__(meta, name, value)
            cls._known[key] = meta
        return meta

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMeta:
        """The metadata of a real (or fake) tensor; of sizes that are symbolic, what they are while tracing."""
        strided = tensor.layout == torch.strided
        shape: Sequence[int] = tensor.shape
        stride: Sequence[int] = tensor.stride() if strided else ()
        if tensor._has_symbolic_sizes_strides:
            shape, stride = tuple(map(hint, shape)), tuple(map(hint, stride))
        try:
            is_leaf = tensor.is_leaf
        except (
            RuntimeError
        ):  # autograd says nothing of a view taken under no_grad of what was written to
            is_leaf = False
        return cls(
            shape,
            stride,
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
            is_leaf,
            tensor.layout,
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"TensorMeta is immutable: cannot set {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorMeta, self.key

    def __repr__(self) -> str:
        return f"TensorMeta({self.type_string!r}, stride={self.stride})"

    @property
    def key(self) -> tuple[Any, ...]:
        """The constructor's arguments."""
        return (
            self.shape,
            self.stride,
            self.dtype,
            self.device,
            self.requires_grad,
            self.is_leaf,
            self.layout,
            self.conj,
            self.neg,
        )

    @property
    def type_string(self) -> str:
        """Device, dtype and shape as printed in traces: `cuda:0 f32[2, 9]`."""
        return f"{self.device} {dtype_abbrs[self.dtype]}[{', '.join(map(str, self.shape))}]"

    @property
    def numel(self) -> int:
        """The number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps."""
        return self.numel * self.dtype.itemsize

    def replace(self, **changes: Any) -> TensorMeta:
        """The same metadata with some of it changed."""
        return TensorMeta(**(dict(zip(_FIELDS, self.key, strict=True)) | changes))


class Storage:
    """The memory that tensors share: two proxies alias exactly when their storage is the same object."""

    __slots__ = ("__weakref__", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class Stride(tuple[int, ...]):
    """Strides in elements; also callable, as `Tensor.stride` is."""

    __slots__ = ()

    def __call__(self, dim: int | None = None) -> Any:
        return tuple(self) if dim is None else self[dim]
