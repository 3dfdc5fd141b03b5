"""The settings of PyTorch that decide what a call does, and calls that bring settings of their own."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.symbol import BoundSymbol, LineWriter, Symbol, symbol

AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")
"""The device types whose autocast state is looked at."""


class Setting(NamedTuple):
    """One setting: `get()` reads it, `set(value)` changes it.

    checked: whether what is recorded depends on it, so that each call checks it; other settings act on the recorded
    calls themselves. attention: whether only attention's kernels depend on it.
    """

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    checked: bool = False
    attention: bool = False


def matmul_precision() -> str | None:
    """The precision of float32 matmuls; None where it was set for one backend, of which this setting knows nothing."""
    try:
        return internals.get_float32_matmul_precision()
    except RuntimeError:
        return None


def set_matmul_precision(precision: str | None) -> None:
    """Sets what `matmul_precision` tells."""
    if precision is not None:
        torch.set_float32_matmul_precision(precision)


SETTINGS = (
    Setting("default dtype", torch.get_default_dtype, torch.set_default_dtype, checked=True),
    Setting(
        "deterministic mode",
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
        checked=True,
    ),
    Setting("matmul precision", matmul_precision, set_matmul_precision),
    Setting("cudnn", internals.get_cudnn_enabled, internals.set_cudnn_enabled),
    Setting("mkldnn", internals.get_mkldnn_enabled, internals.set_mkldnn_enabled),
    Setting(
        "flash attention",
        internals.get_flash_sdp_enabled,
        torch.backends.cuda.enable_flash_sdp,
        attention=True,
    ),
    Setting(
        "memory-efficient attention",
        internals.get_mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
        attention=True,
    ),
    Setting(
        "attention by plain operations",
        internals.get_math_sdp_enabled,
        torch.backends.cuda.enable_math_sdp,
        attention=True,
    ),
    Setting(
        "cudnn attention",
        internals.get_cudnn_sdp_enabled,
        torch.backends.cuda.enable_cudnn_sdp,
        attention=True,
    ),
)
"""What besides grad mode, inference mode and autocast changes what calls compute."""


def autocast_dtypes() -> tuple[tuple[str, torch.dtype], ...]:
    """The device types under autocast, each with the dtype it casts to."""
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in AUTOCAST_DEVICES
        if torch.is_autocast_enabled(device)
    )


def default_device() -> torch.device | None:
    """The device of torch.set_default_device or `with torch.device(...)`; None where there is none."""
    for mode in internals.function_mode_stack():
        if isinstance(mode, internals.DeviceContext):
            return mode.device
    return None


def is_somebody_elses() -> bool:
    """Whether modes are active that trace, count or change what is called: jitted functions are then inlined."""
    if (
        internals.dispatch_mode_depth() > 0
        or internals.torchscript_is_tracing()
        or internals.fx_is_tracing()
    ):
        return True
    return internals.function_mode_depth() > 0 and any(
        not isinstance(mode, internals.DeviceContext) for mode in internals.function_mode_stack()
    )


class Ambient(NamedTuple):
    """The settings of PyTorch that a call's answer depends on.

    autocast: device type and dtype of each autocast that is on. settings: the values of `SETTINGS`, in order.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    settings: tuple[Any, ...]

    @classmethod
    def now(cls) -> Ambient:
        """The settings of this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            autocast_dtypes() if internals.any_autocast_enabled() else (),
            tuple([setting.get() for setting in SETTINGS]),
        )

    def differences(self, other: Ambient) -> list[str]:
        """What the two have differently, in words."""
        found = [
            name
            for name, one, two in zip(
                ("grad mode", "inference mode", "autocast"), self, other, strict=False
            )
            if one != two
        ]
        pairs = zip(SETTINGS, self.settings, other.settings, strict=True)
        return [*found, *(setting.name for setting, one, two in pairs if one != two)]

    def with_default_dtype_of(self, other: Ambient) -> Ambient:
        """These settings, with the default dtype of others."""
        return self._replace(settings=(other.settings[0], *self.settings[1:]))

    @contextmanager
    def in_force(self) -> abc.Generator[None]:
        """Sets `SETTINGS` and grad mode to these for the block, and autocast off."""
        with ExitStack() as stack:
            stack.enter_context(without_autocast())
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for setting, value in zip(SETTINGS, self.settings, strict=True):
                before = setting.get()
                if before != value:
                    stack.callback(setting.set, before)
                    setting.set(value)
            yield


@contextmanager
def without_autocast() -> abc.Generator[None]:
    """Autocast off for the block, its cache left alone."""
    enabled = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    for device in enabled:
        torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        for device in enabled:
            torch.set_autocast_enabled(device, True)


def run_without_autocast(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with autocast off where it is on now: a computation holds the casts that autocast made while tracing."""
    enabled = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    if not enabled:
        return run
    switch = torch.set_autocast_enabled

    def run_uncast(*inputs: Any) -> Any:
        for device in enabled:
            switch(device, False)
        try:
            return run(*inputs)
        finally:
            for device in enabled:
                switch(device, True)

    return run_uncast


class Under(Symbol):
    """A call under settings that differ from those around the program; prints as plain torch code around it.

    changes: (setting, value for the call, value around it). inference: the inference mode for the call, None when as
    around it.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        changes: Sequence[tuple[Setting, Any, Any]],
        inference: bool | None,
    ) -> None:
        self.inner = symbol(fn)
        self.changes = tuple(changes)
        self.inference = inference
        super().__init__(self.inner.name, impl=self._run)

    def without_inference(self) -> Symbol:
        """The same call in the inference mode around it."""
        impl: Any = self.inner.impl
        return Under(impl, self.changes, None) if self.changes else self.inner

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for setting, inside, around in self.changes:
                stack.callback(setting.set, around)
                setting.set(inside)
            if self.inference is not None:
                stack.enter_context(torch.inference_mode(self.inference))
            return self.inner.impl(*args, **kwargs)  # type: ignore[misc]

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        lines = self.inner.lines(bsym.from_bsym(sym=self.inner), writer)
        if self.inference is not None:
            lines = [f"with torch.inference_mode({self.inference}):", *_indented(lines)]
        for setting, inside, around in reversed(self.changes):
            switch = writer.value(setting.set)
            lines = [
                f"{switch}({writer.value(inside)})",
                "try:",
                *_indented(lines),
                "finally:",
                f"  {switch}({writer.value(around)})",
            ]
        return lines


def _indented(lines: Sequence[str]) -> list[str]:
    return ["  " + line for line in lines]


def symbol_under(
    fn: Callable[..., Any], now: Ambient, around: Ambient, *, attention: bool
) -> Symbol:
    """The symbol of a call of `fn` under `now` in a program that is called under `around`."""
    if now.settings == around.settings and now.inference == around.inference:
        return symbol(fn)
    changes = [
        (setting, inside, outside)
        for setting, inside, outside in zip(SETTINGS, now.settings, around.settings, strict=True)
        if inside != outside and (attention or not setting.attention)
    ]
    inference = now.inference if now.inference != around.inference else None
    return Under(fn, changes, inference) if changes or inference is not None else symbol(fn)
