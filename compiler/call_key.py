"""What tells the specialisations of a callable apart by a call's arguments alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler import tree
from tracemill.compiler.contents import counts_by_content
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.marks import SIZES, Mark, Tree, items_of
from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.random_state import Generator
from tracemill.compiler.signature import CallKey, Identity


def call_key(values: Sequence[Any], marks: Sequence[Tree]) -> Any:
    """The structure, metadata and constants of a call's arguments.

    marks: for each value, what in it differs from call to call: of a tensor with marked sizes only their number counts.
    """
    constants = CallKey()
    return tuple(_keys(values, marks, constants))


def _keys(values: Sequence[Any], marks: Sequence[Tree], constants: CallKey) -> list[Any]:
    return [_key(value, mark, constants) for value, mark in zip(values, marks, strict=True)]


def _key(value: Any, marks: Tree, constants: CallKey) -> Any:
    if isinstance(value, torch.Tensor):
        return type(value), _of_tensor(value, marks)
    if isinstance(value, Generator):
        return Generator, value.device
    node = tree.node_of(value)
    if node is not None:
        inner = items_of(marks, len(node.children))
        entries = tuple(map(_entry, node.entries))
        return (type(value), entries, *_keys(node.children, inner, constants))
    if counts_by_content(value) or type(marks) is Mark:
        return type(value)
    return constants.of(value)


def _entry(entry: Any) -> Any:
    """A name or key as it is told apart: of a tensor, == tells something else."""
    return Identity(entry) if isinstance(entry, torch.Tensor) else entry


def _of_tensor(tensor: torch.Tensor, marks: Any) -> Any:
    if tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else "quantised"
        raise UnsupportedError(f"a {kind} tensor among the arguments cannot be traced")
    if marks is None:
        return TensorMeta.of(tensor)
    fixed = None if marks == SIZES else _fixed(tensor, marks)
    return tensor.dim(), tensor.dtype, tensor.device, tensor.requires_grad, fixed


def _fixed(tensor: torch.Tensor, marks: Mapping[int, Mark | None]) -> tuple[Any, ...]:
    """The sizes of a tensor that are not marked."""
    return tuple(
        None if marks.get(dim) is not None else size for dim, size in enumerate(tensor.shape)
    )
