"""PyTorch's flags: a program that asks for one as a Python value follows it, and others do not pay for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import tracemill as tm

Change = Callable[[], AbstractContextManager[Any]]


def setting(value: Callable[[], Any], put: Callable[[Any], Any], other: Any) -> Change:
    """A context in which a setting has another value."""

    @contextmanager
    def changed() -> Any:
        before = value()
        put(other)
        try:
            yield
        finally:
            put(before)

    return changed


def flag(owner: Any, name: str, other: Any) -> Change:
    return setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), other)


backends: Any = torch.backends
SETTINGS: dict[str, tuple[Callable[[], Any], Change]] = {
    "cudnn.deterministic": (
        lambda: torch.backends.cudnn.deterministic,
        flag(backends.cudnn, "deterministic", True),
    ),
    "cudnn.benchmark": (
        lambda: torch.backends.cudnn.benchmark,
        flag(backends.cudnn, "benchmark", True),
    ),
    "cudnn.enabled": (
        lambda: torch.backends.cudnn.enabled,
        lambda: torch.backends.cudnn.flags(enabled=False),
    ),
    "mkldnn.enabled": (
        lambda: torch.backends.mkldnn.enabled,
        lambda: torch.backends.mkldnn.flags(enabled=False),
    ),
    "allow_tf32": (
        lambda: torch.backends.cuda.matmul.allow_tf32,
        flag(backends.cuda.matmul, "allow_tf32", True),
    ),
    "fp32_precision": (
        lambda: torch.backends.cuda.matmul.fp32_precision,
        flag(backends.cuda.matmul, "fp32_precision", "tf32"),
    ),
    "flash attention": (
        torch.backends.cuda.flash_sdp_enabled,
        lambda: sdpa_kernel(SDPBackend.MATH),
    ),
    "the fast path of attention": (
        torch.backends.mha.get_fastpath_enabled,
        setting(
            torch.backends.mha.get_fastpath_enabled,
            torch.backends.mha.set_fastpath_enabled,
            False,
        ),
    ),
    "float32 matmul precision": (
        torch.get_float32_matmul_precision,
        setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
    ),
    "the number of threads": (
        torch.get_num_threads,
        setting(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
    ),
    "autocast's dtype, while autocast is off": (
        lambda: torch.get_autocast_dtype("cpu"),
        setting(
            lambda: torch.get_autocast_dtype("cpu"),
            lambda dtype: torch.set_autocast_dtype("cpu", dtype),
            torch.float16,
        ),
    ),
    "anomaly detection": (
        torch.is_anomaly_enabled,
        lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    ),
    "deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        setting(
            torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
        ),
    ),
    "grad mode": (torch.is_grad_enabled, torch.no_grad),
    "inference mode": (torch.is_inference_mode_enabled, torch.inference_mode),
    "default dtype": (
        torch.get_default_dtype,
        setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    ),
}


@pytest.fixture(autouse=True)
def flags_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own tests, which the operator database is part of, freeze these flags when they are imported."""
    flags: Any = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:TF32 acceleration")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_the_program_asks_for_is_checked_at_each_call(name: str) -> None:
    ask, change = SETTINGS[name]
    usual = ask()
    jitted = tm.jit(lambda x: x + (1 if ask() == usual else 2))
    x = torch.zeros(2)
    for _ in range(2):
        assert torch.equal(jitted(x), x + 1)
        with change():
            assert torch.equal(jitted(x), x + 2)
    assert tm.cache_info(jitted).misses == 2


def test_a_setting_that_nobody_asks_for_is_not_checked() -> None:
    jitted = tm.jit(lambda x: x + 1)
    jitted(torch.ones(2))
    with torch.backends.cudnn.flags(deterministic=True):
        jitted(torch.ones(2))
    assert tm.cache_info(jitted).misses == 1


def test_a_program_that_leaves_a_setting_changed_is_refused_and_the_setting_put_back() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch.backends.cudnn.benchmark = True
        return x + 1

    assert not torch.backends.cudnn.benchmark
    with pytest.raises(tm.UnsupportedError, match="settings changed: cudnn benchmark"):
        tm.jit(program)(torch.ones(2))
    assert not torch.backends.cudnn.benchmark
