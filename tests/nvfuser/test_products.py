"""Products of matrices and attention, which are regions' where an option asks for them: against eager, and for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm
from tests.nvfuser.harness import FLOATS, ON_GPU, definitions_like_eager, fused_like_eager, some
from tracemill.executors.nvfuser.executor import NvFuserExecutor, definitions

Fn = Callable[..., Any]

LAYERS: dict[str, tuple[Fn, tuple[tuple[int, ...], ...]]] = {
    "of rows": (F.linear, ((5, 8), (3, 8))),
    "of rows, with a bias": (F.linear, ((5, 8), (3, 8), (3,))),
    "of batches": (F.linear, ((2, 5, 8), (3, 8))),
    "of batches, with a bias": (F.linear, ((2, 5, 8), (3, 8), (3,))),
    "of one row": (F.linear, ((1, 8), (3, 8), (3,))),
    "two": (lambda x, w, v: F.linear(F.relu(F.linear(x, w)), v), ((5, 8), (3, 8), (4, 3))),
}

PRODUCTS: dict[str, tuple[Fn, tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((5, 8), (8, 3))),
    "of a transpose": (lambda x, y: x @ y.t(), ((5, 8), (3, 8))),
    "of two transposes": (lambda x, y: x.t() @ y.mT, ((8, 5), (3, 8))),
    "bmm": (torch.bmm, ((2, 5, 8), (2, 8, 3))),
    "of batches and a matrix": (torch.matmul, ((2, 5, 8), (8, 3))),
    "of two dimensions of batches": (torch.matmul, ((2, 1, 5, 8), (4, 8, 3))),
    "addmm": (torch.addmm, ((3,), (5, 8), (8, 3))),
    "addmm, scaled": (
        lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2),
        ((5, 3), (5, 8), (8, 3)),
    ),
    "addmm of no bias": (lambda b, x, y: torch.addmm(b, x, y, beta=0), ((3,), (5, 8), (8, 3))),
    "addmm of a transpose": (lambda b, x, y: torch.addmm(b, x, y.t()), ((5, 3), (5, 8), (3, 8))),
    "baddbmm": (
        lambda b, x, y: torch.baddbmm(b, x, y, beta=2, alpha=0.5),
        ((2, 5, 3), (2, 5, 8), (2, 8, 3)),
    ),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bki", x, y), ((2, 5, 8), (2, 8, 3))),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("option", "name"),
    [*(("linear", name) for name in LAYERS), *(("matmul", name) for name in PRODUCTS)],
)
def test_a_product(option: str, name: str, dtype: torch.dtype) -> None:
    fn, shapes = {"linear": LAYERS, "matmul": PRODUCTS}[option][name]
    args = [some(*shape, dtype=dtype) for shape in shapes]
    fused_like_eager(lambda *args: fn(*args) + 1, *args, options=[option], gradients=True)


ATTENTION: dict[str, dict[str, Any]] = {
    "of all": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str, dtype: torch.dtype) -> None:
    args = [some(2, 4, 8, 16, dtype=dtype) for _ in range(3)]

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, **ATTENTION[name]) * 2

    fast = fused_like_eager(fn, *args, options=["attention"])
    (text,) = definitions(tm.last_traces(fast)[-1]).values()
    assert "fd.ops.sdpfa_fwd" in text
    if ON_GPU:
        fused_like_eager(fn, *args, options=["attention"], gradients=True)


@pytest.mark.parametrize("heads", [4, 2])
def test_what_flash_attention_cannot_do_is_left_to_pytorch(heads: int) -> None:
    q, k = some(2, 4, 8, 16, dtype=torch.bfloat16), some(2, heads, 8, 16, dtype=torch.bfloat16)

    def fn(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        if heads == 2:
            return F.scaled_dot_product_attention(q, k, k, enable_gqa=True) * 2
        mask = torch.ones(8, 8, dtype=torch.bool, device=q.device).tril()
        return F.scaled_dot_product_attention(q, k, k, mask) * 2

    fast = fused_like_eager(fn, q, k, options=["attention"], leaves_none=False)
    texts = definitions(tm.last_traces(fast)[-1]).values()
    assert not any("sdpfa" in text for text in texts)


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """What PyTorch makes of attention where it finds a GPU that can do it."""
    return torch.ops.aten._scaled_dot_product_flash_attention.default(q, k, v, 0.0, True)[0] * 2


FOR_A_GPU: dict[str, tuple[str, Fn, tuple[str, ...], str, str]] = {
    "a linear layer": (
        "linear",
        lambda x, w, b: F.relu(F.linear(x, w, b)),
        ("bf16[2, 8, 16]", "bf16[32, 16]", "bf16[32]"),
        "fd.ops.linear",
        "aten.mm.default is not asked for by option 'linear' or 'matmul'",
    ),
    "a product": (
        "matmul",
        lambda x, y: F.relu(x @ y),
        ("bf16[2, 8, 16]", "bf16[2, 16, 4]"),
        "fd.ops.matmul",
        "aten.bmm.default is not asked for by option 'matmul'",
    ),
    "attention": (
        "attention",
        flash,
        ("bf16[2, 4, 8, 16]",) * 3,
        "fd.ops.sdpfa_",
        "aten._scaled_dot_product_flash_attention.default is not asked for by option 'attention'",
    ),
}


@pytest.mark.parametrize("name", FOR_A_GPU)
def test_definitions_for_a_gpu_hold_what_is_asked_for(name: str) -> None:
    option, fn, described, operation, reason = FOR_A_GPU[name]
    args = [tm.fake(what, device="cuda:0", requires_grad=True) for what in described]
    fast = tm.jit(fn, executors=[NvFuserExecutor([option], strict=True)])
    fast(*args)
    for traces in (tm.last_traces(fast), tm.last_backward_traces(fast)):
        texts = definitions(traces[-1])
        assert any(operation in text for text in texts.values())
        definitions_like_eager(traces[-1])
    plain = tm.jit(fn, executors=[NvFuserExecutor(strict=True)])
    plain(*args)
    for traces in (tm.last_traces(plain), tm.last_backward_traces(plain)):
        assert not any(operation in text for text in definitions(traces[-1]).values())
    assert reason in str(tm.last_report(plain))
