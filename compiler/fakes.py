"""Fakes: tensors with metadata and no data, to compile programs for devices and sizes that are not at hand."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, overload

import torch

from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.oracle import ORACLE
from tracemill.compiler.torch_internals import FakeTensor, FakeTensorMode, dtype_abbrs
from tracemill.compiler.tree import node_of

_DTYPES = {short: dtype for dtype, short in dtype_abbrs.items()}
_DESCRIPTION = re.compile(r"(?:(?P<device>\S+) )?(?P<dtype>\w+)\[(?P<sizes>[\d, ]*)\]")


@overload
def fake(what: str, *, device: Any = None, requires_grad: bool = False) -> torch.Tensor: ...
@overload
def fake(what: Any, *, device: Any = None, requires_grad: bool = False) -> Any: ...
def fake(what: Any, *, device: Any = None, requires_grad: bool = False) -> Any:
    """Tensors that have metadata and no data, so that a program can be compiled for what is not at hand.

    what: a description, as traces show it (`"cuda:0 bf16[4, 8]"`, the device being cpu where none is named); or a
    tensor, a module, or a list, tuple or dict of such, of which a copy is made whose tensors have no data.
    device: where the copy's tensors are said to be; None is where they are.
    requires_grad: of a tensor made from a description.

    A jitted function called with fakes compiles for their metadata, backward included, and returns fakes. Where their
    device is not there, autograd's engine does not run that backward: it is for reading.

    Raises ValueError for what is no description, UnsupportedError for tensors on CUDA that require grad where PyTorch
    is built without CUDA, whose autograd would end the process.

    >>> fake("cuda:0 bf16[4, 8]").device
    device(type='cuda', index=0)
    """
    if isinstance(what, str):
        return _described(what, device, requires_grad)
    to = None if device is None else torch.device(device)
    if isinstance(what, torch.Tensor):
        return _like(what, to)
    if isinstance(what, torch.nn.Module):
        memo: dict[int, Any] = {}
        for tensor in (*what.parameters(), *what.buffers()):
            memo[id(tensor)] = _like(tensor, to)
        return copy.deepcopy(what, memo)
    node = node_of(what)
    if node is None:
        return what
    return node.rebuild([fake(child, device=device) for child in node.children])


def _described(description: str, device: Any, requires_grad: bool) -> torch.Tensor:
    found = _DESCRIPTION.fullmatch(description)
    if found is None or found["dtype"] not in _DTYPES:
        raise ValueError(
            f'{description!r} describes no tensor; write device, dtype and sizes: "cuda:0 bf16[4, 8]". '
            f"The dtypes are {', '.join(sorted(_DTYPES))}"
        )
    sizes = [int(size) for size in found["sizes"].replace(",", " ").split()]
    on = torch.device(device or found["device"] or "cpu")
    return _made(
        lambda: torch.empty(sizes, dtype=_DTYPES[found["dtype"]], device=on), on, requires_grad
    )


def _like(tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    on = tensor.device if device is None else device

    def make() -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=on)

    made = _made(make, on, tensor.requires_grad)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made


def _made(
    make: Callable[[], torch.Tensor], device: torch.device, requires_grad: bool
) -> torch.Tensor:
    if requires_grad and device.type == "cuda" and not torch.backends.cuda.is_built():
        raise UnsupportedError(
            "this PyTorch is built without CUDA, and cannot differentiate on CUDA tensors, also where they have no "
            "data; use a build with CUDA, or tensors that do not require grad"
        )
    with fake_mode():
        return make().requires_grad_(requires_grad)


def fake_mode() -> FakeTensorMode:
    """The mode that makes this thread's fakes: those of two modes cannot be used together."""
    return ORACLE.fake_mode


def mode_of(tensor: torch.Tensor) -> FakeTensorMode | None:
    """The mode of a fake; None for a tensor with data."""
    return tensor.fake_mode if isinstance(tensor, FakeTensor) else None
