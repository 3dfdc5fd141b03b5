"""Who is compared: eager, tracemill with each of its executors, torch.compile with three backends, and lightning-thunder."""

from __future__ import annotations

import functools
import importlib
import os
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# The passes verify each trace in tests; in measurements that would only slow the start.
os.environ.setdefault("TRACEMILL_VERIFY", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import tracemill as tm

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]

EXECUTORS = ("torch", "inductor", "tiered", "nvfuser")
"""Those that are installed are compared."""

BACKENDS = ("inductor", "aot_eager", "eager")

OURS = "tracemill torch"
AGAINST = "torch.compile inductor"


def peers() -> dict[str, Compile]:
    """How each peer that is at hand compiles a callable, by name."""
    found: dict[str, Compile] = {"eager": lambda fn: fn}
    for name in EXECUTORS:
        if name in tm.executors.names():
            found[f"tracemill {name}"] = lambda fn, name=name: tm.jit(
                fn, executors=name, sharp_edges="allow"
            )
    for backend in BACKENDS:
        found[f"torch.compile {backend}"] = lambda fn, backend=backend: torch.compile(
            fn, backend=backend
        )
    thunder = _thunder()
    return found if thunder is None else found | {"thunder": thunder}


NAMED = ("align_as", "align_to", "has_names", "refine_names", "rename")
"""Methods of named tensors, which lightning-thunder lists when it is imported and later PyTorch no longer has."""


def _unnamed(*_: object) -> None:
    raise NotImplementedError("tensors have no names any more")


@functools.cache
def _thunder() -> Compile | None:
    """lightning-thunder's `jit`; None where it is not installed, or not for this PyTorch."""
    gone = [name for name in NAMED if not hasattr(torch.Tensor, name)]
    for name in gone:
        method = types.FunctionType(_unnamed.__code__, globals(), name)
        setattr(torch.Tensor, name, method)
    try:
        return importlib.import_module("thunder").jit
    except Exception as error:
        if not isinstance(error, ModuleNotFoundError):
            warnings.warn(f"thunder left out: {type(error).__name__}: {error}", stacklevel=2)
        return None
    finally:
        for name in gone:
            delattr(torch.Tensor, name)


def ready(
    fn: Callable[..., Any],
    call: Callable[[Callable[..., Any]], object],
    among: Iterable[str] | None = None,
) -> dict[str, Callable[[], object]]:
    """`call` on the callable as each peer compiles it, called already, so that it is compiled.

    among: the names of peers; all without. A peer that cannot compile the callable is left out, with a warning.
    """
    ways: dict[str, Callable[[], object]] = {}
    for name, compile_ in peers().items():
        if among is not None and name not in among:
            continue
        compiled = compile_(fn)
        try:
            for _ in range(3):
                call(compiled)
        except Exception as error:
            warnings.warn(f"{name} left out: {type(error).__name__}: {error}", stacklevel=2)
            continue
        ways[name] = lambda compiled=compiled: call(compiled)
    _wait_for_tiered()
    return ways


def _wait_for_tiered() -> None:
    """What runs on torch until a worker process is ready is measured afterwards."""
    if "tiered" in tm.executors.names():
        wait: Any = getattr(tm.executors.get("tiered"), "wait", None)
        if wait is not None:
            wait(120)


def ours(names: Iterable[str] | Mapping[str, object]) -> list[str]:
    """The names of tracemill's own ways."""
    return [name for name in names if name.startswith("tracemill")]
