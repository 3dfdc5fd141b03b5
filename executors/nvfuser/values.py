"""Values: the tensors of a graph inside a definition."""

from __future__ import annotations

from typing import Any

import torch

from tracemill.executors.nvfuser.library import HALF_TYPES, computed_dtype, data_type, library


class Value:
    """A tensor of the graph in a definition.

    A half type is held in Float as long as it is only computed with; it is rounded to what PyTorch says it is where it
    leaves the definition, or where an operation moves it as it is.

    meta: a fake tensor, what PyTorch says of it.
    """

    def __init__(self, view: Any, meta: torch.Tensor) -> None:
        self.meta = meta
        wanted = {data_type(meta.dtype), data_type(computed_dtype(meta.dtype))}
        if view.dtype() not in wanted:
            view = _cast(view, computed_dtype(meta.dtype))
        self._forms: dict[Any, Any] = {view.dtype(): view}

    def with_meta(self, meta: torch.Tensor) -> Value:
        """The same TensorViews for another node of the same dtype."""
        made = object.__new__(Value)
        made.meta, made._forms = meta, self._forms
        return made

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that PyTorch gives it."""
        return self.meta.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its sizes; symbolic ones are SymInts."""
        return sizes_of(self.meta)

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return self.meta.dim()

    @property
    def any(self) -> Any:
        """Its TensorView in whichever dtype there is: for operations that only move elements."""
        return next(iter(self._forms.values()))

    @property
    def is_rounded(self) -> bool:
        """Whether there is a TensorView of exactly the dtype that PyTorch gives it."""
        return data_type(self.dtype) in self._forms

    @property
    def exact(self) -> Any:
        """Its TensorView in exactly the dtype that PyTorch gives it."""
        return self.as_type(self.dtype)

    @property
    def computed(self) -> Any:
        """Its TensorView for arithmetic: Float for half types."""
        return self.as_type(computed_dtype(self.dtype))

    def as_type(self, dtype: torch.dtype) -> Any:
        """Its TensorView cast to a dtype, the same one each time; a half type is never rounded on the way."""
        wanted = data_type(dtype)
        if wanted not in self._forms:
            held = self._forms.get(data_type(computed_dtype(self.dtype)), self.any)
            self._forms[wanted] = _cast(held, dtype)
        return self._forms[wanted]


def sizes_of(meta: torch.Tensor) -> tuple[Any, ...]:
    """The sizes of a fake tensor; symbolic ones are SymInts."""
    return tuple(meta.shape)


def _cast(view: Any, dtype: torch.dtype) -> Any:
    if dtype in HALF_TYPES and view.dtype() != data_type(torch.float32):
        view = library().ops.cast(view, dtype=data_type(torch.float32))
    return library().ops.cast(view, dtype=data_type(dtype))
