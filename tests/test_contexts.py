"""Contexts: what decides how PyTorch computes is part of a program's key, and faithful inside it."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import tracemill as tm
from tests.programs import computation_inputs, run_text

torch.manual_seed(0)
X = torch.randn(4, 4)
W = torch.randn(4, 4)
B = torch.randn(4)

Context = Callable[[], AbstractContextManager[Any]]


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def bits(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def assert_like_eager(
    fn: Callable[..., Any], *args: torch.Tensor, around: Context = nullcontext
) -> Any:
    """Two calls, values and gradients the same bits as eager's, dtypes and flags too."""
    jitted = tm.jit(fn, printer="minimal")
    for _ in range(2):
        mine, eagers = ([_fresh(arg) for arg in args] for _ in range(2))
        with around():
            wanted = fn(*eagers)
        with around():
            got = jitted(*mine)
        bits(got, wanted)
        assert got.requires_grad == wanted.requires_grad
        assert got.is_inference() == wanted.is_inference()
        if wanted.requires_grad:
            for result in (got, wanted):
                result.float().pow(2).sum().backward()
            bits([arg.grad for arg in mine], [arg.grad for arg in eagers])
    return jitted


def _fresh(arg: torch.Tensor) -> torch.Tensor:
    return arg.detach().clone().requires_grad_(arg.requires_grad)


def training(*args: torch.Tensor) -> list[torch.Tensor]:
    return [arg.clone().requires_grad_() for arg in args]


# Autocast


def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(torch.tanh(F.linear(x, w)), w) + x.sum()


def two_regions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with autocast():
        y = x @ w
    with autocast():
        z = x @ w
    return y + z


def disabled_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with autocast():
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            z = y.float() @ w
        return z + y @ w


def other_dtype_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with autocast():
        y = x @ w
        with torch.autocast("cpu", torch.float16):
            return y + x @ w


def no_grad_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with autocast():
        with torch.no_grad():
            y = x @ w
        return y + x @ w


def self_attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q = (x @ w)[None, None]
    return F.scaled_dot_product_attention(q, q, q)


def dropped_attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    q = (x @ w)[None, None]
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ w, torch.arange(4)) + F.mse_loss(x, x.detach().bfloat16())


PROGRAMS: dict[str, Callable[..., Any]] = {
    "twice": twice,
    "two_regions": two_regions,
    "disabled_inside": disabled_inside,
    "other_dtype_inside": other_dtype_inside,
    "no_grad_inside": no_grad_inside,
    "self_attention": self_attention,
    "dropped_attention": dropped_attention,
    "loss": loss,
    "softmax": lambda x, w: F.softmax(x @ w, -1) @ w,
    "norm": lambda x, w: F.layer_norm(x @ w, (4,)),
    "convolution": lambda x, w: F.conv1d(x[None], w[:, :, None]),
    "asks": lambda x, w: x @ w * (2 if torch.is_autocast_enabled("cpu") else 3),
}


FAULTS_OF_2_10 = {
    "no_grad_inside": "gives a weight that was cast under no_grad to what runs with gradients after it",
    "loss": "cannot differentiate a loss of two dtypes",
}


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("around", [nullcontext, autocast], ids=["plain", "autocast"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_autocast_gives_eagers_values_and_gradients(name: str, around: Context, grad: bool) -> None:
    if grad and name in FAULTS_OF_2_10 and torch.__version__ < "2.11":
        pytest.skip(f"PyTorch 2.10 {FAULTS_OF_2_10[name]}")
    assert_like_eager(PROGRAMS[name], *(training(X, W) if grad else [X, W]), around=around)


def test_a_module_under_autocast() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    jitted = tm.jit(attention)
    with autocast(), torch.no_grad():
        bits(jitted(X[None], X[None], X[None]), attention(X[None], X[None], X[None]))


@pytest.mark.filterwarnings("ignore:.*is compiled again")
def test_each_autocast_state_has_its_program() -> None:
    jitted = tm.jit(lambda x, w: x @ w)
    states: list[tuple[Context, torch.dtype]] = [
        (nullcontext, torch.float32),
        (autocast, torch.bfloat16),
        (lambda: torch.autocast("cpu", torch.float16), torch.float16),
        (lambda: torch.autocast("cpu", enabled=False), torch.float32),
    ]
    for _ in range(2):
        for around, dtype in states:
            with around():
                assert jitted(X, W).dtype == dtype


def test_casts_are_lines_and_need_no_context(golden: Callable[[str, str], None]) -> None:
    jitted = tm.jit(F.linear, printer="minimal")
    with autocast():
        wanted = jitted(X, W, B)
        text = tm.last_traces(jitted)[-1].text("minimal")
        inputs = computation_inputs(jitted, X, W, B)

    golden(text, "linear")
    bits(run_text(text, inputs), wanted)


# Other settings


def float64_inside(x: torch.Tensor) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        return torch.ones(4) * x + torch.arange(4) / 2
    finally:
        torch.set_default_dtype(torch.float32)


def deterministic_inside(x: torch.Tensor) -> torch.Tensor:
    torch.use_deterministic_algorithms(True)
    try:
        return torch.empty(4) + x * torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def math_attention(x: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])


def test_a_default_dtype_inside(golden: Callable[[str, str], None]) -> None:
    jitted = assert_like_eager(float64_inside, X)
    assert torch.get_default_dtype() is torch.float32
    text = tm.last_traces(jitted)[-1].text("minimal")
    golden(text, "default_dtype")
    bits(run_text(text, computation_inputs(jitted, X)), float64_inside(X))


@pytest.mark.parametrize("fn", [deterministic_inside, math_attention])
def test_settings_inside_hold_for_their_calls(fn: Callable[..., Any]) -> None:
    assert_like_eager(fn, X)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_kernel_of_attention_is_part_of_the_key() -> None:
    jitted = tm.jit(lambda x: F.scaled_dot_product_attention(x, x, x))
    x = torch.randn(1, 2, 8, 16)
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(backend):
            bits(jitted(x), F.scaled_dot_product_attention(x, x, x))
    assert tm.cache_info(jitted).entries == 2


def test_a_default_dtype_around_is_part_of_the_key() -> None:
    jitted = tm.jit(lambda n: torch.ones(2) + n / 2)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            assert jitted(torch.arange(2)).dtype is dtype
        finally:
            torch.set_default_dtype(torch.float32)
    assert tm.cache_info(jitted).entries == 2


def test_a_default_device_around_is_part_of_the_key_and_printed() -> None:
    jitted = tm.jit(lambda: torch.ones(2))
    for device in ("cpu", "meta", "cpu"):
        with torch.device(device):
            assert jitted().device.type == device
            assert f'device=torch.device("{device}")' in tm.last_traces(jitted)[-1].text("minimal")
    assert jitted().device.type == "cpu"


def test_a_default_device_inside() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.device("meta"):
            shape = torch.ones(3).shape
        torch.set_default_device("meta")
        other = torch.empty(5)
        torch.set_default_device(None)
        return torch.ones(shape) + other.numel() + x[0, 0]

    assert_like_eager(fn, X)
    assert torch.get_default_device().type == "cpu"


@pytest.mark.parametrize(
    "around", [torch.no_grad, torch.enable_grad, torch.inference_mode], ids=lambda c: c.__name__
)
@pytest.mark.parametrize("inside", [torch.no_grad, torch.inference_mode], ids=lambda c: c.__name__)
def test_grad_modes(around: Context, inside: Context) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with inside():
            y = x * 3
        return x.sin() + y.sum().item()

    (x,) = training(X)
    assert_like_eager(fn, X, around=around)
    assert_like_eager(fn, x, around=around)


def test_grad_enabled_inside_no_grad() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = x * 3
        with torch.enable_grad():
            return before, (x * 2).sin(), x * before

    jitted = tm.jit(fn)
    for _ in range(2):
        found = []
        for called in (fn, jitted):
            (x,) = training(X)
            with torch.no_grad():
                outs = called(x)
            torch.stack([out.sum() for out in outs[1:]]).sum().backward()
            found.append([[out.requires_grad for out in outs], *outs, x.grad])
        assert found[0].pop(0) == found[1].pop(0) == [False, True, True]
        torch.testing.assert_close(found[1], found[0])


LEAVES_CHANGED: dict[str, Callable[[], Any]] = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "grad mode": lambda: torch.set_grad_enabled(False),
    "deterministic mode": lambda: torch.use_deterministic_algorithms(True),
    "default device": lambda: torch.set_default_device("meta"),
}


@pytest.mark.parametrize("name", LEAVES_CHANGED)
def test_a_setting_left_changed_is_refused_and_put_back(name: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        LEAVES_CHANGED[name]()
        return x + 1

    before = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device())
    with pytest.raises(tm.UnsupportedError, match=name):
        tm.jit(fn)(X)
    assert before == (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_default_device(),
    )
    assert not torch.are_deterministic_algorithms_enabled()


# What the function mode does not see


def _to_script(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2 + 1


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    scripted = torch.jit.script(_to_script)


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "vmap": lambda x: torch.vmap(lambda row: (row * row).sum())(x),
    "grad": lambda x: torch.func.grad(lambda y: (y.sin() * y).sum())(x),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x * 2,))[1],
    "jacrev": lambda x: torch.func.jacrev(lambda y: y.sin() * y)(x[0]),
    "hessian": lambda x: torch.func.hessian(lambda y: (y.sin() * y).sum())(x[0]),
    "vmap_of_grad": lambda x: torch.vmap(torch.func.grad(lambda y: y.cos().sum()))(x),
    "scripted": lambda x: scripted(x) + 1,
    "data": lambda x: x.data * 2 + x,
    "is_leaf": lambda x: x * (2 if x.is_leaf else 3) + (x * 2).is_leaf,
    "from_numpy": lambda x: x + torch.from_numpy(np.ones(4, dtype=np.float32)),
    "in_c++": lambda x: torch.where(x > 0, 1.5, x),
    "cond": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch's own jvp
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_programs_that_go_round_the_function_mode(name: str, grad: bool) -> None:
    assert_like_eager(TRANSFORMED[name], *(training(X) if grad else [X]))


def test_while_loop_runs_as_python() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        start = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2), (start, x))[1]

    bits(tm.jit(fn)(X), X * 8)


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.jacrev])
def test_a_jitted_function_under_functorch_is_inlined(transform: Callable[..., Any]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    jitted = tm.jit(fn)
    jitted(X[0])  # an entry that must not be taken for what functorch brings
    bits(transform(jitted)(X[0]), transform(fn)(X[0]))


def test_a_constant_that_is_returned_is_new_at_each_call() -> None:
    jitted = tm.jit(lambda: torch.from_numpy(np.ones(3, dtype=np.float32)))
    first = jitted()
    first.add_(1)
    bits(jitted(), torch.ones(3))


def test_a_write_to_a_tensor_made_unseen_is_refused() -> None:
    with pytest.raises(tm.MutationError):
        tm.jit(lambda: torch.from_numpy(np.ones(3, dtype=np.float32)).add_(1))()


def test_a_jitted_function_inside_another_is_inlined() -> None:
    inner = tm.jit(lambda x: x if x.sum() > 1e9 else x * 2)
    outer = tm.jit(lambda x: inner(x).sin())
    bits(outer(X), (X * 2).sin())
    assert tm.last_traces(outer)[0].bound_symbols[-1].sym.name == "torch.Tensor.sin"
    assert tm.cache_info(inner).entries == 0


def test_a_strangers_function_mode_sees_the_programs_own_calls() -> None:
    class Count(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    jitted = tm.jit(lambda x: x.sin().cos())
    jitted(X)
    with Count() as mode:
        got = jitted(X)
    assert mode.calls == 2
    bits(got, X.sin().cos())


# Threads


def test_two_threads_trace_at_once() -> None:
    tokens: list[queue.SimpleQueue[None]] = [queue.SimpleQueue(), queue.SimpleQueue()]
    results: dict[str, Any] = {}

    def program(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        mine, others = tokens if name == "one" else reversed(tokens)

        def meet() -> None:
            others.put(None)
            mine.get(timeout=20)

        def fn(x: torch.Tensor) -> torch.Tensor:
            meet()
            y = x * 2 if name == "one" else x - 2
            with torch.no_grad() if name == "one" else nullcontext():
                meet()
                torch.manual_seed(len(name))
                y = y + torch.rand(4, generator=torch.Generator().manual_seed(1))
            meet()
            y = y if torch.compiler.is_compiling() else y * 0
            return y if y.sum() > 0 else -y

        return fn

    def run(name: str) -> None:
        try:
            results[name] = tm.jit(program(name))(X)
        except BaseException as error:
            results[name] = error

    with torch.random.fork_rng():
        threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    noise = torch.rand(4, generator=torch.Generator().manual_seed(1))
    assert not [error for error in results.values() if isinstance(error, BaseException)]
    for name, sum_ in (("one", X * 2 + noise), ("two", X - 2 + noise)):
        bits(results[name], sum_ if sum_.sum() > 0 else -sum_)


def test_a_thread_that_does_not_trace_draws_and_seeds_as_always() -> None:
    inside, done = threading.Event(), threading.Event()
    drawn: list[torch.Tensor] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        inside.set()
        return x + int(done.wait(20))

    def other() -> None:
        assert inside.wait(20)
        assert not torch.compiler.is_compiling()
        generator = torch.Generator()
        generator.manual_seed(3)
        drawn.append(torch.rand(2, generator=generator))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    bits(tm.jit(fn)(X), X + 1)
    thread.join()
    bits(drawn, [torch.rand(2, generator=torch.Generator().manual_seed(3))])
