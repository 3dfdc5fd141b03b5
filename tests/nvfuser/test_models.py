"""Blocks of GPT and Llama: their regions, forward and backward, against eager, and compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracemill as tm
from tests.models import Block
from tests.nvfuser.harness import (
    DEVICE,
    as_exact,
    compare,
    definitions_like_eager,
    executor_for,
    left,
    regions,
    some,
)
from tracemill.executors.nvfuser.executor import NvFuserExecutor, definitions
from tracemill.executors.nvfuser.registry import OPTIONS

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
    cotangent = some(2, 8, 32, dtype=dtype).to(DEVICE)
    data = some(2, 8, 32, dtype=dtype).to(DEVICE)

    def trained(module: nn.Module, dtype: torch.dtype) -> list[Any]:
        x = data.to(dtype).clone().requires_grad_()
        module.zero_grad()
        made = module(x)
        made.backward(cotangent.to(dtype))
        return [made, x.grad, *(parameter.grad for parameter in module.parameters())]

    exact = copy.deepcopy(block).double()
    results = trained(fast, dtype), trained(block, dtype), trained(exact, torch.float64)
    compare(results[0][:1], results[1][:1])
    for ours, theirs, wanted in zip(*results, strict=True):
        as_exact(ours, theirs, wanted)
    for traces in (tm.last_traces(fast), tm.last_backward_traces(fast)):
        assert list(regions(traces[-1]))
        alone = [bsym for bsym in traces[-1].bound_symbols if bsym.sym.name in left(traces[-1])]
        assert all(executor.can_fuse(bsym) for bsym in alone if not _multiplies(bsym))


@pytest.mark.parametrize("options", [(), OPTIONS], ids=["plain", "with all options"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("build", BLOCKS.values(), ids=BLOCKS)
def test_the_regions_of_a_block_for_a_gpu_that_is_not_there(
    build: Callable[[], nn.Module], dtype: torch.dtype, options: tuple[str, ...]
) -> None:
    block = tm.fake(build().to(dtype), device="cuda:0")
    fast = tm.jit(block, executors=[NvFuserExecutor(options, strict=True)])
    fast(tm.fake(torch.empty(2, 8, 32, dtype=dtype).requires_grad_(), device="cuda:0"))
    for traces in (tm.last_traces(fast), tm.last_backward_traces(fast)):
        assert list(regions(traces[-1]))
        definitions_like_eager(traces[-1])
        if options:
            assert not left(traces[-1])


def test_what_would_run_of_a_training_step_on_a_gpu(golden: Callable[[str, str], None]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(F.layer_norm(x, (8,)), w, b)).mean()

    fast = tm.jit(fn, executors=[NvFuserExecutor(["linear"], strict=True)])
    described = ("cuda:0 bf16[4, 8]", "cuda:0 bf16[16, 8]", "cuda:0 bf16[16]")
    fast(*(tm.fake(what, requires_grad=True) for what in described))
    for name, traces in (
        ("forward", tm.last_traces(fast)),
        ("backward", tm.last_backward_traces(fast)),
    ):
        golden("\n\n".join([str(traces[-1]), *definitions(traces[-1]).values()]), name)


def _multiplies(bsym: tm.BoundSymbol) -> bool:
    return any(word in bsym.sym.name for word in ("linear", "mm", "matmul", "attention"))
