"""The sample texts of the design, and that each printer's text parses and runs to the same result."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracemill as tm
from tracemill.compiler import prims
from tracemill.compiler.symbol import Source

MINIMAL = """\
import torch

def computation(x, y):
  t0 = torch.add(x, y)
  return t0
"""

DEFAULT = """\
# executor_fusion: constructed by delete_last_used
import torch

@torch.no_grad()
def computation(x, y):
  # x: "cpu f32[3]"
  # y: "cpu f32[3]"
  t0 = torch.add(x, y)  # t0: "cpu f32[3]"
  return t0
"""

VERBOSE_BACKWARD = """\
import torch

@torch.no_grad()
def backward(saved_for_backward, cotangents):
  # saved_for_backward: "Collection"
  # cotangents: "Collection"
  C0, C1, = saved_for_backward
  # C0: "Collection"
  # C1: "Collection"
  t10, = cotangents
  # t10: "cpu f32[3]"
  t0, t3, = C0
  # t0: "cpu f32[3]"
  # t3: "cpu f32[3]"
  # C1 (empty sequence)

  # model.py:7  y = x / (x.norm() + self.eps)
  t24 = torch.div(t10, t3)  # t24: "cpu f32[3]"
    # t24 = torch.ops.aten.div.Tensor(t10, t3)  # t24: "cpu f32[3]"
  return (t24,)
"""


def add_trace() -> tm.Trace:
    with torch.no_grad():
        jf = tm.jit(lambda x, y: torch.add(x, y))
        jf(torch.ones(3), torch.ones(3))
    return tm.last_traces(jf)[-1]


def test_minimal_prints_the_program_alone() -> None:
    assert add_trace().text("minimal") == MINIMAL


def test_default_adds_where_it_comes_from_and_types() -> None:
    assert add_trace().text() == str(add_trace()) == DEFAULT


def test_verbose_types_every_unpacked_name_and_shows_lines_and_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Source, "text", property(lambda self: "y = x / (x.norm() + self.eps)"))
    assert backward_trace().text("verbose") == VERBOSE_BACKWARD


def backward_trace() -> tm.Trace:
    saved, cotangents = tm.CollectionProxy("saved_for_backward"), tm.CollectionProxy("cotangents")
    c0, c1 = tm.CollectionProxy("C0"), tm.CollectionProxy("C1")
    t0, t3, t10 = (tm.TensorProxy(name, shape=(3,)) for name in ("t0", "t3", "t10"))
    t24 = tm.TensorProxy("t24", shape=(3,))
    unpack = prims.UNPACK_SEQUENCE
    inner = tm.symbol(torch.ops.aten.div.Tensor).bind(t10, t3, output=t24)
    div = tm.symbol(torch.div).bind(t10, t3, output=t24)
    lines = [
        unpack.bind(saved, output=(c0, c1)),
        unpack.bind(cotangents, output=(t10,)),
        unpack.bind(c0, output=(t0, t3)),
        unpack.bind(c1, output=()),
        div.from_bsym(subsymbols=[inner], source=Source("/home/someone/model.py", 7)),
    ]
    return tm.Trace("backward", [saved, cotangents], lines, (t24,))


def test_a_backward_text_runs() -> None:
    for printer in ("minimal", "default", "verbose"):
        backward = backward_trace().callable(printer)
        (grad,) = backward(((torch.ones(3), torch.full((3,), 2.0)), ()), (torch.ones(3),))
        assert grad.tolist() == [0.5, 0.5, 0.5]


class Mode:
    pass


VALUES: list[Any] = [
    *(1, True, None, -0.0, 1e-30, float("inf"), float("-inf"), 2 + 3j, complex("inf"), ...),
    *('it\'s "quoted"', "it's", "back\\slash\n", b"bytes", torch.float16, torch.strided),
    *(torch.channels_last, torch.device("cuda", 1), torch.Size([1, 2]), slice(None, 3, None)),
    *((), (1,), [1, (2, [3])], {"a": 1, 2: "b"}, {1, 2}, frozenset({1}), set(), range(3)),
    *(torch.sin, torch.Tensor.add, torch.ops.aten.mm.default, torch.nn.functional.linear, int),
    *(torch.Tensor, torch.nn.Linear, Mode, torch.special.expit, torch.linalg.norm),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_prints_as_an_expression_that_gives_it_back(value: Any) -> None:
    trace = tm.Trace("values", [], [], [value])
    function: Callable[..., Any] = trace.callable("minimal")
    (got,) = function()
    assert repr(got) == repr(value)
    assert type(got) is type(value)


def test_nan_and_inf_are_never_bare_names() -> None:
    text = tm.Trace("values", [], [], (float("nan"), float("inf"))).text("minimal")
    assert text.splitlines()[-1] == '  return (float("nan"), float("inf"))'


def test_an_object_without_a_literal_form_is_bound_and_explained() -> None:
    mode = Mode()
    text = tm.Trace("values", [], [], [mode, mode]).text()
    assert "return [mode, mode]" in text
    assert "# mode: a " in text
    assert "0x" not in text


def test_long_lists_break_one_per_line_and_still_parse() -> None:
    args: Any = [tm.TensorProxy(f"a_rather_long_name_{i}", shape=(2,)) for i in range(12)]
    trace = tm.Trace("computation", args)
    with tm.tracectx(trace):
        trace.output = (torch.cat(args), *args)
    for printer in tm.printers.names():
        text = tm.printers.get(printer).code(trace).source
        ast.parse(text)
        if printer != "script":  # its main makes and prints every input on a line
            assert max(map(len, text.splitlines())) <= 120


def test_text_is_deterministic() -> None:
    assert [add_trace().text(name) for name in ("default", "verbose")] == [
        add_trace().text(name) for name in ("default", "verbose")
    ]
