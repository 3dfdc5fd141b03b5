"""What networks are made of, opened by PyTorch's decompositions: norms, softmax, losses. Against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm
from tests.nvfuser.harness import FLOATS, FusedAnything, fused_like_eager, left, regions, some

Fn = Callable[..., Any]

COMPOSITES: dict[str, Fn] = {
    "softmax": lambda x, w, b: F.softmax(x, -1),
    "softmax of the first": lambda x, w, b: F.softmax(x, 0),
    "log_softmax": lambda x, w, b: F.log_softmax(x, -1),
    "softmin": lambda x, w, b: F.softmin(x, -1),
    "layer_norm": lambda x, w, b: F.layer_norm(x, (8,), w, b),
    "layer_norm, bare": lambda x, w, b: F.layer_norm(x, (8,)),
    "layer_norm of two": lambda x, w, b: F.layer_norm(x, (4, 8)),
    "rms_norm": lambda x, w, b: F.rms_norm(x, (8,), w),
    "rms_norm by hand": lambda x, w, b: (
        w * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    ),
    "group_norm": lambda x, w, b: F.group_norm(x, 2),
    "batch_norm": lambda x, w, b: F.batch_norm(x, b.detach()[:4] * 0, w.detach()[:4].abs() + 1),
    "normalize": lambda x, w, b: F.normalize(x, dim=-1),
    "cosine": lambda x, w, b: F.cosine_similarity(x, w, dim=-1),
    "attention by hand": lambda x, w, b: F.softmax(
        (x / 8).masked_fill(
            torch.ones(4, 8, dtype=torch.bool, device=x.device).tril().logical_not(), -1e9
        ),
        -1,
    ),
    "swiglu": lambda x, w, b: F.silu(x * w) * (x + b),
}


SEGMENTED = pytest.mark.xfail(
    reason="nvFuser asserts that all reductions of one segment are alike", raises=AssertionError
)
NOT_ALL = {
    "batch_norm": "its backward reads statistics that have no elements, which nvFuser does not take"
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(
            name, dtype, marks=SEGMENTED if (name, dtype) == ("cosine", torch.bfloat16) else ()
        )
        for name in COMPOSITES
        for dtype in FLOATS
    ],
    ids=str,
)
def test_a_composite(name: str, dtype: torch.dtype) -> None:
    x, w, b = some(3, 4, 8, dtype=dtype), some(8, dtype=dtype), some(8, dtype=dtype)
    fn = COMPOSITES[name]

    def whole(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        return fn(x, w, b) + w.sum() * 0 + b.sum() * 0

    fused_like_eager(whole, x, w, b, gradients=True, leaves_none=name not in NOT_ALL)


ON_A_GPU: dict[str, Fn] = {
    **COMPOSITES,
    "dropout": lambda x, w, b: F.dropout(x, 0.2) * 2,
    "cross_entropy": lambda x, w, b: F.cross_entropy(
        x[0], torch.zeros(4, dtype=torch.int64, device=x.device)
    ),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", ON_A_GPU)
def test_nothing_of_a_composite_is_left_on_a_gpu(name: str, dtype: str) -> None:
    """PyTorch opens some otherwise there than on the CPU."""
    fast = tm.jit(ON_A_GPU[name], executors=[FusedAnything(strict=True)])
    described = (f"{dtype}[3, 4, 8]", f"{dtype}[8]", f"{dtype}[8]")
    fast(*(tm.fake(what, device="cuda:0", requires_grad=True) for what in described))
    for traces in (tm.last_traces(fast), tm.last_backward_traces(fast)):
        assert list(regions(traces[-1]))
        assert not left(traces[-1])


LOSSES: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "each": {"reduction": "none"},
    "ignoring": {"ignore_index": 2},
    "smoothed": {"label_smoothing": 0.1},
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_cross_entropy(name: str, dtype: torch.dtype) -> None:
    scores, target = some(6, 5, dtype=dtype), torch.tensor([0, 1, 2, 3, 4, 2])
    fused_like_eager(
        lambda x, t: F.cross_entropy(x, t, **LOSSES[name]), scores, target, gradients=True
    )


def test_cross_entropy_with_weights() -> None:
    weight = some(5, low=0.5)
    scores, target = some(6, 5), torch.tensor([0, 1, 2, 3, 4, 2])

    def fn(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, t, weight.to(x.device))

    fused_like_eager(fn, scores, target, gradients=True)


def test_cross_entropy_of_images() -> None:
    scores, target = some(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4))
    fused_like_eager(lambda x, t: F.cross_entropy(x, t), scores, target, gradients=True)
