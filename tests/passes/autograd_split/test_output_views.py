"""Output views: what a program returns may be written to as in eager, and gradients afterwards are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tracemill as tm

Golden = Callable[[str, str], None]


def numbers(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def two(x: Tensor) -> Any:
    made = x * 2
    return made, made.t()


def rows(x: Tensor) -> Any:
    made = x * 3
    return made[0], made[1:], made[:2]


def of_views(x: Tensor) -> Any:
    return {"flat": x.t()[1:].unsqueeze(0), "twice": x * 2}


def detached(x: Tensor) -> Any:
    return x.detach()[0], x * 2


def complex_parts(x: Tensor) -> Any:
    return torch.view_as_real(torch.view_as_complex(torch.stack([x, x * 2], -1)))


def in_the_shape_of_another(x: Tensor) -> Any:
    made = x * 2
    return made.view_as(x.t() * 1), made


def hidden(x: Tensor) -> Any:
    with torch.no_grad():
        x.add_(1)
    return x[0], x * 2


def followed(x: Tensor) -> Any:
    row = x[0]
    x.mul_(x.detach() + 1)
    return row, x.t()


def written_through_a_view(x: Tensor) -> Any:
    x[1:].mul_(torch.ones(3) + 1)
    return x


def read_before_it_is_written(x: Tensor) -> Any:
    made = (x * 2).sin()
    x.add_(made)
    return made * 1


def a_layer(x: Tensor) -> Any:
    return F.linear(x[None], torch.ones(3, 3), torch.ones(3))


PROGRAMS = [
    *(two, rows, of_views, in_the_shape_of_another, detached, complex_parts, hidden, followed),
    written_through_a_view,
    *(read_before_it_is_written, a_layer, lambda x: x.t(), lambda x: (x * 2).unbind(0)),
    *(lambda x: (x.view_as(x), x * 2), lambda x: x.chunk(2), lambda x: x.add_(1)),
]


def tensors_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return list(result.values() if isinstance(result, dict) else result)


def trained(program: Callable[..., Any], written: int) -> Any:
    """Values, gradients and the error, if any, of a step that writes to an output and to what it is a view of."""
    leaf = numbers(3, 3).requires_grad_()
    activation = leaf * 1
    results = tensors_of(program(activation))
    try:
        results[written % len(results)].mul_(2)
        activation.t().add_(1)
        torch.stack([each.sum() for each in (*results, activation)]).sum().backward()
    except RuntimeError as error:
        return str(error).partition(" is a view")[2][:40]
    return [*results, activation, leaf.grad]


@pytest.mark.parametrize("written", [0, 1])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__code__.co_firstlineno)
def test_outputs_are_written_to_as_in_eager(program: Callable[..., Any], written: int) -> None:
    want = trained(program, written)
    assert want, "eager allows it, or says that it is a view"
    jitted = tm.jit(program)
    for _ in range(2):
        got = trained(jitted, written)
        assert type(got) is type(want)
        if isinstance(want, str):
            assert got == want
        else:
            torch.testing.assert_close(got, want)
    assert tm.cache_info(jitted).misses == 1


@pytest.mark.parametrize("source", ["weight", "row"])
def test_what_makes_an_input_require_grad(source: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        if source == "weight":
            return x.add_(w)
        x[0] = w[0] * 2
        return x[1]

    jitted = tm.jit(program)
    for _ in range(2):
        seen = []
        for called in (program, jitted):
            x, w = numbers(2, 3), numbers(2, 3).requires_grad_()
            result = called(x, w)
            assert x.requires_grad
            (result * x).sum().backward()
            seen.append((x, result, w.grad))
        torch.testing.assert_close(seen[1], seen[0])


def test_a_leaf_is_no_activation() -> None:
    jitted = tm.jit(lambda x: x.mul_(2))
    jitted(numbers(3).requires_grad_() * 1)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used"):
        jitted(numbers(3).requires_grad_())


def test_a_stored_view_is_the_callers_too() -> None:
    class Remembering(nn.Module):
        last: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            made = self.layer(x) * 2
            self.last = made[0]
            return made

    torch.manual_seed(0)
    model = Remembering()
    jitted = tm.jit(model)
    found = []
    for called in (model, jitted, jitted):
        model.zero_grad()
        result = called(numbers(2, 3))
        model.last.mul_(3)
        result.sum().backward()
        found.append([result, model.last, model.layer.weight.grad])
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_text(golden: Golden) -> None:
    jitted = tm.jit(two)
    jitted(numbers(3, 3).requires_grad_())
    golden(tm.last_traces(jitted)[-1].text("minimal"), "computation")
    golden(tm.last_epilogue_traces(jitted)[-1].text("minimal"), "epilogue")


def test_where_autograd_does_not_record_views_stay_where_they_are() -> None:
    with torch.no_grad():
        jitted = tm.jit(two)
        jitted(numbers(3, 3).requires_grad_())
    assert not tm.last_epilogue_traces(jitted)
