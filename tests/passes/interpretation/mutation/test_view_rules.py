"""Writes to views, and reads of views that were written to, end as autograd has it: in its error, or in its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import tracemill as tm

T = torch.Tensor
Program = Callable[[T, T], Any]


def one_of_several(x: T, z: T) -> T:
    a, b = x.mul(2).chunk(2)
    a.add_(z)
    return a + b


def a_view_of_one_of_several(x: T, z: T) -> T:
    a, _ = x.mul(2).split(2)
    part = a[:1]
    part.mul_(3)
    return part


def an_item_of_an_iteration(x: T, z: T) -> T:
    y = x.mul(2).view(2, 2)
    for row in y:
        row.mul_(z)
    return y


def one_of_several_whose_base_was_written_to(x: T, z: T) -> T:
    y = x.mul(2)
    a, b = y.split(2)
    y.mul_(3)
    return a + b


def one_of_several_whose_other_was_written_to_unseen(x: T, z: T) -> T:
    a, b = x.mul(2).split(2)
    with torch.no_grad():
        a.zero_()
    return b * z


def a_view_taken_under_no_grad(x: T, z: T) -> T:
    y = x.mul(2)
    with torch.no_grad():
        view = y[:2]
    view.mul_(z)
    return y


def a_view_of_a_new_tensor_that_comes_to_require_grad(x: T, z: T) -> T:
    y = torch.zeros(4)
    a, _ = y.split(2)
    y[0] = z[0]
    return a * z


FORBIDDEN: Sequence[Program] = [
    one_of_several,
    a_view_of_one_of_several,
    an_item_of_an_iteration,
    one_of_several_whose_base_was_written_to,
    one_of_several_whose_other_was_written_to_unseen,
    a_view_taken_under_no_grad,
    a_view_of_a_new_tensor_that_comes_to_require_grad,
]


def leaves() -> tuple[T, T]:
    return torch.arange(1.0, 5.0).requires_grad_(), torch.full((2,), 3.0).requires_grad_()


@pytest.mark.parametrize("program", FORBIDDEN)
def test_what_autograd_forbids_raises_its_error_at_the_call(program: Program) -> None:
    with pytest.raises(RuntimeError, match="modified inplace") as want:
        program(*leaves())
    with pytest.raises(RuntimeError) as got:
        tm.jit(program)(*leaves())
    assert str(got.value) == str(want.value)


def one_of_several_below_no_grad(x: T, z: T) -> T:
    with torch.no_grad():
        a, b = x.mul(2).chunk(2)
        a.add_(b)
    return a * z


def one_of_several_detached(x: T, z: T) -> T:
    a, _ = x.mul(2).chunk(2)
    a.detach().mul_(2)
    return x.sum() * z


def one_of_several_by_data(x: T, z: T) -> T:
    y = x.mul(2)
    a, _ = y.chunk(2)
    y.data.zero_()
    return a * z


def one_of_several_cloned(x: T, z: T) -> T:
    a, b = x.mul(2).chunk(2)
    a = a.clone()
    a += z
    return a * b


def parts_of_a_new_tensor(x: T, z: T) -> T:
    y = torch.empty(4)
    for part in y.split(2):
        part.copy_(z.detach())
    return y * x


def a_view_of_views(x: T, z: T) -> T:
    y = x.mul(2)
    y.view(2, 2).transpose(0, 1)[0].mul_(z)
    return y


ALLOWED: Sequence[Program] = [
    one_of_several_below_no_grad,
    one_of_several_detached,
    one_of_several_by_data,
    one_of_several_cloned,
    parts_of_a_new_tensor,
    a_view_of_views,
]


def trained(program: Program) -> list[Any]:
    x, z = leaves()
    out = program(x, z)
    out.sum().backward()
    return [out.tolist(), *(t if t is None else t.tolist() for t in (x.grad, z.grad))]


@pytest.mark.parametrize("program", ALLOWED)
def test_what_autograd_allows_is_what_it_gives(program: Program) -> None:
    assert trained(tm.jit(program)) == trained(program)


@pytest.mark.parametrize("program", [one_of_several, an_item_of_an_iteration])
def test_without_gradients_any_view_may_be_written_to(program: Program) -> None:
    x, z = (t.detach() for t in leaves())
    assert torch.equal(tm.jit(program)(x, z[:2]), program(x, z[:2]))


def test_a_view_that_nobody_may_read_is_refused_where_it_is_returned() -> None:
    def program(x: T) -> tuple[T, ...]:
        y = x.mul(2)
        parts = y.split(2)
        with torch.no_grad():
            y.zero_()
        return parts

    x, _ = leaves()
    with pytest.raises(RuntimeError, match="modified inplace"):
        program(x)[0].sum()
    with pytest.raises(tm.MutationError, match="a view that nobody may read, Output 0 of Split"):
        tm.jit(program)(x)
    x = x.detach()
    assert [part.tolist() for part in tm.jit(program)(x)] == [[0.0, 0.0], [0.0, 0.0]]
