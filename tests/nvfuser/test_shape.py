"""Operations that move elements, against eager. Views alone make no region, so each is followed by arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nvfuser.harness import FLOATS, fused_like_eager, on_device, some

Fn = Callable[..., Any]

MOVES: dict[str, Fn] = {
    "view": lambda x: x.view(6, 8),
    "view, inferred": lambda x: x.view(2, -1, 4),
    "reshape to one more": lambda x: x.reshape(2, 3, 2, 4),
    "flatten": lambda x: x.flatten(1),
    "reshape of a transposed": lambda x: x.transpose(0, 1).reshape(3, 16),
    "unflatten": lambda x: x.unflatten(-1, (2, 4)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(-1, -2),
    "t": lambda x: x[0].t(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x.unsqueeze(0).squeeze(0),
    "squeeze all": lambda x: x[:, :1].squeeze(),
    "expand": lambda x: x[:1].expand(5, 3, 8),
    "expand in front": lambda x: x.expand(4, 2, 3, 8),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "slice": lambda x: x[:, 1:, 2:7],
    "slice from the end": lambda x: x[..., -3:],
    "slice of one": lambda x: x[:, 1:2] + x,
    "slice with steps": lambda x: x[..., ::2],
    "select": lambda x: x[1],
    "select from the end": lambda x: x[:, -1],
    "narrow": lambda x: x.narrow(2, 1, 4),
    "split": lambda x: torch.add(*x.split(4, -1)),
    "split unevenly": lambda x: x.split([3, 5], -1)[1],
    "chunk": lambda x: torch.mul(*x.chunk(2, -1)),
    "unbind": lambda x: torch.mul(*x.unbind(0)),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll(2, -1),
    "cat": lambda x: torch.cat([x, x * 2, x[:, :1]], 1),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=1.5),
    "pad that cuts": lambda x: F.pad(x, (-1, 2)),
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(1),
    "rotary": lambda x: torch.cat([-x[..., 4:], x[..., :4]], -1) * x,
    "movedim": lambda x: x.movedim(0, -1),
    "contiguous": lambda x: x.transpose(0, 2).contiguous(),
    "clone": lambda x: x.clone(),
}

# Their gradients gather with steps, in place: PyTorch's own.
WITH_OWN_BACKWARDS = ("slice with steps",)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_a_move(name: str, dtype: torch.dtype) -> None:
    fn = MOVES[name]
    fused_like_eager(
        lambda x: fn(x) * 2 + 1,
        some(2, 3, 8, dtype=dtype),
        gradients=name not in WITH_OWN_BACKWARDS,
    )


def test_replaced_slices() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.slice_scatter(x, y * 2, 1, 2, 5) + torch.select_scatter(x, y[:, 0] + 1, 1, -1)

    fused_like_eager(fn, some(3, 8), some(3, 3), gradients=True)


LAYOUTS: dict[str, Fn] = {
    "transposed": lambda: some(8, 3).t(),
    "channels last": lambda: some(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "cut": lambda: some(3, 16)[:, :8],
    "expanded": lambda: some(3, 1).expand(3, 8),
    "of ones": lambda: some(1, 3, 1, 8),
    "a single number": lambda: some(),
    "one of each": lambda: some(1, 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_inputs_of_every_layout(name: str) -> None:
    x = LAYOUTS[name]()
    fused_like_eager(lambda x: (x * 2, x.sum(), x.exp() + 1), x)


def test_a_copy_has_memory_of_its_own() -> None:
    """nvFuser may give an input, or another output, where nothing is computed."""

    def fn(x: torch.Tensor) -> Any:
        y = x + 1
        return x.clone(), y, y.clone(), y.t().clone()

    fast = fused_like_eager(fn, some(3, 8))
    x = on_device(some(3, 8))
    memory = {tensor.untyped_storage().data_ptr() for tensor in (x, *fast(x))}
    assert len(memory) == 5


def test_tensors_without_elements_are_left_to_pytorch() -> None:
    def fn(x: torch.Tensor) -> Any:
        return (x[:, 3:3] * 2).sum(1) + 1, torch.cat([x, x[:0]]).exp(), x[:, 3:3] + 1

    fused_like_eager(fn, some(3, 8), gradients=True, leaves_none=False)
    fused_like_eager(fn, some(0, 8), leaves_none=False)


@given(data=st.data(), dtype=st.sampled_from(FLOATS))
@settings(max_examples=10, deadline=None)
def test_any_layout_of_inputs(data: st.DataObject, dtype: torch.dtype) -> None:
    """Dimensions in any order, cut, of one or repeated; two inputs that broadcast."""
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=4))
    x, y = (data.draw(laid_out(sizes, dtype)) for _ in range(2))
    keepdim = data.draw(st.booleans())
    fused_like_eager(lambda x, y: ((x * 2 + y).exp(), (x - y).sum(-1, keepdim=keepdim)), x, y)


@st.composite
def laid_out(draw: st.DrawFn, sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of some sizes, or one that is broadcast to them, in a layout of its own."""
    order = draw(st.permutations(range(len(sizes))))
    kinds = [draw(st.sampled_from(["whole", "cut", "one", "repeated"])) for _ in sizes]
    made = [
        1 if kind in ("one", "repeated") else size for kind, size in zip(kinds, sizes, strict=True)
    ]
    cut = [size + 2 * (kind == "cut") for kind, size in zip(kinds, made, strict=True)]
    tensor = some(*(cut[dim] for dim in order), dtype=dtype)
    tensor = tensor.permute([order.index(dim) for dim in range(len(sizes))])
    tensor = tensor[tuple(slice(0, size) for size in made)]
    return tensor.expand(
        [size if kind == "repeated" else -1 for kind, size in zip(kinds, sizes, strict=True)]
    )
