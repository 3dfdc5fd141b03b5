"""Blocks of GPT and Llama: their regions, forward and backward, against eager, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm
from tests.models import Block
from tests.nvfuser.harness import DEVICE, compare, executor_for, left, regions, some

DTYPES = (torch.float32, torch.bfloat16)


def gpt_block() -> nn.Module:
    return Block(32, 4)


def llama_block() -> nn.Module:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    config._attn_implementation = "sdpa"

    class WithPositions(nn.Module):
        """The layer, with the embedding of positions that the model gives it."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = LlamaDecoderLayer(config, 0)
            self.rotary = LlamaRotaryEmbedding(config)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
            made = self.layer(x, position_embeddings=self.rotary(x, positions))
            return made if isinstance(made, torch.Tensor) else made[0]

    return WithPositions()


BLOCKS = {"gpt": gpt_block, "llama": llama_block}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("build", BLOCKS.values(), ids=BLOCKS)
def test_a_block_trains_as_by_eager(build: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    block = build().to(DEVICE, dtype)
    executor = executor_for()
    fast = tm.jit(block, executors=[executor])
    results: list[Any] = []
    cotangent = some(2, 8, 32, dtype=dtype).to(DEVICE)
    data = some(2, 8, 32, dtype=dtype).to(DEVICE)
    for module in (fast, block):
        x = data.clone().requires_grad_()
        block.zero_grad()
        made = module(x)
        made.backward(cotangent)
        results.append([made, x.grad, *(parameter.grad for parameter in block.parameters())])
    compare(results[0][:1], results[1][:1])
    for ours, theirs in zip(results[0][1:], results[1][1:], strict=True):
        scale = theirs.abs().max().item()
        tolerance = scale * (1e-4 if dtype == torch.float32 else 5e-2)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    for traces in (tm.last_traces(fast), tm.last_backward_traces(fast)):
        assert list(regions(traces[-1]))
        alone = [bsym for bsym in traces[-1].bound_symbols if bsym.sym.name in left(traces[-1])]
        assert all(executor.can_fuse(bsym) for bsym in alone if not _multiplies(bsym))


def _multiplies(bsym: tm.BoundSymbol) -> bool:
    return any(word in bsym.sym.name for word in ("linear", "mm", "matmul", "attention"))
