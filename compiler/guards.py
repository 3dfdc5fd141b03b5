"""The small functions that a prologue's text calls to check a call's inputs."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.prims import Check, PlaceCheck
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.torch_internals import TensorGuards


class Mismatch(Exception):
    """Raised by a prologue whose specialisation does not fit the call; the call then tries another."""


class OtherPath(Exception):
    """Raised by a computation whose values took another path; the call then tries, or makes, another program."""


def mismatch(subject: str) -> NoReturn:
    """Says that `subject` is not as the specialisation needs it."""
    raise Mismatch(subject)


CHECK = Check("check", impl=mismatch)
CHECK_PLACE = PlaceCheck("check_place", impl=mismatch)


ARGUMENT = "{} is {}"
"""The condition that an argument is the same object."""


def check(subject: str, condition: str, *values: Any) -> BoundSymbol:
    """The bound symbol of a check: `condition` holds a `{}` for each of `values`."""
    return CHECK.bind(subject, condition, *values, output=None)


def are_leaves(*tensors: torch.Tensor) -> bool:
    """Whether autograd's graph begins at all of some tensors: none is computed from another one."""
    return all(tensor.is_leaf for tensor in tensors)


def have_no_hooks(*tensors: torch.Tensor) -> bool:
    """Whether nobody changes the gradients that come to some tensors."""
    return not any(
        tensor._backward_hooks or tensor._post_accumulate_grad_hooks for tensor in tensors
    )


def base_requires_grad(tensor: torch.Tensor) -> bool | None:
    """Whether what a tensor is a view of requires grad; None for one that is no view."""
    base = tensor._base
    return None if base is None else base.requires_grad


class TensorCheck:
    """Checks type, device, dtype, requires_grad, shape and strides of many tensors at once.

    `check(*tensors)` says whether all are as recorded. PyTorch's own check in C++ does the work; it covers the
    conjugate and negative bits and inference mode too.
    """

    __slots__ = ("check", "expected", "guards")

    def __init__(self, *expected: tuple[type, TensorMeta]) -> None:
        self._set(expected, [_example(kind, meta) for kind, meta in expected])

    @classmethod
    def of(cls, tensors: list[torch.Tensor], sizes: Any = None, strides: Any = None) -> TensorCheck:
        """The check that `tensors` pass.

        sizes, strides: for each tensor, what each dimension's must be, None where any is right; all as they are without.
        """
        made = object.__new__(cls)
        expected = tuple((type(tensor), TensorMeta.of(tensor)) for tensor in tensors)
        made._set(expected, tensors, sizes, strides)
        return made

    def _set(
        self,
        expected: tuple[tuple[type, TensorMeta], ...],
        tensors: list[torch.Tensor],
        sizes: Any = None,
        strides: Any = None,
    ) -> None:
        self.expected = expected
        self.guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        self.check = self.guards.check

    def why(self, tensors: list[torch.Tensor], names: list[str]) -> str:
        """The first difference, in words; empty when there is none."""
        found = self.guards.check_verbose(*tensors, tensor_check_names=names)
        return found if isinstance(found, str) else ""


def _example(kind: type, meta: TensorMeta) -> torch.Tensor:
    tensor = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
    tensor.requires_grad_(meta.requires_grad)
    return torch.nn.Parameter(tensor, meta.requires_grad) if kind is torch.nn.Parameter else tensor
