"""Where an operation of nvFuser and one of PyTorch of the same name could mean different things: against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.nvfuser.harness import fused_like_eager, some

Fn = Callable[..., Any]

NAN, INF = float("nan"), float("inf")
BIG = 2**24 + 1  # no float32


def longs() -> torch.Tensor:
    return torch.tensor([-BIG, -3, -1, 0, 1, 2, 3, BIG])


def ints() -> torch.Tensor:
    return torch.tensor([-7, -3, -1, 0, 1, 2, 3, 7], dtype=torch.int32)


def truths() -> torch.Tensor:
    return torch.tensor([True, False, True, True])


def odd() -> torch.Tensor:
    """Numbers that are not numbers, infinite, and zeros of both signs."""
    return torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.5, -1.5])


def half() -> torch.Tensor:
    return torch.tensor([0.1, 0.3, -0.7, 1.0, 10.0, -3.0]).bfloat16()


PROMOTED: dict[str, tuple[Fn, Callable[[], torch.Tensor]]] = {
    "ints and a float": (lambda x: (x + 0.5, x * 2.5, 1.5 - x, x / 3, x**0.5), ints),
    "longs and a float": (lambda x: (x + 0.5, x * 0.1, x / 3), longs),
    "truths and numbers": (lambda x: (x + 1, x * 2.5, 1 - x.long(), x / 2, x + True), truths),
    "truths divided": (lambda x: (x / x.float(), x // 2, x % 2), truths),
    "halves and a float": (lambda x: (x + 0.1, x * 0.1, x - 0.1, 0.1 - x, x / 0.1, 0.1 / x), half),
    "halves compared": (
        # 10.1 is 10.125 among them, which is printed in full
        lambda x: (x == 10.1, x > 10.1, x >= 10.1, x != -10.1, x < 10.1, -10.1 <= x, x == 1),
        lambda: torch.tensor([10.1, 10.0, 1.0, -10.1]).bfloat16(),
    ),
    "halves, what is left": (
        lambda x: (x % 0.1, torch.fmod(x, 0.3), x // 0.3, torch.div(x, 0.1, rounding_mode="trunc")),
        half,
    ),
    "halves to powers": (lambda x: (x.abs() ** 0.3, 0.1**x, x.abs() ** -1.1), half),
    "halves cut": (
        lambda x: (x.clamp(0.1, 0.3), x.clamp(max=-0.7), F.threshold(x, 0.1, 0.3)),
        half,
    ),
    "halves and singles": (lambda x: (x + x.float(), x * x.float(), x == x.float()), half),
    "halves of both kinds": (lambda x: (x + x.half(), torch.where(x > 0, x, x.half())), half),
    "floats and doubles": (
        lambda x: (x + x.double(), x + torch.tensor(0.1, dtype=torch.float64, device=x.device)),
        odd,
    ),
    "a single number in double": (
        lambda x: (x.float() * x.double()[0], x.half() + x.float()[0], x.long() * x.float()[3]),
        half,
    ),
    "longs compared": (lambda x: (x == BIG, x > BIG - 1, x < 0.5, x == x.int()), longs),
    "truths compared": (lambda x: (x == 1, x > 0, x < 0.5, x == True, x >= x.long()), truths),  # noqa: E712
    "ints and longs": (lambda x: (x + x.long(), torch.maximum(x, x.long()), x & x.long()), ints),
    "a choice of numbers": (
        lambda x: (
            torch.where(x > 0, x, 0),
            torch.where(x > 0, 1, x),
            torch.where(x > 0, 1.5, 2),
            torch.where(x > 0, x, 0.1),
        ),
        ints,
    ),
    "a choice of mixed": (lambda x: torch.where(x > 0, x.float(), x), ints),
    "wide numbers": (lambda x: (x * 2**33, x + 2**31, x - 2**40), longs),
    "ints wrap": (lambda x: (x * 2**30, (x + 2**31 - 1)), ints),
    "longs stay exact": (
        lambda x: (x.relu(), x.abs(), x.sign(), x.clamp(-(2**24) - 1, BIG), -x),
        longs,
    ),
    "ints rectified": (lambda x: (x.relu(), F.relu6(x), x.clamp_min(0), x.square()), ints),
    "doubles": (
        lambda x: (x.double() * 0.1, x.double() + 1e-12, x.double() / 3, x.double() ** 0.3),
        ints,
    ),
}

DIVIDED: dict[str, tuple[Fn, Callable[[], torch.Tensor]]] = {
    f"{kind} {mode}": (
        lambda x, mode=mode, by=by: tuple(torch.div(x, y, rounding_mode=mode) for y in by),
        make,
    )
    for kind, make, by in (
        ("ints", ints, (2, -2, 3, 1.5, -0.5)),
        ("longs", longs, (2, -2, 7, 1.5)),
        ("floats", odd, (2, -0.3, INF, -INF, 0.0)),
    )
    for mode in ("floor", "trunc", None)
}

POWERS: dict[str, tuple[Fn, Callable[[], torch.Tensor]]] = {
    "of ints": (lambda x: (x**0, x**1, x**2, x**3, x**5, x**2.0, x**0.0, x**-1.0), ints),
    "of longs": (lambda x: (x**2, x**3, 3 ** x.clamp(0, 30)), longs),
    "of truths": (lambda x: (x**2, x**0, 2**x, x**1.5), truths),
    "to negative ints": (lambda x: (2 ** x.clamp(-3, 3), (-1) ** x, 1**x, 0 ** x.abs()), ints),
    "of odd ones": (
        lambda x: (x**0, x**1, x**2, x**3, x**0.5, x**-0.5, x**-1, x**-2, x**2.5, x**x, 1**x),
        odd,
    ),
}

NOT_A_NUMBER: dict[str, tuple[Fn, Callable[[], torch.Tensor]]] = {
    "extremes": (lambda x: (torch.maximum(x, x * 0), torch.minimum(x * 0 + 1, x)), odd),
    "fmax": (lambda x: (torch.fmax(x, x.flip(0)), torch.fmin(x, x.flip(0))), odd),
    "the greatest": (lambda x: (x.amax(), x.amin(), x.max(), x.min(), x[1:].amax()), odd),
    "clamped": (lambda x: (x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0), x.clamp(1, -1)), odd),
    "clamped by it": (lambda x: (x.clamp(NAN, 1), x.clamp(max=NAN), x.clamp(x.flip(0), x)), odd),
    "rectified": (
        lambda x: (x.relu(), F.relu6(x), F.leaky_relu(x), F.hardtanh(x), F.threshold(x, 0, 1)),
        odd,
    ),
    "signs": (lambda x: (x.sign(), x.sgn(), x.signbit(), x.abs(), -x, x.copysign(-x)), odd),
    "rounded": (lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac()), odd),
    "compared": (lambda x: (x == x, x != x, x < x + 1, x >= x.flip(0), x > 0, x <= NAN), odd),
    "truth": (
        lambda x: (
            x.bool(),
            x.logical_not(),
            torch.logical_and(x, x),
            torch.logical_xor(x, x > 0),
            x.any(),
            x.all(),
            x.any(0),
        ),
        odd,
    ),
    "what is left": (
        lambda x: (x % 2, x % -2, torch.fmod(x, 2), x % INF, torch.remainder(2, x), x % 0.0),
        odd,
    ),
    "sums": (lambda x: (x.sum(), x[3:].sum(), x.mean(), x.cumsum(0), x.prod(), x.var()), odd),
    "softmax": (lambda x: (F.softmax(x, 0), F.log_softmax(x[2:], 0), x[1:2].softmax(0)), odd),
    "softmax of nothing allowed": (lambda x: F.softmax(x * 0 - INF, 0), lambda: some(4, 3)),
    "replaced": (lambda x: (x.nan_to_num(1, 2, 3), x.nan_to_num(), x.masked_fill(x != x, 0)), odd),
    "functions": (
        lambda x: (x.exp(), x.sigmoid(), x.tanh(), x.log(), x.sqrt(), F.silu(x), F.gelu(x[3:])),
        odd,
    ),
    "more functions": (
        lambda x: (
            F.softplus(x),
            F.elu(x),
            F.mish(x),
            x.erf(),
            x.log1p(),
            x.rsqrt(),
            x.reciprocal(),
        ),
        odd,
    ),
    "tanh of gelu": (lambda x: F.gelu(x[3:], approximate="tanh"), odd),
    "to ints": (lambda x: x[3:].long(), odd),
    "dropped": (lambda x: torch.ops.aten.native_dropout_backward(x, x > 0, 2.0), odd),
    "by zero": (lambda x: (x / 0, x / -0.0, 1 / x, x * 0, x * INF), odd),
}

SHIFTED: dict[str, tuple[Fn, Callable[[], torch.Tensor]]] = {
    "by more than there are": (lambda x: (x << 64, x >> 64, x << 70, x >> 63, x << 63), longs),
    "ints by more": (lambda x: (x << 32, x >> 32, x << 31, x >> 31), ints),
    "by negative ones": (lambda x: (x << -1, x >> -1), longs),
    "by tensors": (lambda x: (x << x, x >> x, 1 << x), ints),
    "bits of truths": (lambda x: (x & True, x | False, x ^ x, x & 3, x | x.long()), truths),
}

ALL = {
    f"{family}: {name}": case
    for family, cases in {
        "promoted": PROMOTED,
        "divided": DIVIDED,
        "powers": POWERS,
        "not a number": NOT_A_NUMBER,
        "shifted": SHIFTED,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", ALL)
def test_values_and_dtypes(name: str) -> None:
    fn, make = ALL[name]
    fused_like_eager(fn, make(), leaves_none=False)
