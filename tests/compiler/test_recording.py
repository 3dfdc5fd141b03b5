"""Writing traces by hand: inside `tracectx`, one writes PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm
from tracemill.passes.verify import verify


def empty(*shapes: tuple[int, ...], **options: Any) -> tm.Trace:
    """A trace with arguments x, y, ... of these shapes."""
    return tm.Trace(
        "computation",
        [
            tm.TensorProxy(name, shape=shape, **options)
            for name, shape in zip("xyz", shapes, strict=False)
        ],
    )


def record(fn: Callable[..., Any], *shapes: tuple[int, ...], **options: Any) -> tm.Trace:
    """A trace of what `fn` does on proxies."""
    trace = empty(*shapes, **options)
    with tm.tracectx(trace):
        trace.output = fn(*trace.args)
    verify(trace)
    return trace


PROGRAMS: dict[str, Callable[..., Any]] = {
    "operators": lambda x, y: (x + y) * 2 - x / (y.abs() + 1) ** 2,
    "reflected": lambda x, y: 2 - (1 / (x.abs() + 1)) + 2 ** (-y),
    "comparisons": lambda x, y: torch.where((x > 0) & ~(y <= 0), x, y),
    "integers": lambda x, y: ((x * 4).int() // 2 % 3) | 1,
    "functions": lambda x, y: F.softmax(torch.cat([x, y], 1), dim=-1),
    "methods": lambda x, y: x.mul(y).sum(0, keepdim=True).relu().clamp(min=0.5),
    "matmul": lambda x, y: x @ y.T,
    "properties": lambda x, y: x.mT.reshape(*x.shape) / x.ndim + y.size(0) + len(y) + y.numel(),
    "indices": lambda x, y: (x[0, ..., None], x[:, ::2], y[y.new_zeros(2).long()]),
    "several outputs": lambda x, y: (*torch.max(x, 1), *y.unbind(0), x.split(1)),
    "constructors": lambda x, y: x + torch.ones(y.shape[1]) * torch.arange(4) + torch.tensor(2.0),
    "structures": lambda x, y: {"a": [x + 1, (y, 2.5)], "b": None},
    "in place": lambda x, y: (x + 1).add_(y).mul_(2),
    "assignment": lambda x, y: assigned(x.clone(), y),
}


def assigned(x: Any, y: Any) -> Any:
    x[0] = y[1]
    return x


def same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0, check_stride=True)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_recorded_is_what_eager_does(program: Callable[..., Any]) -> None:
    trace = record(program, (3, 4), (3, 4))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    same(trace(x, y), program(x, y))


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_trace_can_be_jitted_again(program: Callable[..., Any]) -> None:
    trace = record(program, (3, 4), (3, 4))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    fast = tm.jit(trace)
    same(fast(x, y), program(x, y))
    same(fast(y, x), program(y, x))
    assert tm.cache_info(fast) == (1, 1, 1)
    assert [proxy.name for proxy in tm.last_prologue_traces(fast)[-1].args] == ["x", "y"]


def test_a_traced_program_can_be_called_and_jitted_again() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU()).eval()
    x = torch.randn(2, 4)
    with torch.no_grad():
        trace = tm.trace(model, x)
        weights = [dict(model.named_parameters())[name] for name in ("0.weight", "0.bias")]
        same(trace(x, *weights), model(x))
        same(tm.jit(trace)(x, *weights), model(x))


def test_the_text_reads_as_it_was_written(golden: Callable[[str, str], None]) -> None:
    def program(x: Any, y: Any) -> Any:
        scores = torch.softmax(x @ y.mT / 2, dim=-1)
        return scores[..., :2] + torch.zeros(2)

    golden(record(program, (3, 4), (5, 4)).text("minimal"), "softmax")


# Names


def test_a_name_that_is_taken_gets_a_suffix_of_that_name() -> None:
    trace = empty((3,))
    with tm.tracectx(trace):
        made = [tm.TensorProxy("test", shape=(2,)) for _ in range(3)]
        assert [proxy.name for proxy in made] == ["test", "test_1", "test_2"]
        assert tm.TensorProxy("x", shape=(2,)).name == "x_1"
        assert tm.TensorProxy("torch", shape=(2,)).name == "torch_"
        assert tm.TensorProxy("layers.0.weight", shape=(2,)).name == "layers_0_weight"


def test_new_names_avoid_lines_that_come_from_elsewhere() -> None:
    trace = empty((3,))
    (x,) = trace.args
    with tm.tracectx(trace):
        given: Any = tm.TensorProxy(shape=(3,)).renamed("t1")
        trace.record(tm.symbol(torch.sin).bind(x, output=given))
        trace.output = [torch.cos(given), torch.tan(given)]
    verify(trace)
    assert len(trace.names) == 4


def test_a_rewritten_trace_keeps_the_names_of_the_lines_it_takes_over() -> None:
    old = record(lambda x: torch.cos(torch.sin(torch.square(x))), (3,))
    new = old.replace(bound_symbols=[])
    with tm.tracectx(new):
        x: Any = new.args[0]
        mapping: dict[Any, Any] = {}
        for bsym in old.bound_symbols:
            if bsym.sym is tm.symbol(torch.square):
                mapping[bsym.output] = x * x
            else:
                new.record(bsym.substitute(mapping))
    verify(new)
    assert new.text("minimal").splitlines()[3:] == [
        "  t3 = torch.Tensor.mul(x, x)",
        "  t1 = torch.sin(t3)",
        "  t2 = torch.cos(t1)",
        "  return t2",
    ]
    assert len(old.bound_symbols) == 3


def test_a_trace_s_names_are_those_in_its_text() -> None:
    trace = empty((3,))
    x: Any = trace.args[0]
    with tm.tracectx(trace):
        with trace.scope():
            torch.sin(x)
        trace.output = torch.cos(x)
    assert trace.names == {"x", next(trace.outputs).name}
    assert all(name in trace.text() for name in trace.names)


# Scopes, symbols and bound symbols


def test_a_scope_collects_lines_to_be_put_anywhere() -> None:
    trace = empty((3,))
    x: Any = trace.args[0]
    with tm.tracectx(trace):
        first = torch.sin(x)
        with trace.scope() as lines:
            inner = first + 1
        assert [bsym.sym.name for bsym in lines] == ["torch.Tensor.add"]
        assert len(trace.bound_symbols) == 1
        trace.push_scope(pushed := [])
        torch.cos(inner)
        assert trace.pop_scope() is pushed
        assert len(pushed) == 1
        trace.bound_symbols.extend([*lines, *pushed])
        trace.output = pushed[0].output
    verify(trace)
    same(trace(torch.ones(3)), torch.cos(torch.sin(torch.ones(3)) + 1))
    with pytest.raises(RuntimeError, match="no scope to pop"):
        trace.pop_scope()


def test_calling_a_symbol_records_and_binding_it_does_not() -> None:
    trace = empty((3,))
    (x,) = trace.args
    sin = tm.symbol(torch.sin)
    assert sin is tm.symbol(torch.sin)
    assert sin.name == "torch.sin"
    with tm.tracectx(trace):
        made = sin(x)
        assert len(trace.bound_symbols) == 1
        bound = tm.symbol(torch.cos).bind(x, output=made)
        assert len(trace.bound_symbols) == 1
    assert (bound.args, bound.output) == ((x,), made)
    with pytest.raises(RuntimeError, match="outside of a trace"):
        sin(x)


def test_a_derived_line_is_another_call() -> None:
    trace = record(lambda x: torch.square(x), (3,))
    (line,) = trace.bound_symbols
    (x,) = trace.args
    other = line.from_bsym(sym=tm.symbol(torch.mul), args=(x, x))
    assert line.sym.name == "torch.square"
    assert [inner.sym.name for inner in other.subsymbols] == ["torch.ops.aten.mul.Tensor"]
    assert other.output is line.output
    random = line.from_bsym(sym=tm.symbol(torch.bernoulli))
    assert random.is_random
    assert not line.is_random
    written = line.from_bsym(sym=tm.symbol(torch.Tensor.sin_))
    assert written.mutates
    with pytest.raises(TypeError, match="has no colour; it has"):
        line.from_bsym(colour="red")


def test_an_operation_of_one_s_own() -> None:
    scale = tm.Symbol("mine.scale", impl=lambda x, by: x * by)
    trace = record(lambda x: scale(x, by=3.0) + 1, (3,))
    x = torch.randn(3)
    same(trace(x), x * 3.0 + 1)
    assert "mine_scale(x, by=3.0)" in trace.text("minimal")


def test_an_operation_known_by_its_metadata_alone() -> None:
    halves = tm.Symbol("mine.halves", meta=lambda x: (x[:1], torch.empty(2, dtype=torch.int64)))
    trace = record(lambda x: halves(x), (4,))
    first, second = trace.output
    assert (first.type_string, second.type_string) == ("cpu f32[1]", "cpu i64[2]")
    assert len(trace.bound_symbols) == 1
    with pytest.raises(tm.UnsupportedError, match=r"mine\.halves has no implementation"):
        trace(torch.ones(4))


def test_gradients_are_metadata_too() -> None:
    trace = record(lambda x: (torch.sin(x), x.detach()), (3,), requires_grad=True)
    assert [proxy.requires_grad for proxy in trace.output] == [True, False]
    with torch.no_grad():
        trace = record(lambda x: torch.sin(x), (3,), requires_grad=True)
    assert not trace.output.requires_grad


# Mistakes


def test_outside_of_a_trace_proxies_refuse() -> None:
    x: Any = empty((3,)).args[0]
    for use in (lambda: torch.sin(x), lambda: x + 1, lambda: x.sum()):
        with pytest.raises(
            RuntimeError, match=r"outside of a trace; use `with tracemill\.tracectx"
        ):
            use()


def test_a_wrong_call_raises_where_it_stands_and_leaves_no_line() -> None:
    trace = empty((3, 4), (3, 4))
    args: Any = trace.args
    x, y = args
    with tm.tracectx(trace), pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(x, y)
    assert trace.bound_symbols == []


def test_data_is_refused_by_name() -> None:
    trace = empty((3,))
    x: Any = trace.args[0]
    with tm.tracectx(trace), pytest.raises(tm.DataDependentError, match="needs the data"):
        bool(x.sum() > 0)
