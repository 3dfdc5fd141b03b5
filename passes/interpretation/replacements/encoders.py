"""`nn.TransformerEncoder` in inference with a padding mask: eager runs it on nested tensors, which have no padding.

What comes out there is zero. The layers are recorded on the padded tensors, and the padding is made zero after them.
"""

from __future__ import annotations

from collections import abc
from typing import Any

import torch

from tracemill.passes.interpretation.replacements.replacement import standing_in

_Encoder: Any = torch.nn.TransformerEncoder
_forward = _Encoder.forward


def _recorded(
    _recording: Any,
    module: Any,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: Any = None,
) -> Any:
    """A call of an encoder in a program that is traced."""
    padding = src_key_padding_mask
    if mask is not None or padding is None or not _runs_on_nested_tensors(module, src, padding):
        return _forward(module, src, mask, padding, is_causal)
    layers: Any = object.__new__(type(module))
    vars(layers).update({**vars(module), "_modules": {**module._modules, "norm": None}})
    output = _forward(layers, src, mask, padding, is_causal)
    output = output.masked_fill(padding.bool().unsqueeze(-1), 0.0)
    return output if module.norm is None else module.norm(output)


def _runs_on_nested_tensors(module: Any, src: Any, padding: Any) -> bool:
    """Whether eager does: what `TransformerEncoder.forward` asks when nobody compiles."""
    first = module.layers[0]
    if (
        not torch.backends.mha.get_fastpath_enabled()
        or not getattr(module, "use_nested_tensor", False)
        or first.training
        or src.dim() != 3
        or torch.is_autocast_enabled()
    ):
        return False
    tensors = (src, *first.parameters())
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    kept = padding.logical_not()
    return not getattr(module, "mask_check", True) or bool(
        (kept == kept.sort(dim=1, descending=True).values).all()
    )


def replaced() -> abc.Iterator[tuple[Any, str, Any]]:
    """What stands where PyTorch looks for these while a program is interpreted."""
    yield _Encoder, "forward", standing_in(_forward, _recorded)
