"""Kinds of tensors: which ones a program may meet while it is traced."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.parameter import is_lazy

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.errors import UninitialisedError, UnsupportedError

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, internals.FakeTensor)
"""The classes of tensors that stand-ins answer for."""


def refuse_other_kinds(tensor: torch.Tensor, at: Callable[[], str]) -> None:
    """Raises UnsupportedError for a tensor that no stand-in answers for; `at` tells the user's line."""
    if type(tensor) in PLAIN and not tensor.is_quantized:
        return
    if is_lazy(tensor):
        raise UninitialisedError(
            f"a parameter has no shape yet{at()}: call the module once before it is traced"
        )
    kind = "quantised" if tensor.is_quantized else f"of class {type(tensor).__name__}"
    raise UnsupportedError(
        f"a tensor that is {kind} cannot be traced{at()}: only plain tensors and parameters can"
    )
