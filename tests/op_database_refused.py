"""The operators of PyTorch's database that jit refuses by name for now, and why.

A test holds each of them to it: refused on at least one sample, before any effect, wrong on none.
An operator that has become right fails its test until it is taken out.
"""

from __future__ import annotations

_DATA = "Python, or the shape of the result, needs values that depend on an input"
_MUTATION = "some samples write to an input"
_RESIZE = "resizes an input's memory"

REFUSED: dict[str, str] = {
    "__getitem__": _DATA,
    "_batch_norm_with_update": _MUTATION,
    "_native_batch_norm_legit": _MUTATION,
    "allclose": _DATA,
    "argwhere": _DATA,
    "cauchy": _MUTATION,
    "combinations": _DATA,
    "corrcoef": _DATA,
    "cov": _DATA,
    "equal": _DATA,
    "exponential": _MUTATION,
    "geometric": _MUTATION,
    "item": _DATA,
    "linalg.lstsq": _DATA,
    "linalg.lstsq.grad_oriented": _DATA,
    "log_normal": _MUTATION,
    "masked_select": _DATA,
    "narrow": _DATA,
    "native_batch_norm": _MUTATION,
    "nn.functional.batch_norm": _MUTATION,
    "nn.functional.ctc_loss": _DATA,
    "nn.functional.embedding": _MUTATION,
    "nn.functional.embedding_bag": _MUTATION,
    "nn.functional.gaussian_nll_loss": _DATA,
    "nn.functional.instance_norm": _MUTATION,
    "nonzero": _DATA,
    "normal.in_place": _MUTATION,
    "repeat_interleave": _DATA,
    "resize_": _RESIZE,
    "tensor_split": _DATA,
    "uniform": _MUTATION,
    "unique": _DATA,
    "unique_consecutive": _DATA,
}
