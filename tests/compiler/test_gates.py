"""Gates: gradients from one output of a program to another are seen as eager's are, by hooks and by who asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import tracemill as tm

T = torch.Tensor


def two(x: T) -> tuple[T, ...]:
    y = x * 2
    return y, y.sin()


def apart(x: T) -> tuple[T, ...]:
    return x * 2, x.sin()


def around(x: T) -> tuple[T, ...]:
    """Gradients go by the first output and around it."""
    y = x.exp()
    return y, y * x + y


def three(x: T) -> tuple[T, ...]:
    y = x * 2
    z = y.sin() * y
    return z * y + z, y, z


def with_numbers(x: T) -> tuple[T, ...]:
    y = x.cos()
    return y > 0, y, (y * y).sum(), y.detach()


def forked(x: T) -> tuple[T, ...]:
    y, z = x.sin(), x.cos()
    return y, z, y.exp(), z.exp() * y


PROGRAMS = [two, apart, around, three, with_numbers, forked]


def trained(result: Sequence[T]) -> list[T]:
    return [out for out in result if out.requires_grad]


def retained(x: T, result: Sequence[T]) -> list[Any]:
    outs = trained(result)
    for out in outs:
        out.retain_grad()
    outs[-1].sum().backward()
    return [out.grad for out in outs]


def retained_by_the_first(x: T, result: Sequence[T]) -> list[Any]:
    outs = trained(result)
    outs[0].retain_grad()
    sum(out.sum() for out in outs).backward()  # type: ignore[union-attr]
    return [outs[0].grad]


def doubled_by_hooks(x: T, result: Sequence[T]) -> list[Any]:
    outs = trained(result)
    seen: dict[int, T] = {}
    for position, out in enumerate(outs):
        out.register_hook(lambda g, at=position: seen.setdefault(at, g) * 2)
    sum(out.sin().sum() for out in outs).backward()  # type: ignore[union-attr]
    return [seen[position] for position in range(len(outs))]


def asked_for(x: T, result: Sequence[T]) -> list[Any]:
    outs = trained(result)
    found = torch.autograd.grad(
        outs[-1].sum(), [*outs[:-1], x], retain_graph=True, allow_unused=True
    )
    outs[-1].sum().backward()
    return list(found)


def asked_for_alone(x: T, result: Sequence[T]) -> list[Any]:
    outs = trained(result)
    found = torch.autograd.grad(
        [out.sum() for out in outs], outs[0], retain_graph=True, allow_unused=True
    )
    sum(out.sum() for out in outs).backward()  # type: ignore[union-attr]
    return list(found)


def from_each(x: T, result: Sequence[T]) -> list[Any]:
    outs = trained(result)
    outs[0].retain_grad()
    for out in outs:
        out.sum().backward(retain_graph=True)
    return [outs[0].grad]


def differentiable(x: T, result: Sequence[T]) -> list[Any]:
    outs = trained(result)
    (gradient,) = torch.autograd.grad(outs[-1].sum(), x, create_graph=True)
    (gradient**2).sum().backward()
    return [gradient.detach()]


def written_to_afterwards(x: T, result: Sequence[T]) -> list[Any]:
    last = trained(result)[-1]
    last.mul_(3)
    last.sum().backward()
    return [last.detach()]


USES = [retained, retained_by_the_first, doubled_by_hooks, asked_for, asked_for_alone, from_each]


@pytest.mark.parametrize("use", [*USES, differentiable, written_to_afterwards])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_between_outputs_are_eagers(
    program: Callable[[T], Sequence[T]], use: Callable[[T, Sequence[T]], list[Any]]
) -> None:
    jitted = tm.jit(program)
    for begin in (0.5, 1.5):
        found: list[list[Any]] = []
        for call in (program, jitted):
            x = (torch.arange(3.0) + begin).requires_grad_()
            found.append([*use(x, call(x)), x.grad])
        assert len(found[0]) == len(found[1])
        for want, got in zip(*found, strict=True):
            assert (want is None) == (got is None)
            if want is not None:
                torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_what_nobody_looks_at_is_one_backward() -> None:
    jitted = tm.jit(around)
    x = torch.ones(3, requires_grad=True)
    torch.stack(list(jitted(x))).sum().backward()
    before = len(tm.last_backward_traces(jitted))
    y, z = jitted(x)
    assert z.is_leaf is y.is_leaf is False
    assert not z._is_view()
    z.sum().backward()
    assert len(tm.last_backward_traces(jitted)) == before


def test_a_hook_is_called_only_where_its_output_gets_a_gradient() -> None:
    def hooked(called: Callable[..., Any]) -> list[Any]:
        x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        log: list[Any] = []
        together: list[Any] = []

        def plain(found: Any) -> Any:
            return found.tolist() if isinstance(found, T) else found

        a, b = called(x, y)
        a.register_hook(lambda gradient: gradient * 2)
        removed = b.register_hook(lambda gradient: log.append("removed"))
        b.register_hook(lambda gradient: log.append(gradient.tolist()))
        torch.autograd.graph.register_multi_grad_hook(
            (a, b), lambda found: together.append([plain(gradient) for gradient in found])
        )
        torch.autograd.graph.register_multi_grad_hook(
            (a, b), lambda found: log.append(found.tolist()), mode="any"
        )
        removed.remove()
        a.sum().backward()
        b.mean().backward()
        return [log, together, plain(x.grad), plain(y.grad)]

    def program(x: T, y: T) -> tuple[T, ...]:
        return x * 2, y * 3

    assert hooked(tm.jit(program)) == hooked(program)
