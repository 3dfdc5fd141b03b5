"""Pointwise operations against eager: values, gradients, and that their kernels compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.nvfuser.harness import FLOATS, fused_like_eager, some

Fn = Callable[..., Any]

UNARY: dict[str, tuple[Fn, float, float]] = {
    **{
        name: (getattr(torch, name), -2.0, 2.0)
        for name in (
            "abs asinh atan cos cosh erf erfc exp exp2 expm1 neg sigmoid sign sin sinh tan tanh square relu sgn "
            "ceil floor round trunc frac"
        ).split()
    },
    **{
        name: (getattr(torch, name), 0.1, 3.0)
        for name in "lgamma log log10 log1p log2 reciprocal rsqrt sqrt".split()
    },
    **{name: (getattr(torch, name), -0.9, 0.9) for name in "acos asin atanh erfinv".split()},
    "acosh": (torch.acosh, 1.1, 3.0),
    "silu": (F.silu, -3.0, 3.0),
    "gelu": (F.gelu, -3.0, 3.0),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), -3.0, 3.0),
    "leaky_relu": (F.leaky_relu, -3.0, 3.0),
    "elu": (F.elu, -3.0, 3.0),
    "softplus": (F.softplus, -3.0, 3.0),
    "mish": (F.mish, -3.0, 3.0),
    "hardswish": (F.hardswish, -5.0, 5.0),
    "hardtanh": (F.hardtanh, -3.0, 3.0),
    "hardsigmoid": (F.hardsigmoid, -5.0, 5.0),
    "logsigmoid": (F.logsigmoid, -3.0, 3.0),
    "softsign": (F.softsign, -3.0, 3.0),
    "clamp": (lambda x: x.clamp(-1, 0.5), -2.0, 2.0),
    "clamp_min": (lambda x: x.clamp(min=0.25), -2.0, 2.0),
    "pow 2": (lambda x: x**2, -2.0, 2.0),
    "pow 3": (lambda x: x**3, -2.0, 2.0),
    "pow 0.5": (lambda x: x**0.5, 0.1, 2.0),
    "pow -1": (lambda x: x**-1, 0.5, 2.0),
    "pow 2.5": (lambda x: x**2.5, 0.1, 2.0),
    "number ** x": (lambda x: 2.0**x, -2.0, 2.0),
    "x + 1": (lambda x: x + 1, -2.0, 2.0),
    "x * 1.5": (lambda x: x * 1.5, -2.0, 2.0),
    "1 - x": (lambda x: 1 - x, -2.0, 2.0),
    "1 / x": (lambda x: 1 / x, 0.5, 2.0),
    "x % 0.7": (lambda x: x % 0.7, -2.0, 2.0),
    "x // 0.7": (lambda x: x // 0.7, -2.0, 2.0),
    "nan_to_num": (lambda x: torch.nan_to_num(x.log()), -2.0, 2.0),
    "dropout in eval": (lambda x: F.dropout(x, 0.5, training=False) * 2, -2.0, 2.0),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_one_tensor(name: str, dtype: torch.dtype) -> None:
    fn, low, high = UNARY[name]
    gradients = name not in ("x // 0.7", "sgn", "lgamma")
    fused_like_eager(fn, some(3, 8, dtype=dtype, low=low, high=high), gradients=gradients)


BINARY: dict[str, Fn] = {
    "add": lambda x, y: x + y,
    "add, scaled": lambda x, y: torch.add(x, y, alpha=3),
    "sub": lambda x, y: x - y,
    "sub, scaled": lambda x, y: torch.sub(x, y, alpha=0.5),
    "rsub": lambda x, y: torch.rsub(x, y),
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x.abs() ** y,
    "atan2": torch.atan2,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.5),
    "where": lambda x, y: torch.where(x > y, x, y * 2),
    "where and a number": lambda x, y: torch.where(x > y, x, 0.0) + y,
    "masked_fill": lambda x, y: x.masked_fill(y > 0, -1.0) + y,
    "clamp by tensors": lambda x, y: torch.clamp(x, min=y, max=y + 1),
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "glu": lambda x, y: F.glu(x, -1) * y.sum(),
    "mse": lambda x, y: F.mse_loss(x, y),
    "smooth l1": lambda x, y: F.smooth_l1_loss(x, y),
    "bce with logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_a_function_of_two_tensors(name: str, dtype: torch.dtype) -> None:
    x, y = some(3, 8, dtype=dtype), some(3, 8, dtype=dtype, low=0.5)
    fused_like_eager(BINARY[name], x, y, gradients=True)


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 8), (8,)), ((3, 1), (1, 8)), ((2, 1, 8), (3, 1)), ((3, 8), ()), ((1,), (3, 8))],
)
def test_operands_are_broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    fused_like_eager(lambda x, y: (x + y) * x, some(*left), some(*right), gradients=True)


COMPARISONS = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]


@pytest.mark.parametrize("fn", COMPARISONS, ids=lambda fn: fn.__name__)
def test_a_comparison(fn: Fn) -> None:
    x, y = torch.randint(-2, 3, (3, 8)), torch.randint(-2, 3, (3, 8))
    fused_like_eager(lambda x, y: (fn(x, y), fn(x, 1), fn(x, 0.5)), x, y)
    fused_like_eager(lambda x, y: (fn(x, y), fn(x, 1)), x.bfloat16(), y.float())


INTEGERS: dict[str, Fn] = {
    "arithmetic": lambda x, y: (x + y, x - y, x * y, x / y),
    "scaled": lambda x, y: torch.add(x, y, alpha=2),
    "with a float": lambda x, y: (x + 0.5, x * 1.5 - y),
    "division": lambda x, y: (
        torch.div(x, y, rounding_mode="trunc"),
        torch.div(x, y, rounding_mode="floor"),
        x // y,
    ),
    "remainder": lambda x, y: (x % y, torch.fmod(x, y)),
    "bits": lambda x, y: (x & y, x | y, x ^ y, ~x, x & 6),
    "shifts": lambda x, y: (x << y.clamp(0, 3), x >> y.clamp(0, 3), x << 2),
    "powers": lambda x, y: (x**2, x**3),
    "extremes": lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), x.clamp(-1, 2)),
    "signs": lambda x, y: (x.abs(), -x, x.sign(), torch.relu(y)),
    "functions": lambda x, y: (x.exp(), torch.sigmoid(y), x.float().sqrt()),
    "logic": lambda x, y: (
        torch.logical_and(x, y),
        torch.logical_or(x, y),
        torch.logical_xor(x, y),
        torch.logical_not(x),
    ),
    "gcd": torch.gcd,
    "to float and back": lambda x, y: (x.bfloat16() * 2).to(y.dtype),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str, dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, (3, 8), dtype=dtype)
    y = torch.randint(1, 5, (3, 8), dtype=dtype) * (1 if name == "shifts" else -1)
    fused_like_eager(INTEGERS[name], x, y)


def test_booleans() -> None:
    x, y = torch.rand(3, 8) > 0.5, torch.rand(3, 8) > 0.5
    fused_like_eager(lambda x, y: (x & y, x | y, x ^ y, ~x, x + y, x * y, x + 1, x * 2.5), x, y)
    fused_like_eager(lambda x, y: (x.float(), x.long(), x.bfloat16(), torch.where(x, 1.0, y)), x, y)


def test_infinities_and_nan() -> None:
    x = torch.tensor([1.0, float("inf"), -float("inf"), float("nan"), 0.0, -0.0])
    fused_like_eager(
        lambda x: (
            x.isnan(),
            x.isinf(),
            x.isfinite(),
            x.isposinf(),
            x.isneginf(),
            x.signbit(),
            x / 0,
        ),
        x,
    )
    fused_like_eager(
        lambda x: (
            torch.maximum(x, x.flip(0)),
            x.clamp(-1, 1),
            x.masked_fill(x > 0, -float("inf")),
        ),
        x,
    )


def test_exact_multiples_are_not_rounded_away() -> None:
    x = torch.tensor([1.0, 0.3, -1.0, 6.0, 7.0, -7.0, 0.0, 5.0])
    y = torch.tensor([0.1, 0.1, 0.1, 0.1, -2.0, 2.0, 3.0, 0.0])
    fused_like_eager(
        lambda x, y: (torch.floor_divide(x, y), torch.div(x, y, rounding_mode="trunc"), x % y), x, y
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_half_type_is_rounded_where_the_program_casts(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0 + 2**-10, 3.14159265, 1e-3])
    fused_like_eager(lambda x: (x.to(dtype).float() - x, x.to(dtype) * 2), x)


def test_doubles() -> None:
    fused_like_eager(lambda x, y: (x * y).exp() / 3, some(3, 8).double(), some(8), gradients=True)
