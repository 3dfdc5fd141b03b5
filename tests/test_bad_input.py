"""Mistakes: what the user is told, and that nothing is left behind."""

from __future__ import annotations

import re
import traceback
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm


def program(x: Any, y: Any = 1, /, *, k: Any = 2) -> Any:
    return x * y * k


class Net(nn.Module):
    def forward(self, x: Any, *, scale: Any) -> Any:
        return x * scale


WRONG_CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (program, (), {}),
    (program, (1, 2, 3), {}),
    (program, (1,), {"z": 1}),
    (program, (1,), {"x": 1}),
    (lambda: 0, (1,), {}),
    (Net(), (), {}),
    (Net(), (1,), {}),
    (Net(), (1, 2), {"scale": 1}),
    (Net().forward, (1, 2), {"scale": 1}),
]


@pytest.mark.parametrize("case", WRONG_CALLS)
@pytest.mark.parametrize("warm", [False, True])
def test_a_wrong_call_raises_the_error_that_python_would(case: Any, warm: bool) -> None:
    fn, args, kwargs = case
    jf = tm.jit(fn)
    if warm and not isinstance(fn, nn.Module) and fn is program:
        jf(torch.ones(2))
    with pytest.raises(TypeError) as want:
        fn(*args, **kwargs)
    with pytest.raises(TypeError) as got:
        jf(*args, **kwargs)
    assert str(got.value) == str(want.value)


def test_an_error_of_the_users_code_reaches_them_unchanged_and_without_our_frames() -> None:
    class Mine(Exception):
        pass

    raised = Mine("here")

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise raised

    jf = tm.jit(fails)
    with pytest.raises(Mine) as info:
        jf(torch.ones(2))
    assert info.value is raised
    assert info.value.__cause__ is None
    files = [frame.filename for frame in traceback.extract_tb(info.value.__traceback__)]
    own = [file for file in files if "/tracemill/" in file]
    assert len(own) <= 1
    assert files[-1] == __file__


def test_an_error_of_pytorch_is_eagers_own() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(5, 5)

    with pytest.raises(RuntimeError) as want:
        wrong(torch.ones(3, 3))
    with pytest.raises(RuntimeError) as got:
        tm.jit(wrong)(torch.ones(3, 3))
    assert str(got.value) == str(want.value)


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({"printer": "pretty"}, "'default', 'verbose', 'minimal'"),
        ({"printer": {"dce": "pretty"}}, "'default', 'verbose', 'minimal'"),
        (
            {"printer": {"optimise": "default"}},
            "'interpretation', 'proxy_renaming', 'dce'",
        ),
        ({"executors": ["gpu"]}, "'torch'"),
        (
            {"disable_passes": ["nothing"]},
            "'acquire', 'functionalise', 'proxy_renaming', 'empty_operands', 'dce'",
        ),
        ({"cache": "always"}, "'constant values', 'symbolic values', 'same input', 'no caching'"),
        ({"sharp_edges": "maybe"}, "'allow', 'warn', 'error'"),
        ({"backend": "inductor"}, "printer, executors, passes"),
    ],
)
def test_an_unknown_option_lists_the_known_ones(options: Any, known: str) -> None:
    wrong = re.search(r"'([\w]+)'", repr(options))
    assert wrong is not None
    with pytest.raises(tm.OptionError, match=re.escape(known)) as info:
        tm.jit(program, **options)
    assert isinstance(info.value, ValueError)


def test_what_is_no_callable_is_refused() -> None:
    with pytest.raises(TypeError, match="callable, not a int"):
        tm.jit(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="no jitted function"):
        tm.last_traces(program)


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that quantisation goes elsewhere
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


def test_tensors_and_modules_that_cannot_be_traced_are_refused_by_name() -> None:
    rows = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    known = quantised()
    with pytest.raises(tm.UnsupportedError, match="a nested tensor among the arguments"):
        tm.jit(lambda x: x * 2)(rows)
    with pytest.raises(tm.UnsupportedError, match="a quantised tensor among the arguments"):
        tm.jit(lambda x: x.dequantize())(known)
    with pytest.raises(tm.UnsupportedError, match=r"that is quantised cannot be traced at .*\.py:"):
        tm.jit(lambda x: x * known.dequantize())(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript goes elsewhere
        script = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(tm.UnsupportedError, match="is a TorchScript module"):
        tm.jit(script)(torch.ones(1, 2))


def test_a_write_to_a_leaf_inside_of_a_call_is_refused_and_the_leaf_left_alone() -> None:
    weight = nn.Parameter(torch.ones(3))
    with pytest.raises(tm.MutationError, match="uniform_ writes to a leaf that requires grad"):
        tm.jit(lambda x: nn.init.uniform_(weight) * x)(torch.ones(3))
    assert torch.equal(weight, torch.ones(3))


def test_after_a_failure_the_finished_traces_can_be_read() -> None:
    class Broken(tm.Pass):
        name = "broken"
        stage = "dce"

        def apply(self, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
            raise ValueError("out of order")

    jf = tm.jit(lambda x: x + 1, passes=[Broken()])
    with pytest.raises(tm.PassError, match=r"broken.*dce.*out of order"):
        jf(torch.ones(2))
    stages = [(trace.stage, trace.constructed_by) for trace in tm.last_traces(jf)]
    assert stages[0] == ("interpretation", "acquire")
    assert ("proxy_renaming", "proxy_renaming") in stages
    assert "torch.Tensor.add" in str(tm.last_traces(jf)[-1])


def test_a_failure_leaves_pytorch_as_it_was() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        torch.randn(3)
        raise ValueError("on purpose")

    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="on purpose"):
        tm.jit(fails)(torch.ones(2))
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.compiler.is_compiling()
    assert type(torch.ones(2) + 1) is torch.Tensor


def test_a_value_that_leaks_from_a_trace_says_so_when_it_is_used() -> None:
    leaked: list[torch.Tensor] = []

    def leaks(x: torch.Tensor) -> torch.Tensor:
        leaked.append(x * 2)
        return x + 1

    try:
        tm.jit(leaks)(torch.ones(2))
    except tm.TracemillError:
        return  # refused by name, which is better still
    for value in leaked:
        if type(value) is not torch.Tensor:
            with pytest.raises(tm.LeakedValueError, match="finished trace"):
                value.add(1)
