"""Products of matrices and attention, which are translated where a user asks for them."""

from __future__ import annotations

from typing import Any

import torch

from tracemill.executors.nvfuser.builder import Builder
from tracemill.executors.nvfuser.registry import Untranslatable, translates
from tracemill.executors.nvfuser.values import Value

aten = torch.ops.aten


@translates(aten.mm.default, aten.bmm.default, option="matmul")
def matmul(builder: Builder, left: Value, right: Value) -> Any:
    """The product of two matrices, or of each pair of two batches."""
    return builder.ops.matmul(left.exact, right.exact)


@translates(aten.addmm.default, aten.baddbmm.default, option="matmul")
def addmm(builder: Builder, bias: Value, left: Value, right: Value, beta: Any, alpha: Any) -> Any:
    """beta * bias + alpha * the product of two matrices."""
    ops, dtype = builder.ops, builder.result.dtype
    product = Value(ops.matmul(left.exact, right.exact), builder.result).computed
    if alpha != 1:
        product = ops.mul(product, builder.operand(alpha, dtype))
    if beta == 0:
        return product
    added = builder.operand(bias, dtype)
    return ops.add(product, added if beta == 1 else ops.mul(added, builder.operand(beta, dtype)))


@translates(aten.linear.default, option="linear")
def linear(builder: Builder, value: Value, weight: Value, bias: Value | None) -> Any:
    """A linear layer."""
    if bias is None:
        return builder.ops.linear(value.exact, weight.exact)
    return builder.ops.linear(value.exact, weight.exact, bias.exact)


@translates(aten._scaled_dot_product_flash_attention.default, option="attention")
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
    longest = builder.results[4], builder.results[5]
    return (output, logsumexp, None, None, *longest, seed, offset, None)


@translates(aten._scaled_dot_product_flash_attention_backward.default, option="attention")
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
        seed.any,
        offset.any,
        _scale(query, scale),
    )


def _scale(query: Value, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale
