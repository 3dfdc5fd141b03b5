"""Attention, which is translated where a user asks for it: PyTorch's and nvFuser's flash attention are one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from tracemill.executors.nvfuser.builder import Builder
from tracemill.executors.nvfuser.library import HALF_TYPES
from tracemill.executors.nvfuser.registry import Untranslatable, translates
from tracemill.executors.nvfuser.values import Value

aten = torch.ops.aten


ATTENTION = F.scaled_dot_product_attention


class Flash(TorchFunctionMode):
    """In the block, attention that flash attention can do is that.

    PyTorch chooses by the GPU that it finds, and without one takes products and a softmax.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is ATTENTION:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **kwargs: Any,
) -> torch.Tensor:
    plain = attn_mask is None and not dropout_p
    if plain and _fits(query, key, value, is_causal) and torch.backends.cuda.flash_sdp_enabled():
        return aten._scaled_dot_product_flash_attention(
            query, key, value, is_causal=is_causal, scale=kwargs.get("scale")
        )[0]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, **kwargs
    )


def _fits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool) -> bool:
    """Whether flash attention takes tensors like these, and means the same by a causal mask."""
    return (
        query.dim() == key.dim() == value.dim() == 4
        and query.dtype in HALF_TYPES
        and query.shape[:2] == key.shape[:2]
        and key.shape == value.shape
        and query.shape[-1] == key.shape[-1] <= 256
        and query.shape[-1] % 8 == 0
        and all((*query.shape, *key.shape))
        and (not is_causal or query.shape[2] == key.shape[2])
    )


@translates(aten._scaled_dot_product_flash_attention.default, options=["attention"])
def attention(
    builder: Builder,
    query: Value,
    key: Value,
    value: Value,
    dropout: float,
    causal: bool,
    returns_mask: bool,
    scale: float | None,
) -> tuple[Any, ...]:
    """Flash attention, which keeps the logarithms of its sums for the backward."""
    if dropout or returns_mask:
        raise Untranslatable("attention with dropout")
    made = builder.ops.sdpfa_fwd(
        query.exact,
        key.exact,
        value.exact,
        dropout_p=0.0,
        is_causal=bool(causal),
        scale=_scale(query, scale),
    )
    output, logsumexp, seed, offset = made
    mask = builder.full(builder.results[8].shape, 0, query.dtype)  # it has no elements
    longest = builder.results[4], builder.results[5]
    return (output, logsumexp, None, None, *longest, seed, offset, mask)


@translates(aten._scaled_dot_product_flash_attention_backward.default, options=["attention"])
def attention_backward(
    builder: Builder,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    output: Value,
    logsumexp: Value,
    lengths: Any,
    other_lengths: Any,
    longest: Any,
    other_longest: Any,
    dropout: float,
    causal: bool,
    seed: Value,
    offset: Value,
    scale: float | None,
) -> tuple[Any, ...]:
    """The gradients of flash attention."""
    if dropout:
        raise Untranslatable("attention with dropout")
    return builder.ops.sdpfa_bwd(
        grad.exact,
        query.exact,
        key.exact,
        value.exact,
        output.exact,
        logsumexp.exact,
        0.0,
        bool(causal),
        seed.exact,
        offset.exact,
        _scale(query, scale),
    )


def _scale(query: Value, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale
