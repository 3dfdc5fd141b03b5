"""The interpreter: every torch call of a program becomes a line; what a stand-in must not answer is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracemill as tm
from tracemill.compiler.names import Names
from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.location import Locator
from tracemill.passes.interpretation.session import interpreting
from tracemill.passes.interpretation.stand_in import TracedTensor

X = torch.arange(6.0).reshape(2, 3)


def lines(fn: Callable[..., Any], *args: Any) -> list[str]:
    """The names of the calls that a program is recorded as."""
    return [bsym.sym.name for bsym in tm.trace(fn, *args).bound_symbols]


@pytest.fixture
def interpreter() -> Interpreter:
    return Interpreter(Locator(None), Names())


def test_a_call_is_a_line_and_returns_a_stand_in(interpreter: Interpreter) -> None:
    x = interpreter.input(X)
    with interpreting(interpreter):
        y = torch.sin(x)

    assert type(y) is TracedTensor
    assert [bsym.sym.name for bsym in interpreter.bound_symbols] == ["torch.sin"]
    assert interpreter.bound_symbols[0].output is y.proxy
    assert interpreter.bound_symbols[0].source is not None
    assert interpreter.bound_symbols[0].source.text == "y = torch.sin(x)"


def test_a_real_tensor_has_one_stand_in(interpreter: Interpreter) -> None:
    with interpreting(interpreter):
        torch.add(X, X)

    (line,) = interpreter.bound_symbols
    assert line.args[0] is line.args[1]
    assert [tensor for _, tensor in interpreter.lifted.values()] == [X]


def test_metadata_is_no_line() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        assert x.shape == (2, 3)
        assert x.dim() == x.ndim == 2
        assert x.dtype is torch.float32
        assert x.device.type == "cpu"
        assert x.is_contiguous()
        assert x.is_leaf
        assert not x.is_complex()
        return x + len(x)

    assert lines(fn, X) == ["torch.Tensor.add"]


def test_what_returns_its_argument_returns_the_same_object() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        assert x.contiguous() is x
        assert x.to(torch.float32) is x
        return x * 2

    assert lines(fn, X)[-1] == "torch.Tensor.mul"


def test_calls_that_pass_the_function_mode_are_lines_of_aten() -> None:
    assert lines(lambda x: torch.vmap(torch.sin)(x), X) == ["torch.ops.aten.sin.default"]


WEIGHT = torch.ones(3, requires_grad=True)

REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "the address of a tensor's data": lambda x: x.data_ptr(),
    "a tensor's storage": lambda x: x.untyped_storage(),
    "a tensor's version counter": lambda x: x._version,
    "a view's base": lambda x: x._base,
    "Tensor.apply_": lambda x: x.apply_(abs),
    "grad_fn": lambda x: (x * WEIGHT).grad_fn,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_stand_in_would_answer_wrongly_is_refused_by_name(name: str) -> None:
    with pytest.raises(tm.UnsupportedError, match=name):
        tm.jit(REFUSED[name])(X)


def test_a_tensor_subclass_is_refused_by_name() -> None:
    class Mine(torch.Tensor):
        pass

    with pytest.raises(tm.UnsupportedError, match="class Mine"):
        tm.jit(lambda x: x + 1)(X.as_subclass(Mine))


def test_eagers_own_error_is_raised_where_eager_raises_it() -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        tm.jit(lambda x: x + torch.ones(5))(X)


def test_everything_is_as_before_after_an_error() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        tm.jit(fn)(X)
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32
    assert not torch.compiler.is_compiling()
    assert type(X + 1) is torch.Tensor


def test_a_default_device_is_written_out() -> None:
    with torch.device("meta"):
        trace = tm.trace(lambda: torch.ones(2))

    assert trace.bound_symbols[0].kwargs == {"device": torch.device("meta")}
