"""What a line kept for its backward is written to afterwards: the backward raises, or reads what is there, as eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm

T = torch.Tensor
PROGRAMS: dict[str, Callable[[T, T], Any]] = {}


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: T, w: T) -> T:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: T) -> tuple[T, T]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        return gradient * w, gradient * x


def program(fn: Callable[[T, T], Any]) -> Callable[[T, T], Any]:
    """Registers a program of an activation and a weight."""
    PROGRAMS[fn.__name__.replace("_", " ")] = fn
    return fn


@program
def a_result_written_by_data(x: T, w: T) -> Any:
    y = x.exp()
    y.data.mul_(2)
    return y


@program
def an_operand_written_by_data(x: T, w: T) -> Any:
    y = x + 1
    z = y * w
    y.data.zero_()
    return z, y


@program
def a_part_written_by_data(x: T, w: T) -> Any:
    y = x + 1
    z = y * w
    y.data[0] = 5.0
    return z, y


@program
def data_read_and_the_tensor_written(x: T, w: T) -> Any:
    y = x + 1
    z = y.data * w
    y.add_(1)
    return z, y


@program
def written_by_data_between_two_reads(x: T, w: T) -> Any:
    y = x * 3
    z = y.sin()
    y.data.add_(1)
    return z + y.cos()


@program
def a_result_written_by_data_and_in_place(x: T, w: T) -> Any:
    y = x.exp()
    y.data.mul_(2)
    y.clamp_(-50, 50)
    return y


@program
def an_operand_written_by_data_twice(x: T, w: T) -> Any:
    y = x + 1
    z = y * w
    y.data.zero_()
    y.data.add_(2)
    return z, y


@program
def a_result_written_in_place(x: T, w: T) -> Any:
    y = x.exp()
    y.mul_(2)
    return y


@program
def a_result_written_under_no_grad(x: T, w: T) -> Any:
    y = x.sigmoid()
    with torch.no_grad():
        y.clamp_(max=0.6)
    return y


@program
def a_result_written_through_a_detached_view(x: T, w: T) -> Any:
    y = x.sigmoid()
    y.detach()[0] = 0.0
    return y * 2


@program
def another_part_than_was_read(x: T, w: T) -> Any:
    y = x + 1
    z = y[1:] * w[1:]
    y[0] = 5.0
    return z, y


@program
def a_constant_operand(x: T, w: T) -> Any:
    mask = torch.ones(3)
    z = x * mask
    mask.zero_()
    return z


@program
def an_operand_that_no_backward_reads(x: T, w: T) -> Any:
    y = x + 1
    z = y + w
    y.mul_(3)
    return z, y


@program
def an_operand_kept_as_a_copy_by_the_write(x: T, w: T) -> Any:
    y = x * 2
    y.mul_(w)
    y.add_(1)
    return y


@program
def in_place_all_the_way(x: T, w: T) -> Any:
    y = torch.zeros(3)
    for i in range(3):
        y[i] = (x[i] * w[i]).exp()
    return y


@program
def a_result_kept_by_the_operation_in_place(x: T, w: T) -> Any:
    y = x - 0.5
    nn.functional.leaky_relu_(y)
    y.mul_(w)
    return y


@program
def elu_in_place(x: T, w: T) -> Any:
    y = x - 0.5
    nn.functional.elu_(y, 0.7)
    return y * w


@program
def celu_in_place(x: T, w: T) -> Any:
    return nn.functional.celu(x - 0.5, 0.7, inplace=True) * w


@program
def leaky_relu_in_place(x: T, w: T) -> Any:
    return nn.functional.leaky_relu_(x - 0.5, 0.3) * w


@program
def random_leaky_relu_in_place(x: T, w: T) -> Any:
    return nn.functional.rrelu(x - 0.5, training=True, inplace=True) * w


@program
def an_operand_kept_for_its_shape_alone(x: T, w: T) -> Any:
    y = x * 1
    z = y.cummax(0).values
    y.add_(1)
    return z


@program
def parts_written_one_by_one(x: T, w: T) -> Any:
    y = x * 1
    for i in range(3):
        y[i : i + 1].mul_(w[i : i + 1])
    return y


@program
def a_part_that_keeps_its_result_then_another_part(x: T, w: T) -> Any:
    y = x * 1
    y[:1].exp_()
    y[1:].add_(1)
    return y


@program
def a_part_scaled_by_another(x: T, w: T) -> Any:
    y = x * 1
    y[0].mul_(y[1])
    return y


@program
def scaled_by_itself(x: T, w: T) -> Any:
    y = x * 1
    y.mul_(y)
    return y


@program
def parts_from_one_another(x: T, w: T) -> Any:
    y = x * 1
    for i in range(3):
        y[i] = y[i - 1] * w[i]
    return y


@program
def a_line_left_to_autograd(x: T, w: T) -> Any:
    y = x * 1
    z = Scaled.apply(y, w)
    y.add_(1)
    return z


def leaves() -> tuple[T, T]:
    x = torch.tensor([0.3, 0.6, 0.9], requires_grad=True)
    w = torch.tensor([2.0, 3.0, 4.0], requires_grad=True)
    return x, w


def outcome(fn: Callable[..., Any]) -> list[Any]:
    """The results of a call; then the gradients, or the beginning of the backward's error."""
    torch.manual_seed(0)
    x, w = leaves()
    made = fn(x * 1, w)
    outs = made if isinstance(made, tuple) else (made,)
    found: list[Any] = [out.detach().clone() for out in outs]
    try:
        torch.autograd.backward([out.sum() for out in outs])
    except RuntimeError as error:
        return [*found, str(error)[:80]]
    return [*found, x.grad, w.grad]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_backward_gives_or_raises_what_eagers_does(name: str) -> None:
    fn = PROGRAMS[name]
    jitted = tm.jit(fn)
    wanted = outcome(fn)
    for _ in range(2):
        got = outcome(jitted)
        assert len(got) == len(wanted)
        for mine, eagers in zip(got, wanted, strict=True):
            if isinstance(eagers, str):
                assert mine == eagers
            else:
                torch.testing.assert_close(mine, eagers, rtol=0, atol=0)


def test_the_error_names_both_lines_and_stands_in_the_backward() -> None:
    def fn(x: T) -> T:
        y = x.exp()
        y.mul_(2)
        return y

    jitted = tm.jit(fn)
    x, _ = leaves()
    result = jitted(x)  # a forward alone is nobody's error
    with pytest.raises(RuntimeError, match=r"exp at .*test_overwrites.py:\d+ .* is written to at"):
        result.sum().backward()
    assert "raise RuntimeError(" in str(tm.last_backward_traces(jitted)[-1])


def test_a_parameter_written_by_data_after_use() -> None:
    x = torch.ones(1, 2, requires_grad=True)

    def step(layer: nn.Linear) -> Callable[[T], T]:
        def fn(x: T) -> T:
            y = layer(x)
            layer.weight.data.add_(1.0)
            return y

        return fn

    mine, eagers = nn.Linear(2, 2), nn.Linear(2, 2)
    mine.load_state_dict(eagers.state_dict())
    jitted, fn = tm.jit(step(mine)), step(eagers)
    for _ in range(3):
        grads = []
        for call in (jitted, fn):
            x.grad = None
            call(x).sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads, rtol=0, atol=0)
        torch.testing.assert_close(mine.weight, eagers.weight, rtol=0, atol=0)


def test_version_counters_do_not_tell_of_writes_by_data() -> None:
    def fn(x: T) -> T:
        x.data.mul_(3)
        return x + 1

    jitted = tm.jit(fn)
    for _ in range(2):
        x, w = leaves()
        outside = x * w
        jitted(x)
        assert x._version == 0
        outside.sum().backward()
        torch.testing.assert_close(w.grad, x.detach())


def test_what_a_value_holds_in_the_end_must_be_at_hand() -> None:
    def fn(x: T) -> T:
        scale = x.std()
        y = x / scale
        scale.data.mul_(2)
        return y

    x, _ = leaves()
    with pytest.raises(
        tm.MutationError, match=r"test_overwrites.py:\d+ writes by .data to what the"
    ):
        tm.jit(fn)(x)


def test_a_complex_value_written_under_no_grad_is_trained_on() -> None:
    def fn(x: T, w: T) -> T:
        y = torch.complex(x, w)
        with torch.no_grad():
            y.mul_(2)
        return (y * torch.tensor([1 + 2j, 3.0, 1j])).abs()

    for got, want in zip(outcome(tm.jit(fn)), outcome(fn), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
