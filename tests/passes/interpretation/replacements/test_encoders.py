"""`nn.TransformerEncoder` in inference with a padding mask: padding comes out as zeros, as from eager's nested tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm

LEFT = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
RIGHT = LEFT.flip(1)


def _encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, **options).eval()


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("options", [{}, {"norm": nn.LayerNorm(16)}, {"mask_check": False}])
@pytest.mark.parametrize("as_float", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_is_zero_where_eager_has_nested_tensors(
    options: dict[str, Any], as_float: bool, cache: str
) -> None:
    encoder = _encoder(**options)
    jitted = tm.jit(encoder, cache=cache)
    x = torch.randn(2, 5, 16)
    for mask in (LEFT, LEFT.flip(0), RIGHT if options.get("mask_check", True) else LEFT):
        padding = torch.zeros(mask.shape).masked_fill(mask, -torch.inf) if as_float else mask
        with torch.no_grad():
            want = encoder(x, src_key_padding_mask=padding)
            got = jitted(x, src_key_padding_mask=padding)

        torch.testing.assert_close(got, want)
        assert torch.equal(got.detach()[mask] == 0, want.detach()[mask] == 0)


@pytest.mark.parametrize(
    "switched_off",
    [lambda encoder: encoder.train(), lambda encoder: setattr(encoder, "use_nested_tensor", False)],
)
def test_elsewhere_padding_is_computed_as_in_eager(switched_off: Any) -> None:
    encoder = _encoder()
    switched_off(encoder)
    jitted = tm.jit(encoder)
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        torch.manual_seed(0)
        want = encoder(x, src_key_padding_mask=LEFT)
        torch.manual_seed(0)
        got = jitted(x, src_key_padding_mask=LEFT)

    torch.testing.assert_close(got, want)
    assert bool((got[LEFT] != 0).any())


def test_gradients_flow_through_the_padded_tensors() -> None:
    encoder = _encoder()
    x = torch.randn(2, 5, 16)

    got, want = tm.jit(encoder)(x, None, LEFT), encoder(x, None, LEFT)

    assert torch.equal(got, want)
    assert got.requires_grad
