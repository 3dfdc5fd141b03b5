"""Transforms of torch.func inside of a program, and jitted functions inside of transforms and of other tracers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import optree
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

import tracemill as tm
from tracemill.compiler.torch_internals import make_fx

torch.manual_seed(0)
LINEAR = torch.nn.Linear(4, 4)


def _vmap(x: torch.Tensor, y: torch.Tensor) -> Any:
    return vmap(lambda a, b: a.dot(b))(x, y)


def _columns(x: torch.Tensor, y: torch.Tensor) -> Any:
    return vmap(lambda a, b: (a * b).sum(), in_dims=(1, 1))(x, y)


def _nested(x: torch.Tensor, y: torch.Tensor) -> Any:
    return vmap(lambda a: vmap(lambda b: a.dot(b))(y))(x) + vmap(vmap(torch.mul))(x, y).sum()


def _module(x: torch.Tensor, y: torch.Tensor) -> Any:
    return vmap(LINEAR)(x) + y


def _grad(x: torch.Tensor, y: torch.Tensor) -> Any:
    return grad(lambda a: (a * a * y).sum())(x)


def _grad_and_value(x: torch.Tensor, y: torch.Tensor) -> Any:
    return grad_and_value(lambda a: (a.sin() * y).sum())(x)


def _second(x: torch.Tensor, y: torch.Tensor) -> Any:
    return grad(lambda a: grad(lambda b: (b**3).sum())(a).sum())(x) * y


def _per_sample(x: torch.Tensor, y: torch.Tensor) -> Any:
    return vmap(grad(lambda a, b: (a * b).sin().sum()))(x, y)


def _vjp(x: torch.Tensor, y: torch.Tensor) -> Any:
    out, backward, *_ = vjp(lambda a: a.exp() * y, x)
    return backward(out)[0] + out


def _jvp(x: torch.Tensor, y: torch.Tensor) -> Any:
    return jvp(lambda a: a.exp(), (x,), (y,))


def _jacobians(x: torch.Tensor, y: torch.Tensor) -> Any:
    return jacrev(lambda a: a.square().sum(0))(x) + jacfwd(lambda a: (a**3).sum(0))(y)


def _hessian(x: torch.Tensor, y: torch.Tensor) -> Any:
    return hessian(lambda a: (a**3).sum())(x[0]) + y[0]


def _weights(x: torch.Tensor, y: torch.Tensor) -> Any:
    found = grad(lambda given: functional_call(LINEAR, given, (x,)).square().sum())(
        dict(LINEAR.named_parameters())
    )
    return found["weight"] * y.sum() + found["bias"]


def _partly_without_grad(x: torch.Tensor, y: torch.Tensor) -> Any:
    def loss(a: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            factor = a * 2
        return (a * factor).sum()

    with torch.no_grad():
        constant = vmap(torch.mul)(x, y)
    return grad(loss)(x) * y + constant + vmap(lambda a, b: a.detach() * b)(x, y)


def _in_place(x: torch.Tensor, y: torch.Tensor) -> Any:
    def sample(a: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(a)
        total += a
        total.mul_(2).unsqueeze_(0)
        return total

    return vmap(sample)(x) * y


def _random(x: torch.Tensor, y: torch.Tensor) -> Any:
    noisy = vmap(lambda a: a + torch.randn(4), randomness="different")(x)
    return vmap(lambda a: torch.nn.functional.dropout(a, 0.5), randomness="same")(noisy) * y


def _on_its_path(x: torch.Tensor, y: torch.Tensor) -> Any:
    rows = vmap(torch.sum)(x)
    return rows * y.sum() if rows.sum() > 0 else y


PROGRAMS: list[Callable[..., Any]] = [
    _vmap,
    _columns,
    _nested,
    _module,
    _grad,
    _grad_and_value,
    _second,
    _per_sample,
    _vjp,
    _jvp,
    _jacobians,
    _hessian,
    _weights,
    _partly_without_grad,
    _in_place,
    _random,
    _on_its_path,
]
CASES = [
    (program, cache)
    for program in PROGRAMS
    for cache in ("constant values", "symbolic values")
    if (program, cache) != (_random, "symbolic values")  # refused, see below
]


def _run(fn: Callable[..., Any], seed: int, *, train: bool) -> tuple[list[Any], ...]:
    """The results, whether each requires grad, and the gradients of the inputs and of the module."""
    torch.manual_seed(seed)
    x, y = (torch.randn(3, 4, requires_grad=train) for _ in range(2))
    LINEAR.zero_grad()
    results = optree.tree_leaves(fn(x, y))
    require = [result.requires_grad for result in results]
    if any(require):
        torch.stack([result.sum() for result in results if result.requires_grad]).sum().backward()
    gradients = [value.grad for value in (x, y, LINEAR.weight, LINEAR.bias)]
    return [result.detach() for result in results], require, gradients


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("program", "cache"),
    CASES,
    ids=[f"{fn.__name__[1:]}-{cache.split()[0]}" for fn, cache in CASES],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_as_in_eager(program: Callable[..., Any], cache: str, *, train: bool) -> None:
    symbolic = cache == "symbolic values"
    if program is _nested and symbolic and not train and torch.__version__ < "2.11":
        pytest.skip(
            "PyTorch 2.10 takes no symbolic sizes for vmap of dot without gradients: refused"
        )
    jitted = tm.jit(program, cache=cache)
    for seed in range(3):
        values, require, gradients = _run(jitted, seed, train=train)
        expected_values, expected_require, expected_gradients = _run(program, seed, train=train)
        torch.testing.assert_close(values, expected_values, rtol=0, atol=0)
        assert require == expected_require
        for found, expected in zip(gradients, expected_gradients, strict=True):
            assert (found is None) == (expected is None)
            if expected is not None:
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "rule",
    [
        lambda a: torch.nn.functional.layer_norm(a, (4,)),
        lambda a: torch.nn.functional.dropout(a, 0.5),
        lambda a: torch.nn.functional.conv1d(a[None, None], torch.ones(1, 1, 3)),
    ],
    ids=["layer_norm", "dropout", "conv1d"],
)
def test_a_rule_without_symbolic_sizes_is_refused_by_name(rule: Callable[..., Any]) -> None:
    jitted = tm.jit(lambda x: vmap(rule, randomness="same")(x), cache="symbolic values")
    with pytest.raises(tm.UnsupportedError, match=r"no rule for .* at .*test_transforms.py:\d+"):
        jitted(torch.ones(3, 4))


# Jitted functions inside of transforms and of other tracers


def _wave(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sin() + x


class _Calling(torch.nn.Module):
    def __init__(self, called: Callable[..., Any]) -> None:
        super().__init__()
        self.called = called

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.called(x, y)


def _on_duals(called: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(called(forward_ad.make_dual(x, y), y))


INSIDE: dict[str, Callable[..., Any]] = {
    "vmap": lambda fn, x, y: vmap(fn)(x, y),
    "grad": lambda fn, x, y: grad(lambda a: fn(a, y).sum())(x),
    "jvp": lambda fn, x, y: jvp(fn, (x, y), (y, x)),
    "jacrev": lambda fn, x, y: jacrev(fn)(x, y),
    "hessian": lambda fn, x, y: hessian(lambda a: fn(a, y).sum())(x),
    "forward AD": _on_duals,
    "make_fx": lambda fn, x, y: cast("Any", make_fx(fn)(x, y))(x, y),
    "torch.fx": lambda fn, x, y: torch.fx.symbolic_trace(_Calling(fn))(x, y),
    "torch.export": lambda fn, x, y: torch.export.export(_Calling(fn), (x, y)).module()(x, y),
    "torch.jit.trace": lambda fn, x, y: cast("Any", torch.jit.trace(fn, (x, y)))(x, y),
}


@pytest.mark.parametrize("way", INSIDE)
@pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated")
def test_a_jitted_function_is_inlined(way: str) -> None:
    jitted = tm.jit(_wave)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    expected = INSIDE[way](_wave, x, y)
    for _ in range(2):
        torch.testing.assert_close(INSIDE[way](jitted, x, y), expected)
    torch.testing.assert_close(jitted(x, y), _wave(x, y))


def test_forward_ad_is_refused_where_gradients_are_recorded() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(tm.UnsupportedError, match="forward-mode AD reached a jitted function"):
        _on_duals(tm.jit(_wave), x, torch.ones(3, 4))


class _Outer(torch.nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x + 1) * 2


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("wrap", [lambda jitted: jitted, _Outer])
def test_torch_compile_runs_what_is_jitted_as_it_is(wrap: Callable[[Any], Any]) -> None:
    """Dynamo looks neither into the call nor into what is compiled at it."""
    linear = torch.nn.Linear(4, 4)
    jitted = tm.jit(linear)
    compiled = torch.compile(wrap(jitted), backend="eager")
    x = torch.randn(3, 4)
    for _ in range(2):
        assert torch.equal(compiled(x), wrap(linear)(x))
    assert tm.cache_info(jitted) == (1, 1, 1)
