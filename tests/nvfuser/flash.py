"""nvFuser's flash attention, by PyTorch on the CPU: all scores at once, in float32."""

from __future__ import annotations

import math
from typing import Any

import torch

Tensor = torch.Tensor


def forward(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> tuple[Tensor, ...]:
    """The output, the logarithms of the sums, and the state of random numbers that are not drawn."""
    scores = _scores(query, key, **how)
    output = scores.softmax(-1) @ value.float()
    state = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    return output.to(query.dtype), scores.logsumexp(-1), *state


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    *,
    philox_seed: Tensor,
    philox_offset: Tensor,
    **how: Any,
) -> tuple[Tensor, ...]:
    """The gradients of query, key and value."""
    assert philox_seed.dtype == philox_offset.dtype == torch.uint64
    weights = (_scores(query, key, **how) - logsumexp.unsqueeze(-1)).exp()
    grad, output = grad.float(), output.float()
    inner = grad @ value.float().mT - (grad * output).sum(-1, keepdim=True)
    inner = weights * inner * how["scale"]
    found = inner @ key.float(), inner.mT @ query.float(), weights.mT @ grad
    return tuple(gradient.to(query.dtype) for gradient in found)


def _scores(
    query: Tensor, key: Tensor, *, dropout_p: float, is_causal: bool, scale: float
) -> Tensor:
    assert dropout_p == 0
    scores = query.float() @ key.float().mT * scale
    if not is_causal:
        return scores
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~seen, -math.inf)
