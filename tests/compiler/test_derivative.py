"""Derivatives per signature: what PyTorch is asked, how often, and what it says."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tracemill.compiler.body import NotCapturedError, Step
from tracemill.compiler.derivative import DERIVATIVES, Backward, Derivative
from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbol import symbol


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    DERIVATIVES.clear()


def proxy(*shape: int, requires_grad: bool = True, **options: Any) -> TensorProxy:
    return TensorProxy("x", shape=shape, requires_grad=requires_grad, **options)


def cotangent(meta: TensorMeta) -> TensorProxy:
    return TensorProxy("cotangent", meta=meta.replace(requires_grad=False, is_leaf=True))


def whole(derivative: Derivative) -> Backward:
    """The backward when every output has a cotangent that looks like it."""
    refs = [derivative.outputs[position] for position in derivative.differentiable]
    given = [cotangent(derivative.body.meta(ref)) for ref in refs if ref is not None]
    return derivative.backward(tuple(zip(derivative.differentiable, given, strict=True)))


def names(steps: tuple[Step, ...]) -> list[str]:
    return [symbol(step.fn).name for step in steps]


def test_operations_have_the_names_that_people_write() -> None:
    derivative = DERIVATIVES.ask(torch.sin, (proxy(3),), {})
    assert names(derivative.steps) == ["torch.sin"]
    assert names(whole(derivative).steps) == ["torch.cos", "torch.mul"]


def test_one_signature_is_asked_once() -> None:
    before = DERIVATIVES.asked
    first = DERIVATIVES.ask(torch.mul, (proxy(3), proxy(3)), {})
    assert DERIVATIVES.ask(torch.mul, (proxy(3), proxy(3)), {}) is first
    assert DERIVATIVES.asked == before + 1
    same = proxy(3)
    assert DERIVATIVES.ask(torch.mul, (same, same), {}) is not first
    assert DERIVATIVES.ask(torch.mul, (proxy(3), proxy(3, requires_grad=False)), {}) is not first


def test_a_backward_is_asked_once_for_each_set_of_cotangents() -> None:
    derivative = DERIVATIVES.ask(torch.linalg.eigh, (proxy(3, 3),), {})
    values, vectors = (derivative.body.meta(ref) for ref in derivative.outputs if ref is not None)
    both = derivative.backward(((0, cotangent(values)), (1, cotangent(vectors))))
    assert derivative.backward(((0, cotangent(values)), (1, cotangent(vectors)))) is both
    one = derivative.backward(((0, cotangent(values)),))
    assert len(one.steps) < len(both.steps)


def test_what_autograd_only_wraps_is_dropped() -> None:
    """exp and softmax save their result, which autograd detaches first."""
    for fn, args in ((torch.exp, ()), (torch.softmax, (-1,))):
        derivative = DERIVATIVES.ask(fn, (proxy(2, 2), *args), {})
        assert not [n for n in names(whole(derivative).steps) if "detach" in n or "alias" in n]
        assert whole(derivative).needs == ()


def test_writes_to_values_of_the_body_become_functional() -> None:
    derivative = DERIVATIVES.ask(F.dropout, (proxy(4), 0.3), {})
    assert "torch.bernoulli" in names(derivative.steps)
    assert not any(step.answer.mutated for step in derivative.steps)
    assert sum(step.answer.random for step in derivative.steps) == 1


def test_arguments_left_to_a_default_are_filled_in() -> None:
    """0.5 is bernoulli_'s default, and bernoulli has none."""
    derivative = DERIVATIVES.ask(F.dropout, (proxy(4), 0.5), {})
    (drawn,) = [step for step in derivative.steps if step.answer.random]
    assert drawn.args[1] == 0.5


def test_what_the_backward_reads_from_inside() -> None:
    norm = DERIVATIVES.ask(F.layer_norm, (proxy(2, 4), (4,)), {})
    assert len(whole(norm).needs) == 2  # mean and reciprocal standard deviation
    outside = set(range(1)) | {ref.index for ref in norm.outputs if ref is not None}
    assert all(norm.body.regeneration(ref, outside) is None for ref in whole(norm).needs)

    linear = DERIVATIVES.ask(F.linear, (proxy(2, 3, 4), proxy(5, 4)), {})
    for ref in whole(linear).needs:
        views = linear.body.regeneration(ref, {0, 1})
        assert views is not None
        assert all(step.is_view for step in views)


def test_gradients_that_do_not_flow_are_none() -> None:
    index = TensorProxy("i", shape=(2,), dtype=torch.int64)
    derivative = DERIVATIVES.ask(torch.index_select, (proxy(3), 0, index), {})
    assert derivative.wanted == (0,)
    derivative = DERIVATIVES.ask(
        torch.where, (proxy(3, dtype=torch.bool, requires_grad=False), proxy(3), proxy(3)), {}
    )
    assert derivative.wanted == (1, 2)


def test_user_code_is_not_captured() -> None:
    with pytest.raises(NotCapturedError, match="not PyTorch's own"):
        DERIVATIVES.ask(lambda x: x, (proxy(3),), {})


def test_a_derivative_that_reads_data_is_not_captured() -> None:
    mask = proxy(3, dtype=torch.bool, requires_grad=False)
    with pytest.raises(NotCapturedError, match="masked_select"):
        DERIVATIVES.ask(torch.masked_select, (proxy(3), mask), {})


def test_whether_a_call_does_the_same_without_autograd() -> None:
    linear = DERIVATIVES.ask(F.linear, (proxy(2, 3, 4), proxy(5, 4)), {})
    assert linear.same_without_grad(frozenset())


def test_a_user_s_saved_tensor_hooks_see_no_fake() -> None:
    seen: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        whole(DERIVATIVES.ask(torch.exp, (proxy(3),), {}))
    assert not seen


def test_threads_may_ask_at_once() -> None:
    found: list[Derivative] = []

    def ask() -> None:
        for size in range(2, 12):
            derivative = DERIVATIVES.ask(F.gelu, (proxy(size),), {})
            whole(derivative)
            found.append(derivative)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    assert len(set(map(id, found))) == 10
