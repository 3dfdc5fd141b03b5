"""Small models with random weights, built from configurations alone: nothing is downloaded.

Every builder seeds PyTorch and returns `(module, args, kwargs)` for one call, the module in eval
mode. The same arguments give the same weights and the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

VOCABULARY = 128


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, length))


def llama(
    *, layers: int = 2, hidden: int = 64, batch: int = 2, length: int = 8, use_cache: bool = False
) -> Built:
    """`transformers`' Llama with a language-model head and grouped-query attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config).eval(), (_tokens(batch, length),), {"use_cache": use_cache}


def gpt2(*, layers: int = 2, hidden: int = 64, use_cache: bool = False) -> Built:
    """`transformers`' GPT-2 with a language-model head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=hidden,
        n_layer=layers,
        n_head=4,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval(), (_tokens(2, 8),), {"use_cache": use_cache}


def bert(*, layers: int = 2, hidden: int = 64) -> Built:
    """`transformers`' BERT encoder, called with a padding mask."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    tokens = _tokens(2, 8)
    mask = torch.ones_like(tokens)
    mask[1, 5:] = 0
    return BertModel(config).eval(), (), {"input_ids": tokens, "attention_mask": mask}


def vit(*, layers: int = 2, hidden: int = 64) -> Built:
    """`transformers`' vision transformer."""
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        image_size=16,
        patch_size=4,
    )
    return ViTModel(config).eval(), (torch.randn(2, 3, 16, 16),), {}


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm_2 = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(hidden, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """A plain decoder-only language model: learned positions, tied head."""

    def __init__(self, layers: int, hidden: int, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, hidden)
        self.positions = nn.Embedding(64, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def gpt(*, layers: int = 2, hidden: int = 64) -> Built:
    """The plain `GPT` above."""
    torch.manual_seed(0)
    return GPT(layers, hidden).eval(), (_tokens(2, 8),), {}


def cnn() -> Built:
    """Convolutions, batch norm, pooling, a residual, a linear head."""
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(x + self.inner(x))

    def conv(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )

    model = nn.Sequential(
        conv(3, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Residual(conv(8, 8)),
        conv(8, 16, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return model.eval(), (torch.randn(2, 3, 16, 16),), {}


BUILDERS: dict[str, Callable[[], Built]] = {
    "llama": llama,
    "llama-cache": lambda: llama(use_cache=True),
    "gpt2": gpt2,
    "gpt2-cache": lambda: gpt2(use_cache=True),
    "bert": bert,
    "vit": vit,
    "gpt": gpt,
    "cnn": cnn,
}


def tensors_in(value: object) -> list[torch.Tensor]:
    """Every tensor in a result, in a fixed order: through containers, model outputs and caches."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        parts: list[Any] = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        parts = list(vars(value).values())
    else:
        return []
    return [tensor for part in parts for tensor in tensors_in(part)]
