"""Random programs of views and writes: values, effects and sharing of memory are eager's, at two calls each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracemill as tm
from tracemill.compiler.errors import UnsupportedError

Tensor = torch.Tensor
Step = tuple[str, int, int]

VIEWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "first row": lambda t, _: t[0],
    "last rows": lambda t, _: t[1:],
    "every second": lambda t, _: t[..., ::2],
    "transposed": lambda t, _: t.transpose(0, -1),
    "flat": lambda t, _: t.reshape(-1),
    "unsqueezed": lambda t, _: t.unsqueeze(0),
    "half": lambda t, _: t.chunk(2)[-1],
    "alias": lambda t, _: t[:],
    "detached": lambda t, _: t.detach(),
    "piece": lambda t, _: t.split(1)[0],
}
FRESH: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "doubled": lambda t, _: t * 2,
    "cloned": lambda t, _: t.clone(),
    "with the other's sum": lambda t, other: t - other.sum(),
    "indexed": lambda t, _: t[torch.tensor([0, -1])],
    "contiguous": lambda t, _: t.contiguous(),
}
WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda t, _: t.add_(1),
    "add the other's sum": lambda t, other: t.add_(other.sum()),
    "copy the other's mean": lambda t, other: t.copy_(other.mean()),
    "scale": lambda t, _: t.mul_(0.5),
    "zero": lambda t, _: t.zero_(),
    "set the first": lambda t, _: t.__setitem__(0, 3.0),
    "set the last": lambda t, other: t.__setitem__((..., -1), other.max()),
    "set by a mask": lambda t, _: t.__setitem__(t > 2, -1.0),
    "set by indices": lambda t, other: t.__setitem__([0], other.min()),
    "fill where": lambda t, _: t.masked_fill_(t < 0, 7.0),
    "out": lambda t, other: torch.mul(t, 3, out=t),
    "clamp": lambda t, _: t.clamp_(-50, 50),
    "draw": lambda t, _: t.uniform_(),
    "running sum": lambda t, _: t.cumsum_(0),
}
RESHAPES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "transpose in place": lambda t, _: t.transpose_(0, -1),
    "unsqueeze in place": lambda t, _: t.unsqueeze_(0),
    "squeeze in place": lambda t, _: t.squeeze_(),
}
UNSEEN: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "scale unseen": torch.no_grad()(lambda t, _: t.mul_(0.5)),
    "add unseen": lambda t, other: t.detach().add_(other.detach().sum()),
    "set unseen": torch.no_grad()(lambda t, _: t.__setitem__(0, 3.0)),
}
OPERATIONS = VIEWS | FRESH | WRITES | RESHAPES | UNSEEN


def steps(names: Sequence[str]) -> st.SearchStrategy[list[Step]]:
    one = st.tuples(st.sampled_from(names), st.integers(0, 30), st.integers(0, 30))
    return st.lists(one, min_size=1, max_size=10)


def program_of(chosen: list[Step], returned: list[int]) -> Callable[..., tuple[Tensor, ...]]:
    """The program that takes the steps, each on one of the tensors so far, and returns some of them."""

    def program(*inputs: Tensor) -> tuple[Tensor, ...]:
        known = list(inputs)
        for name, on, other in chosen:
            tensor, second = known[on % len(known)], known[other % len(known)]
            if not tensor.dim() or not tensor.numel() or not second.numel():
                continue
            if name in RESHAPES and any(tensor is given for given in inputs):
                continue  # an input's own shape stays
            made = OPERATIONS[name](tensor, second)
            if name in VIEWS or name in FRESH:
                known.append(made)
        return tuple(known[index % len(known)] for index in returned)

    return program


def inputs_of(kind: str, start: float) -> tuple[Tensor, Tensor]:
    base = torch.arange(24.0).reshape(4, 6) * 0.25 - 2 + start
    other = {
        "apart": torch.arange(6.0) + start,
        "a view": base[1],
        "overlapping": base.view(-1)[4:16].view(3, 4),
        "the same": base,
        "another view": base[:],
    }[kind]
    return (base[1:], other) if kind == "overlapping" else (base, other)


KINDS = st.sampled_from(["apart", "a view", "overlapping", "the same", "another view"])


def assert_alike(want: Sequence[Tensor], got: Sequence[Tensor]) -> None:
    """Values, strides, and which tensors are one and which share memory, and where."""
    assert len(want) == len(got)
    for one, other in zip(want, got, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
        assert one.stride() == other.stride()
    for position, (one, other) in enumerate(zip(want, got, strict=True)):
        for second, third in zip(want[:position], got[:position], strict=True):
            assert (one is second) == (other is third)
            shared = one.untyped_storage()._cdata == second.untyped_storage()._cdata
            assert shared == (other.untyped_storage()._cdata == third.untyped_storage()._cdata)
            if shared:
                assert one.storage_offset() == other.storage_offset()


@given(steps([*VIEWS, *FRESH, *WRITES, *RESHAPES]), st.lists(st.integers(0, 30), max_size=4), KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_programs_of_views_and_writes(chosen: list[Step], returned: list[int], kind: str) -> None:
    program = program_of(chosen, returned)
    jitted = tm.jit(program)
    for start in (0.0, 1.5):
        given_to_eager, given_to_jit = inputs_of(kind, start), inputs_of(kind, start)
        torch.manual_seed(1)
        want = program(*given_to_eager)
        torch.manual_seed(1)
        got = jitted(*given_to_jit)

        assert_alike([*want, *given_to_eager], [*got, *given_to_jit])
        for result in (*want, *got):
            result.add_(1)  # reaches whatever shares its memory
        assert_alike([*want, *given_to_eager], [*got, *given_to_jit])


def gradients_of(
    program: Callable[..., Any], start: float, written: int
) -> tuple[list[Tensor], list[Tensor | None]]:
    """What a training step sees that writes to what a program returned: values, and the leaves' gradients."""
    torch.manual_seed(1)
    weight = (torch.arange(12.0).reshape(3, 4) * 0.25 + start).requires_grad_()
    buffer = torch.ones(3, 4) * start
    activation = weight * 3
    results = program(weight, activation, buffer)
    for result in results[:written]:
        result.mul_(2)
    seen = [*results, activation, buffer]
    loss = sum((i + 1) * each.sum() for i, each in enumerate(seen) if each.requires_grad)
    gradient = None
    if isinstance(loss, Tensor):
        (gradient,) = torch.autograd.grad(loss, [weight], allow_unused=True)
    return [*seen, weight], [gradient]


@given(
    steps([name for name in OPERATIONS if name not in ("detached", "draw")]),
    st.lists(st.integers(0, 30), min_size=1, max_size=3),
    st.integers(0, 2),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_gradients_through_writes(chosen: list[Step], returned: list[int], written: int) -> None:
    inner = program_of(chosen, returned)

    def program(weight: Tensor, activation: Tensor, buffer: Tensor) -> tuple[Tensor, ...]:
        made = inner(activation, weight * 2, buffer, weight.detach() + 1, weight)
        buffer.detach().mul_(0.5)
        return made

    jitted = tm.jit(program)
    for start in (0.5, 1.0):
        try:
            want = gradients_of(program, start, written)
        except RuntimeError:  # eager forbids it: a value that a backward needs was written to
            return
        got = gradients_of(jitted, start, written)
        for one, other in zip(want[0] + want[1], got[0] + got[1], strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-6, equal_nan=True)
                assert one.requires_grad == other.requires_grad


def test_what_cannot_be_done_is_refused_before_any_effect() -> None:
    def program(x: Tensor) -> Tensor:
        x.add_(1)
        return x.transpose_(0, 1)

    x = torch.zeros(2, 3)
    with pytest.raises(
        UnsupportedError, match=r"transpose_ changes the shape of an input.*x\.transpose_"
    ):
        tm.jit(program)(x)
    assert torch.equal(x, torch.zeros(2, 3))
