"""The oracle: PyTorch's answers, asked once per signature, told apart where Python's == does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm
from tracemill.compiler.answer import NewTensor, SameTensor
from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.oracle import Oracle
from tracemill.compiler.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from tracemill.compiler.values import map_leaves


def proxy(*shape: int, **settings: Any) -> tm.TensorProxy:
    return tm.TensorProxy("x", shape=shape, **settings)


def ask(oracle: Oracle, fn: Any, *args: Any, **kwargs: Any) -> Any:
    answer, _ = oracle.ask(fn, args, kwargs)
    return answer


def test_it_is_asked_once_per_signature() -> None:
    oracle = Oracle()
    first = ask(oracle, torch.add, proxy(2, 3), proxy(3))
    assert ask(oracle, torch.add, proxy(2, 3), proxy(3)) is first
    assert oracle.asked == 1
    assert first.output.meta is TensorMeta((2, 3))


DIFFERENT: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
    ((1,), (True,)),
    ((1,), (1.0,)),
    ((0.0,), (-0.0,)),
    (((1, 2),), ([1, 2],)),
    ((slice(0, 1),), (slice(False, 1),)),
    ((proxy(3),), (proxy(3, dtype=torch.float64),)),
    ((proxy(2, 3),), (proxy(2, 3, stride=(1, 2)),)),
    (({"a": 1, "b": 2},), ({"b": 2, "a": 1},)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_only_compares_equal_is_told_apart(one: Any, other: Any) -> None:
    oracle = Oracle()
    seen: list[Any] = []

    def anything(*args: Any) -> torch.Tensor:
        seen.append(args)
        return torch.ones(2)

    local: dict[Any, Any] = {}
    for args in (one, other, one):
        oracle.ask(anything, args, {}, local)
    assert len(seen) == 2


def test_one_tensor_given_twice_is_another_program_than_two() -> None:
    oracle = Oracle()
    q, k = proxy(2, 4), proxy(2, 4)
    same, different = oracle.ask(torch.add, (q, q), {})[1], oracle.ask(torch.add, (q, k), {})[1]
    assert (len(same), len(different)) == (1, 2)
    assert oracle.asked == 2


def test_the_answers_parts() -> None:
    oracle = Oracle()
    view = ask(oracle, torch.Tensor.view, proxy(2, 3), 6)
    assert view.output.storage == ("argument", 0)
    column = ask(oracle, torch.Tensor.__getitem__, proxy(2, 3), (slice(None), 1))
    assert (column.output.storage, column.output.offset) == (("argument", 0), 1)
    in_place = ask(oracle, torch.Tensor.add_, proxy(3), 1)
    assert isinstance(in_place.output, SameTensor)
    assert in_place.mutated == (0,)
    assert ask(oracle, torch.Tensor.t_, proxy(2, 3)).changed == {0: TensorMeta((3, 2), (1, 3))}
    halves = ask(oracle, torch.chunk, proxy(4), 2).output
    assert all(isinstance(half, NewTensor) for half in halves)
    assert ask(oracle, torch.rand, 3).random
    assert not ask(oracle, torch.sin, proxy(3)).random
    assert ask(oracle, torch.Tensor.dim, proxy(3)).is_query
    softplus = torch.ops.aten.softplus.default
    assert [operation.fn for operation in ask(oracle, F.softplus, proxy(3)).body] == [softplus]


def test_settings_of_pytorch_are_part_of_the_question() -> None:
    oracle = Oracle()
    linear = (F.linear, proxy(2, 3), proxy(4, 3))
    plain = ask(oracle, *linear)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = ask(oracle, *linear)
    assert (plain.output.meta.dtype, cast.output.meta.dtype) == (torch.float32, torch.bfloat16)
    leaf = proxy(3, requires_grad=True)
    assert ask(oracle, torch.sin, leaf).output.meta.requires_grad
    with torch.no_grad():
        assert not ask(oracle, torch.sin, leaf).output.meta.requires_grad


def test_batch_norm_says_that_it_writes_its_statistics() -> None:
    stats = [tm.TensorProxy("s", shape=(3,)) for _ in range(2)]
    answer = ask(Oracle(), F.batch_norm, proxy(2, 3, 4), *stats, training=True)
    assert answer.mutated == (1, 2)


def test_an_error_is_the_one_that_eager_raises_and_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(RuntimeError) as want:
        torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(RuntimeError) as got:
        ask(Oracle(), torch.matmul, proxy(2, 3), proxy(2, 3))
    assert str(got.value) == str(want.value)
    assert not caplog.records


def test_what_fakes_cannot_answer_is_asked_with_real_zeros() -> None:
    answer = ask(Oracle(), torch.tensor, [proxy(), proxy()])
    assert answer.output.meta is TensorMeta((2,))


CALLS: list[tuple[Any, ...]] = [
    (torch.Tensor.add, proxy(3, 4), proxy(4)),
    (torch.Tensor.add_, proxy(3, 4), 1),
    (torch.Tensor.t_, proxy(3, 4)),
    (torch.Tensor.expand, proxy(3, 1), 3, 4),
    (torch.Tensor.contiguous, proxy(3, 4)),
    (torch.Tensor.contiguous, proxy(3, 4, stride=(1, 3))),
    (torch.Tensor.reshape, proxy(3, 4, stride=(1, 3)), 12),
    (torch.Tensor.__getitem__, proxy(4, 4), (slice(1, 3), 2)),
    (torch.Tensor.__getitem__, proxy(4), (proxy(2, dtype=torch.int64),)),
    (torch.chunk, proxy(4), 2),
    (torch.diff, proxy(3, 4)),
    (torch.sort, proxy(3, 4)),
    (torch.linalg.qr, proxy(3, 4)),
    (torch.linalg.inv, proxy(3, 3)),  # zeros have none
    (torch.arange, 5),
    (torch.zeros, (2, 3)),
    (F.linear, proxy(2, 3), proxy(4, 3)),
    (F.dropout, proxy(3, 4), 0.5, True),
    (F.conv2d, proxy(1, 3, 8, 8), proxy(4, 3, 3, 3)),
    (F.scaled_dot_product_attention, *(proxy(1, 2, 3, 4) for _ in range(3))),
    (F.gelu, proxy(3, 4, requires_grad=True)),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0].__name__)
def test_zeros_and_fakes_tell_the_same(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ask(Oracle(), *call)
    monkeypatch.setattr("tracemill.compiler.oracle.FEW_ELEMENTS", -1)
    assert told(few) == told(ask(Oracle(), *call))


def told(answer: Any) -> Any:
    def leaf(spec: Any) -> Any:
        return [getattr(spec, name) for name in spec.__slots__]

    body = [operation.fn for operation in answer.body]
    output = map_leaves(leaf, answer.output)
    return output, answer.mutated, answer.changed, answer.random, body


MASK = proxy(4, dtype=torch.bool)
OF_DATA: list[tuple[Any, ...]] = [
    (torch.Tensor.__getitem__, proxy(4), (MASK,)),
    (torch.Tensor.item, proxy()),
    (torch.nonzero, proxy(4)),
    (torch.unique, proxy(4)),
    (torch.equal, proxy(4), proxy(4)),
    (torch.masked_select, proxy(4), MASK),
    (torch.bincount, proxy(4, dtype=torch.int64)),
    (torch.repeat_interleave, proxy(4), proxy(4, dtype=torch.int64)),
]


@pytest.mark.parametrize("call", OF_DATA, ids=lambda call: call[0].__name__)
def test_zeros_tell_nothing_where_the_answer_depends_on_data(call: Any) -> None:
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        ask(Oracle(), *call)


def test_asking_leaves_no_trace_in_the_random_state() -> None:
    before = torch.get_rng_state()
    ask(Oracle(), F.dropout, proxy(100), 0.5, True)
    ask(Oracle(), torch.randn, 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_subsymbols_are_the_aten_operations_on_named_values() -> None:
    x: Any = proxy(2, 3)
    trace = tm.Trace("computation", [x])
    with tm.tracectx(trace):
        trace.output = torch.diff(x, dim=-1)
    (line,) = trace.bound_symbols
    names = [inner.sym.name for inner in line.subsymbols]
    assert names == ["torch.ops.aten.slice.Tensor"] * 2 + ["torch.ops.aten.sub.Tensor"]
    assert list(line.subsymbols[-1].outputs) == [trace.output]
    assert [out.name for inner in line.subsymbols for out in inner.outputs] == [
        "t0_0",
        "t0_1",
        "t0",
    ]
