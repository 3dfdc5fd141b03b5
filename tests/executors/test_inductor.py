"""inductor: compiled regions give eager's values to rounding, with eager's strides and sharing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import tracemill as tm
from tests import models


def regions(trace: tm.Trace) -> list[tm.BoundSymbol]:
    return [bsym for bsym in trace.bound_symbols if bsym.sym.name.startswith("inductor")]


def test_a_region_is_one_line_with_its_operations_as_comments(golden: Any) -> None:
    jf = tm.jit(lambda x, y: (x + y).sin() * 2, executors=["inductor"])
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(jf(x, y), (x + y).sin() * 2)
    golden(str(tm.last_traces(jf)[-1]), "three_elements")


def strides(value: Any) -> list[tuple[int, ...]]:
    return [tensor.stride() for tensor in models.tensors_in(value)]


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "reductions": lambda x: (x.sum(0) + x.mean(1, keepdim=True)).var(),
    "softmax": lambda x: functional.softmax(x * 2, -1) + functional.log_softmax(x, 0),
    "norms": lambda x: functional.gelu(functional.layer_norm(x, (6,))) + x.norm(),
    "indexing": lambda x: x[torch.arange(3)] * 2 + x[:3, ::2].repeat(1, 2),
    "where": lambda x: torch.where(x > 0, x.exp(), -x).clamp(max=2),
    "cat": lambda x: torch.cat([x, x.relu()], 1).tanh() - 1,
    "casts": lambda x: (x.half() * 3).to(torch.bfloat16).sin().double() + 1,
    "strides": lambda x: (x.t() * 2 + 1, (x + 1).t().contiguous() * 3),
    "library calls": lambda x: (x @ x.t()).relu() @ x + x,
    "constants": lambda x: (x * torch.tensor([1.0, 2, 3, 4, 5, 6]) + torch.tensor(2.5)).sin(),
    "views": lambda x: ((x + 1) * 2).view(-1)[3:],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_strides_are_eagers(name: str) -> None:
    program = PROGRAMS[name]
    jf = tm.jit(program, executors=[tm.executors.get("inductor")])
    x = torch.randn(6, 6)
    for _ in range(2):
        got, want = jf(x), program(x)
        torch.testing.assert_close(got, want)
        assert strides(got) == strides(want)
    if name != "casts" or torch.__version__ >= "2.11":  # PyTorch 2.10 does not round half types
        assert regions(tm.last_traces(jf)[-1])


def test_another_layout_of_an_input_is_another_program() -> None:
    jf = tm.jit(lambda x: (x * 2 + 1).sin(), executors=["inductor"])
    for x in (torch.randn(4, 5), torch.randn(5, 4).t(), torch.randn(4, 10)[:, ::2]):
        torch.testing.assert_close(jf(x), (x * 2 + 1).sin())
    assert tm.cache_info(jf).entries == 3


def test_library_calls_alone_are_left_to_torch() -> None:
    jf = tm.jit(lambda x: x @ x @ x, executors=["inductor"])
    jf(torch.randn(3, 3))
    assert not regions(tm.last_traces(jf)[-1])


@pytest.mark.parametrize(("count", "columns", "left"), [(20, 3, 1), (8, 3, 0), (20, 8192, 0)])
def test_joins_of_many_small_tensors_are_left_to_torch(count: int, columns: int, left: int) -> None:
    def program(*tensors: torch.Tensor) -> torch.Tensor:
        return (torch.stack(tensors) * 2).sin()

    jf = tm.jit(program, executors=["inductor"])
    tensors = [torch.randn(columns) for _ in range(count)]
    torch.testing.assert_close(jf(*tensors), program(*tensors))
    trace = tm.last_traces(jf)[-1]
    assert len(regions(trace)) == 1
    assert sum(bsym.sym.name == "torch.stack" for bsym in trace.bound_symbols) == left


@pytest.mark.filterwarnings("ignore:var_mean:UserWarning")
def test_tensors_without_elements_are_left_to_torch() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.var_mean(x * 2, correction=0), (x + 1).mean()

    jf = tm.jit(program, executors=["inductor"])
    x = torch.randn(3, 0)
    assert torch.isnan(program(x)[1])
    torch.testing.assert_close(jf(x), program(x), equal_nan=True)


def test_results_have_memory_of_their_own() -> None:
    def program(x: torch.Tensor) -> Any:
        doubled = x * 2 + 1
        return doubled, doubled.clone(), doubled[0], x.clone() + 0

    jf = tm.jit(program, executors=["inductor"])
    x = torch.randn(3, 3)
    doubled, copy, row, other = jf(x)
    row.zero_()
    assert torch.equal(doubled[0], torch.zeros(3))
    torch.testing.assert_close(copy, x * 2 + 1)
    other.zero_()
    torch.testing.assert_close(jf(x)[1], x * 2 + 1)


def test_draws_stay_with_torch_and_are_eagers() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout((x * 2).sin(), 0.5).cos() + 1

    jf = tm.jit(program, executors=["inductor"])
    x = torch.randn(20)
    torch.manual_seed(0)
    want = program(x)
    torch.manual_seed(0)
    torch.testing.assert_close(jf(x), want)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_what_the_program_does_without_autocast_stays_without(cache: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        with_autocast = (x * 2).sin() @ w
        with torch.autocast("cpu", enabled=False):
            without = (x * 2).sin() @ w
        return (with_autocast.float() + 1).cos(), (without + 1).cos()

    jf = tm.jit(program, executors=["inductor"], cache=cache)
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            torch.testing.assert_close(jf(x, w), program(x, w))


def test_training_compiles_forward_and_backward() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3), nn.Softmax(-1)
    )
    jm = tm.jit(model, executors=["inductor"])
    x = torch.randn(5, 6)
    for _ in range(2):
        model.zero_grad()
        (model(x) ** 2).sum().backward()
        want = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        (jm(x) ** 2).sum().backward()
        got = [parameter.grad for parameter in model.parameters()]
        torch.testing.assert_close(got, want)
    assert regions(tm.last_traces(jm)[-1])
    assert regions(tm.last_backward_traces(jm)[-1])


def test_a_backward_that_uses_a_cotangent_twice_is_right() -> None:
    def program(x: torch.Tensor) -> Any:
        first, second = (x * 2).chunk(2, 1)
        return (first + 1).add_(second), second

    jf = tm.jit(program, executors=["inductor"])
    gradients: list[torch.Tensor | None] = []
    for run in (program, jf):
        x = torch.arange(24.0).reshape(4, 6).requires_grad_()
        loss: Any = sum(each.pow(2).sum() for each in run(x * 1))
        loss.backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
    assert regions(tm.last_backward_traces(jf)[-1])


def test_threads_compile_one_after_another() -> None:
    results: dict[int, bool] = {}
    x = torch.randn(7)

    def work(number: int) -> None:
        jf = tm.jit(lambda x: (x + number).sin() * number, executors=["inductor"])
        results[number] = torch.allclose(jf(x), (x + number).sin() * number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: True, 1: True, 2: True}


def first(output: Any) -> torch.Tensor:
    """The first tensor of a model's output, its loss or logits."""
    return next(iter(output.values()))


@pytest.mark.slow
@pytest.mark.parametrize("build", [models.llama, models.gpt2, models.bert, models.vit])
def test_models_give_eagers_values_and_gradients(build: Callable[..., models.Built]) -> None:
    model, args, kwargs = build(layers=1, hidden=32)
    jm = tm.jit(model, executors=["inductor"])
    with torch.no_grad():
        torch.testing.assert_close(
            first(jm(*args, **kwargs)),
            first(model(*args, **kwargs)),
            rtol=1e-4,
            atol=1e-5,
        )
    first(model(*args, **kwargs)).sum().backward()
    want = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    first(jm(*args, **kwargs)).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, want[name], rtol=1e-3, atol=1e-4)


def test_one_compilation_serves_many_sizes() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.sin() * 2 + b).softmax(-1)[..., : a.shape[-1] // 2] * a.shape[0] + 1

    jf = tm.jit(program, executors=["inductor"], cache="symbolic values")
    for rows, columns in ((3, 8), (5, 10), (4, 6)):
        a, b = torch.randn(rows, columns), torch.randn(columns)
        torch.testing.assert_close(jf(a, b), program(a, b))
    assert tm.cache_info(jf).entries == 1
    assert regions(tm.last_traces(jf)[-1])


@pytest.mark.parametrize("time", ["first", "second"])
def test_sizes_that_the_compiled_code_is_not_for_are_another_program(time: str) -> None:
    """Also where the code is from Inductor's cache."""

    def program(a: torch.Tensor) -> torch.Tensor:
        return (a * 2).softmax(-1) + 1

    jf = tm.jit(program, executors=["inductor"], cache="symbolic values")
    for columns in (8, 5_000, 9):
        a = torch.randn(2, columns)
        torch.testing.assert_close(jf(a), program(a))
    assert tm.cache_info(jf).entries == 2


def test_training_on_many_sizes_compiles_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Softmax(-1))
    jm = tm.jit(model, executors=["inductor"], cache="symbolic values")
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        gradients: list[list[torch.Tensor | None]] = []
        for run in (model, jm):
            model.zero_grad()
            (run(x) ** 2).sum().backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        torch.testing.assert_close(*gradients)
    assert tm.cache_info(jm).entries == 1
    assert regions(tm.last_backward_traces(jm)[-1])
