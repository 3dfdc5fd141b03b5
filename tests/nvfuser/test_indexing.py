"""Elements looked up by tensors of positions, against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.nvfuser.harness import FLOATS, fused_like_eager, some


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_of_a_table(dtype: torch.dtype) -> None:
    table, index = some(7, 8, dtype=dtype), torch.randint(0, 7, (2, 5))
    fused_like_eager(lambda w, i: F.embedding(i, w) * 2, table, index)
    fused_like_eager(lambda w, i: w.index_select(0, i) + 1, table, index[0])
    fused_like_eager(lambda w, i: w.index_select(1, i) + 1, table, index[0])
    fused_like_eager(lambda w, i: w[i] + 1, table, index - 7)
    fused_like_eager(lambda w, i: w[:, i] + 1, table, index)


def test_a_single_position() -> None:
    fused_like_eager(lambda w, i: w[i] + w, some(7, 8), torch.tensor([3]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gather(dtype: torch.dtype) -> None:
    x, index = some(3, 8, dtype=dtype), torch.randint(0, 8, (3, 4))
    fused_like_eager(lambda x, i: x.gather(1, i) * 2, x, index)
    fused_like_eager(lambda x, i: torch.take_along_dim(x, i, 1) * 2, x, index)


def test_what_scatters_is_left_to_pytorch_unless_asked_for() -> None:
    x, index = some(3, 8), torch.randint(0, 8, (3, 4))

    def fn(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return (x * 2).scatter(1, index, 1.5)

    fast = fused_like_eager(fn, x, index, leaves_none=False)
    assert "aten.scatter" not in str(fast)
    fused_like_eager(fn, x, index, options=["scatter"])
