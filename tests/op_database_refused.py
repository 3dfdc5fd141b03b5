"""The operators of PyTorch's database that jit refuses by name for now, and why.

A test holds each of them to it: refused on at least one sample, before any effect, wrong on none.
An operator that has become right fails its test until it is taken out.
"""

from __future__ import annotations

_MUTATION = "some samples write to an input"
_RESIZE = "resizes an input's memory"

REFUSED: dict[str, str] = {
    "_batch_norm_with_update": _MUTATION,
    "_native_batch_norm_legit": _MUTATION,
    "cauchy": _MUTATION,
    "exponential": _MUTATION,
    "geometric": _MUTATION,
    "log_normal": _MUTATION,
    "native_batch_norm": _MUTATION,
    "nn.functional.batch_norm": _MUTATION,
    "nn.functional.embedding": _MUTATION,
    "nn.functional.embedding_bag": _MUTATION,
    "nn.functional.instance_norm": _MUTATION,
    "normal.in_place": _MUTATION,
    "resize_": _RESIZE,
    "uniform": _MUTATION,
}

REFUSED_BACKWARD: dict[str, str] = {
    "_batch_norm_with_update": _MUTATION,
    "_native_batch_norm_legit": _MUTATION,
    "native_batch_norm": _MUTATION,
    "nn.functional.batch_norm": _MUTATION,
    "nn.functional.instance_norm": _MUTATION,
    "zero_": "writes to a tensor that gradients flow through",
}
"""Those that it refuses when gradients are wanted."""
