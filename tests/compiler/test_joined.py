"""Joining: one function that does what the texts do one after the other."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import tracemill as tm
from tracemill.compiler.guards import Mismatch
from tracemill.compiler.joined import Unjoinable, joined
from tracemill.printers.base import Code

X = torch.arange(3.0)

PROLOGUE = """\
import torch
from tracemill.compiler.guards import mismatch

def prologue(x, y=2):
  type(x) is torch.Tensor or mismatch("x")
  z = x * y
  return (z, x)
"""
COMPUTATION = """\
import torch

@torch.no_grad()
def computation(t0, x):
  t1 = torch.Tensor.add(t0, x)  # t1: "cpu f32[3]"
  t2 = torch.Tensor.mul(t1, 2)
  del t1
  return t2
"""
WRITING = """\
import torch

def computation(z, x):
  t0 = torch.add(z, 1)
  return ([t0], (x, t0))
"""
EPILOGUE = """\
import torch

def epilogue(x, value):
  x.copy_(value)
  return None
"""


def code(text: str, **bound: Any) -> Code:
    return Code(text, bound)


def names_in(call: Callable[..., Any]) -> list[str]:
    return list(call.__code__.co_names)


def test_the_texts_run_as_one_function() -> None:
    call = joined(code(PROLOGUE), [code(COMPUTATION)], None, ("x", "y"))
    assert torch.equal(call(X), (X * 2 + X) * 2)
    assert torch.equal(call(X, y=3), (X * 3 + X) * 2)


def test_a_check_that_fails_and_a_line_that_fails_are_mismatches() -> None:
    call = joined(code(PROLOGUE), [code(COMPUTATION)], None, ("x", "y"))
    with pytest.raises(Mismatch, match=r"^x$"):
        call(1)
    with pytest.raises(Mismatch, match="unsupported operand") as failed:
        call(X, y=None)
    assert isinstance(failed.value.__cause__, TypeError)


def test_an_error_of_the_computation_is_its_own_and_shows_the_line_that_people_read() -> None:
    call = joined(
        code(PROLOGUE), [code(COMPUTATION.replace("mul(t1, 2)", "view(t1, 7)"))], None, ("x", "y")
    )
    with pytest.raises(RuntimeError, match="invalid for input of size 3") as failed:
        call(X)
    assert traceback.extract_tb(failed.tb)[-1].line == "t2 = torch.Tensor.view(t1, 7)"


def test_what_the_text_made_is_called_by_its_methods() -> None:
    call = joined(code(PROLOGUE), [code(COMPUTATION)], None, ("x", "y"))
    assert names_in(call)[-2:] == ["add", "mul"]
    kept = joined(
        code(PROLOGUE), [code(COMPUTATION.replace("(t0, x)", "(x, x)"))], None, ("x", "y")
    )
    assert names_in(kept).count("Tensor") == 1  # x is the caller's, and may have an attribute `add`
    other = COMPUTATION.replace("torch.Tensor.mul(t1, 2)", "torch.Tensor.grad_fn.__get__(t1)")
    assert joined(code(PROLOGUE), [code(other)], None, ("x", "y"))(X) is None


def test_the_epilogue_writes_before_the_result_is_rebuilt() -> None:
    x = torch.ones(3)
    call = joined(
        code(PROLOGUE.replace("(z, x)", "(z, x,)")),
        [code(WRITING), code(EPILOGUE)],
        lambda result: (result, x.clone()),
        ("x", "y"),
    )
    (made,), seen = call(x)
    assert torch.equal(made, torch.full((3,), 3.0))
    assert torch.equal(seen, made)


def test_an_epilogue_may_give_the_result() -> None:
    views = EPILOGUE.replace("return None", "return [value[:2], value]")
    call = joined(code(PROLOGUE), [code(WRITING), code(views)], None, ("x", "y"))
    short, whole = call(torch.ones(3))
    assert short._base is whole


def test_inputs_are_handed_over_all_at_once() -> None:
    swapped = COMPUTATION.replace("computation(t0, x)", "computation(x, z)").replace(
        "t0, x)", "x, z)"
    )
    call = joined(code(PROLOGUE), [code(swapped.replace("add", "sub"))], None, ("x", "y"))
    assert torch.equal(call(X), (X * 2 - X) * 2)


def test_a_parameter_keeps_the_name_that_callers_use() -> None:
    call = joined(code(PROLOGUE), [code(COMPUTATION)], None, ("input", "y"))
    assert torch.equal(call(input=X), (X * 2 + X) * 2)
    for taken in ("type", "z", "mismatch"):
        with pytest.raises(Unjoinable):
            joined(code(PROLOGUE), [code(COMPUTATION)], None, (taken, "y"))


def test_a_function_may_stand_in_for_the_texts() -> None:
    call = joined(code(PROLOGUE), lambda z, x: z - x, None, ("x", "y"))
    assert torch.equal(call(X), X)


def test_what_is_only_handed_on_is_handed_on_together() -> None:
    names = [f"w{index}" for index in range(20)]
    together = ", ".join(names)
    text = (
        "import torch\n\ndef prologue(x, found):\n"
        f"  {together} = found\n"
        "  w0 == 0\n"
        f"  max(x, {together}) == 19\n"
        f"  return (x, {together})\n"
    )
    call = joined(code(text), lambda *values: values, None, ("x", "found"))
    assert call(1, tuple(range(20))) == (1, *range(20))
    assert "w0" in call.__code__.co_varnames  # a line of its own looks at it
    assert "w1" not in call.__code__.co_varnames
    with pytest.raises(Mismatch, match="not enough values"):
        call(1, ())


@pytest.mark.parametrize(
    ("changed", "bound"),
    [
        (COMPUTATION.replace("mul(t1, 2)", "mul(t1, y)"), {"y": 2}),  # a variable of the prologue
        (COMPUTATION.replace("torch.Tensor.mul", "mismatch"), {"mismatch": torch.mul}),
        (COMPUTATION.replace("import torch", "from math import sin as mismatch"), {}),
        (COMPUTATION.replace("@torch.no_grad()", "@torch.inference_mode()"), {}),
        (COMPUTATION.replace("del t1", "if t1 is None: return x"), {}),
        (COMPUTATION.replace("import torch", "import torch\nfactor = 2"), {}),
        (COMPUTATION.replace("t0, x", "t0"), {}),
        (COMPUTATION.replace("t1", "str"), {}),
    ],
)
def test_texts_that_do_not_go_together_are_refused(changed: str, bound: dict[str, Any]) -> None:
    with pytest.raises(Unjoinable):
        joined(code(PROLOGUE), [code(changed, **bound)], None, ("x", "y"))


# Calls of jitted functions


class Counting(tm.Printer):
    """A printer whose text says when it runs."""

    name: ClassVar[str] = "counting"
    ran: ClassVar[list[str]] = []

    def code(self, trace: tm.Trace) -> Code:
        code = super().code(trace)
        head, body = code.source.split(":\n", 1)
        text = f'{head}:\n  ran.append("{trace.name}")\n{body}'
        return Code(text, {**code.bound, "ran": self.ran}, code.lines)


def test_every_call_runs_the_text_of_the_printer() -> None:
    fast = tm.jit(lambda x: x.sin() * 2, printer=Counting())
    for _ in range(4):
        Counting.ran.clear()
        assert torch.equal(fast(X), X.sin() * 2)
        assert Counting.ran == ["prologue", "computation"]


def writes(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(y)
    return {"sum": x * 1, "pair": [y, x]}


def with_defaults(x: torch.Tensor, *more: Any, input: float = 2.0, **named: Any) -> Any:
    return x * input + sum(more) + sum(named.values())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, input: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.fc(input) * scale


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (writes, (X, X + 1), {}),
    (with_defaults, (X,), {}),
    (with_defaults, (X, X, 3), {"input": 3.0, "other": X}),
    (Net(), (X,), {}),
    (Net(), (), {"input": X, "scale": 2.0}),
    (lambda x: x + 1 if x.sum() > 0 else x - 1, (X,), {}),
    (lambda x, y, z: torch.stack([x, y.sum() + x, z["a"]]), (X, X.long(), {"a": X}), {}),
]


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("grad", [False, True])
def test_the_first_call_and_later_ones_are_eagers(case: Any, grad: bool) -> None:
    fn, args, kwargs = case
    fast = tm.jit(fn)
    with torch.set_grad_enabled(grad):
        for _ in range(4):
            given = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
            wanted = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
            got, want = fast(*given, **kwargs), fn(*wanted, **kwargs)
            torch.testing.assert_close((got, given), (want, wanted), rtol=0, atol=0)
    assert tm.cache_info(fast) == (3, 1, 1)


def test_a_wrong_call_after_right_ones() -> None:
    def program(x: Any, y: Any) -> Any:
        return x + y

    cases: list[Any] = [(program, (X,)), (Net(), (X, 1.0, 2)), (with_defaults, ())]
    for fn, args in cases:
        fast = tm.jit(fn)
        for _ in range(3):
            fast(*(X, X)[: 2 if fn is program else 1])
        with pytest.raises(TypeError) as want:
            fn(*args)
        with pytest.raises(TypeError) as got:
            fast(*args)
        assert str(got.value) == str(want.value)
        assert tm.cache_info(fast) == (2, 1, 1)


def test_an_error_of_a_later_call_has_no_other_error_as_its_context() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2:
            raise KeyError("no matrices")
        return x + 1

    fast = tm.jit(program)
    for _ in range(3):
        fast(X)
    with pytest.raises(KeyError) as failed:
        fast(X[None])
    assert failed.value.__context__ is None
