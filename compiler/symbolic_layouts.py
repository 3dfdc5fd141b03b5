"""Layouts of what a call makes of tensors with symbolic sizes: told from the call's answer, or from PyTorch's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracemill.compiler.answer import Answer, NewTensor, SameTensor
from tracemill.compiler.meta import TensorMeta, hint
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbolic import Layout, is_symbolic, known, layout_of
from tracemill.compiler.values import leaves


def as_given(
    args: Any, kwargs: Any, answer: Answer, tensors: Sequence[TensorProxy]
) -> list[Layout] | None:
    """The layout of what an elementwise operation makes of tensors that all have it; None where PyTorch must be asked.

    That is what elementwise means to PyTorch, where elements fill their memory and no other format is asked for; to ask
    it in symbols takes a millisecond.
    """
    spec, layouts = answer.output, [layout_of(tensor) for tensor in tensors]
    layout = layouts[0] if layouts else None
    if (
        layout is None
        or len(answer.body) != 1
        or torch.Tag.pointwise not in answer.body[0].fn.tags
        or answer.mutated
        or type(spec) is not NewTensor
        or spec.storage[0] != "new"
    ):
        return None
    constants = [leaf for leaf in leaves((args, kwargs)) if not isinstance(leaf, TensorProxy)]
    if (
        any(is_symbolic(leaf) or isinstance(leaf, torch.memory_format) for leaf in constants)
        or (spec.meta.shape, spec.meta.stride) != (tensors[0].meta.shape, tensors[0].meta.stride)
        or any(each is None or each.key[:-1] != layout.key[:-1] for each in layouts)
        or not layout.is_dense
    ):
        return None
    return [layout._replace(offset=0)]


def all_compared(
    answer: Answer, outs: Sequence[Any], models: Sequence[Any], tensors: Sequence[TensorProxy]
) -> list[Any] | None:
    """The layouts of a call's outputs, None where one is not as for the sizes of now."""
    specs = leaves(answer.output)
    if len(specs) != len(outs):
        return None
    found = [_compared(spec, out, models, tensors) for spec, out in zip(specs, outs, strict=True)]
    return None if any(layout is False for layout in found) else found


def _compared(spec: Any, out: Any, models: Sequence[Any], tensors: Sequence[TensorProxy]) -> Any:
    """The layout of one output; None for no new tensor, False where it is not as for the sizes of now."""
    if type(spec) is SameTensor:
        return None if out is models[spec.position] else False
    if type(spec) is not NewTensor:
        return False if isinstance(out, (torch.SymInt, torch.Tensor)) else None
    if not isinstance(out, torch.Tensor) or any(out is model for model in models):
        return False
    meta: TensorMeta = spec.meta
    if meta.layout != torch.strided or out.layout != torch.strided:
        return False
    layout = Layout.of(out)
    kind, position = spec.storage
    if kind == "argument":
        if out.untyped_storage()._cdata != models[position].untyped_storage()._cdata:
            return False
        base = layout_of(tensors[position])
        begin = tensors[position].storage_offset if base is None else base.offset
        layout = layout._replace(offset=known(layout.offset + begin))
    now = (tuple(map(hint, layout.shape)), tuple(map(hint, layout.stride)), out.dtype)
    return layout if now == (meta.shape, meta.stride, meta.dtype) else False
