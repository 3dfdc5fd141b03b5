"""What the transforms of torch.func do: their calls reach stand-ins below autograd, past the function mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.errors import UnsupportedError
from tracemill.passes.interpretation.stand_in import Recording, interpretation


class Bypass(internals.TorchDispatchMode):
    """Hands the interpretation what reaches ATen without passing the function mode."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if interpretation.get() is None:
            return func(*args, **(kwargs or {}))  # of a cached function
        with internals.DisableTorchFunction():
            return self._recording.record_below_autograd(func, args, kwargs or {})


def outlived(args: Sequence[Any]) -> bool:
    """Whether a call is on what a transform of functorch left, as the function that `vjp` returns calls autograd."""
    first = args[0] if args else None
    while isinstance(first, (tuple, list)) and first:
        first = first[0]
    return type(first) is torch.Tensor and internals.is_functorch_wrapped(first)


def transformed(
    recording: Recording, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """A call under a transform; raises UnsupportedError where its rule takes no symbolic sizes."""
    try:
        return fn(*args, **kwargs)
    except RuntimeError as error:
        if not any(words in str(error) for words in _OF_SYMBOLIC_SIZES):
            raise
        raise UnsupportedError(
            f"functorch has no rule for {getattr(fn, '__name__', fn)} on sizes that differ from call to call"
            f"{recording.at()}; mark those sizes as constant, or leave cache at its default"
        ) from error


_OF_SYMBOLIC_SIZES = ("on tensor with symbolic sizes/strides", "no arguments had PyInterpreter")
"""What PyTorch says where a rule in C++ asks for a number and gets a symbol."""
