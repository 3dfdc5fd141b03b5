"""Architectures of `transformers`, tiny and with random weights: forward, gradients and what they leave, against eager.

Each is called twice, then with another batch and length. Configurations alone are read; nothing is downloaded.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch

import tracemill as tm
from tests.models import tensors_in

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TINY = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "projection_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff", "d_inner", "ffn_dim"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("d_kv", "head_dim", "patch_size"), 8),
    **{"vocab_size": 99, "num_key_value_heads": 2, "num_experts_per_tok": 2, "sliding_window": 4},
    **{"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "image_size": 32},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
}
"""What a configuration is made with, as far as it takes it."""

CONVOLUTIONS = {
    **{"conv_dim": [16, 16], "conv_kernel": [5, 3], "conv_stride": [4, 2]},
    **{"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0},
}
FORECAST = {
    **{"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2, 3]},
    **{"num_time_features": 1, "d_model": 16},
}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "bart": {},
    "beit": {},
    "bert": {},
    "blip": {},
    "bloom": {},
    "clip": {},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deit": {},
    "dinov2": {},
    "distilbert": {},
    "electra": {},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma": {},
    "gemma2": {},
    "gpt2": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gptj": {"rotary_dim": 4},
    "hubert": CONVOLUTIONS,
    "informer": FORECAST,
    "llama": {},
    "longformer": {"attention_window": [4, 4]},
    "mamba2": {"num_heads": 8, "n_groups": 1, "chunk_size": 4, "state_size": 8},
    "mbart": {},
    "mistral": {},
    "mixtral": {},
    "mt5": {},
    "olmo": {},
    "opt": {},
    "pegasus": {},
    "perceiver": {"num_latents": 8, "d_latents": 16, "num_self_attends_per_block": 2},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen2_moe": {},
    "qwen3": {},
    "resnet": {"embedding_size": 8, "layer_type": "basic", **STAGES},
    "roberta": {},
    "rwkv": {"attention_hidden_size": 32, "context_length": 64},
    "stablelm": {},
    "t5": {},
    "time_series_transformer": FORECAST,
    "vit": {},
    "wav2vec2": CONVOLUTIONS,
    "whisper": {"num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 32},
    "xlnet": {"d_head": 8},
}
"""The architectures by transformers' names, each with what else its configuration is made with."""


def _configuration(kind: Any, extra: dict[str, Any]) -> Any:
    known = inspect.signature(kind.__init__).parameters
    given = {name: value for name, value in TINY.items() if name in known} | extra
    for name, inner in getattr(kind, "sub_configs", {}).items():
        given[name] = _configuration(inner, {}).to_dict()
    return kind(**given)


def _model(name: str) -> Any:
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    return AutoModel.from_config(_configuration(CONFIG_MAPPING[name], ARCHITECTURES[name]))


def _inputs(model: Any, batch: int, length: int) -> dict[str, Any]:
    """What the model is called with: those of its parameters that are known here."""
    config = model.config
    past = getattr(config, "context_length", 0) + max(getattr(config, "lags_sequence", None) or [0])
    made = {
        "input_ids": lambda: torch.randint(3, 38, (batch, length)),
        "attention_mask": lambda: (torch.arange(length) < length - 2).long().expand(batch, -1),
        "decoder_input_ids": lambda: torch.randint(3, 38, (batch, length // 2)),
        "pixel_values": lambda: torch.randn(batch, 3, 32, 32),
        "input_values": lambda: torch.randn(batch, 16 * length),
        "input_features": lambda: torch.randn(batch, 16, 32),
        "inputs": lambda: torch.randn(batch, length, 32),
        "past_values": lambda: torch.rand(batch, past),
        "past_time_features": lambda: torch.randn(batch, past, 1),
        "past_observed_mask": lambda: torch.ones(batch, past),
        "future_values": lambda: torch.rand(batch, 4),
        "future_time_features": lambda: torch.randn(batch, 4, 1),
    }
    asked = inspect.signature(model.forward).parameters
    if "input_ids" not in asked:
        del made["attention_mask"]
    torch.manual_seed(length)
    return {name: make() for name, make in made.items() if name in asked}


def _step(model: Any, called: Any, inputs: dict[str, Any]) -> tuple[Any, list[Any], list[Any]]:
    """What a call returns, the gradients of the parameters, and the buffers after it."""
    model.zero_grad()
    torch.manual_seed(0)
    with torch.set_grad_enabled(model.training):
        result = called(**inputs)
    outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])
    gradients = [parameter.grad for parameter in model.parameters()]
    return result, gradients, list(model.buffers())


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture(name: str, training: bool) -> None:
    model = _model(name).train(training)
    twin = copy.deepcopy(model)
    jitted = tm.jit(model)
    for batch, length in ((2, 16), (2, 16), (3, 12)):
        inputs = _inputs(model, batch, length)
        got, want = _step(model, jitted, inputs), _step(twin, twin, inputs)

        assert type(got[0]) is type(want[0])
        if isinstance(want[0], dict):
            assert list(got[0]) == list(want[0])
        torch.testing.assert_close(
            (tensors_in(got[0]), *got[1:]), (tensors_in(want[0]), *want[1:]), rtol=1e-4, atol=1e-5
        )
