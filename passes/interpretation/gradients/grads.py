"""Grads: the `.grad` of tensors, which is state: what a program finds there, and what it leaves there.

Before, in the user's program:

    if w.grad is not None:
      w.grad = None
    loss.backward()

After, where `w.grad` was a tensor when the program was traced:

    def prologue():
      w_grad = w.grad
      tensorcheck.check(w, w_grad) or mismatch("metadata of the tensors")

    def epilogue(w, t9):
      w.grad = t9
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.oracle import unobserved
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.sizes import Sizes
from tracemill.passes.interpretation.stand_in import TracedTensor

T: Any = torch.Tensor
_UNREAD: Any = object()


class Recording(Protocol):
    """What these need of the interpreter."""

    inputs: list[TensorProxy]
    lifted: dict[int, tuple[TensorProxy, torch.Tensor]]
    sizes: Sizes
    grads: Any

    def lift(self, tensor: torch.Tensor) -> TracedTensor:
        """The stand-in of a tensor."""
        ...

    def at(self) -> str:
        """The user's line, for errors."""
        ...


@dataclass
class Grad:
    """The `.grad` of one tensor.

    owner: its stand-in. real: the tensor itself; None where the program made it. found: what was there; nothing is known of it
    where the program wrote first. before, now: the stand-ins of what was and is there.
    """

    owner: TracedTensor
    real: torch.Tensor | None
    found: torch.Tensor | None = None
    before: Any = None
    now: TracedTensor | None = None

    @property
    def is_read(self) -> bool:
        """Whether it matters what was there."""
        return self.real is not None and self.before is not _UNREAD

    @property
    def is_written(self) -> bool:
        """Whether the program leaves something else than it found."""
        return self.now is not self.before


class Grads:
    """The `.grad` of the tensors of one run of a program, as far as it looks there, in the order in which it does.

    retained: the results that are to keep their gradients, by their id.
    """

    def __init__(self) -> None:
        self._of: dict[int, Grad] = {}
        self.retained: dict[int, TracedTensor] = {}

    def __iter__(self) -> Iterator[Grad]:
        return iter(self._of.values())

    def read(self, recording: Recording, tensor: torch.Tensor) -> TracedTensor | None:
        """The stand-in of `tensor.grad`."""
        owner = recording.lift(tensor)
        known = self._of.get(id(owner))
        if known is None:
            real = _real(recording, tensor)
            with internals.DisableTorchFunction():
                found = None if real is None else real.grad
            if found is not None:
                refuse_sparse(recording, found)
            stand_in = None if found is None else recording.lift(found)
            known = self._of[id(owner)] = Grad(owner, real, found, stand_in, stand_in)
        return known.now

    def write(self, recording: Recording, tensor: torch.Tensor, grad: Any) -> None:
        """Does `tensor.grad = grad`; raises what that raises."""
        owner = recording.lift(tensor)
        if grad is not None:
            refuse_sparse(recording, grad)
        now = None if grad is None else recording.lift(grad)
        if now is not None:
            _raise_as_eager(recording, owner.proxy, now.proxy)
        known = self._of.get(id(owner))
        if known is None:
            known = self._of[id(owner)] = Grad(owner, _real(recording, tensor), before=_UNREAD)
        known.now = now

    def clear(self) -> None:
        """Lets go of the stand-ins."""
        self._of.clear()
        self.retained.clear()


def _real(recording: Recording, tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that a stand-in stands for; None where the program made it."""
    if type(tensor) is not TracedTensor:
        return tensor
    known = (real for _, real in recording.lifted.values() if recording.lift(real) is tensor)
    return next(known, None)


def refuse_sparse(recording: Recording, grad: torch.Tensor) -> None:
    """Refuses gradients that are not dense, such as those of `nn.Embedding(sparse=True)`."""
    with internals.DisableTorchFunction():
        layout = grad.layout
    if layout != torch.strided:
        raise UnsupportedError(
            f"a gradient of layout {layout} is kept inside the program{recording.at()}; make it dense (sparse=False), or "
            "call backward and the optimiser outside"
        )


def _raise_as_eager(recording: Recording, owner: TensorProxy, grad: TensorProxy) -> None:
    """Raises what PyTorch raises for a gradient of another shape, dtype or device."""
    with unobserved(), internals.no_user_modes(), recording.sizes.mode:
        models = [recording.sizes.model(proxy) for proxy in (owner, grad)]
        T.grad.__set__(models[0], models[0] if owner is grad else models[1])


# Calls


def read(recording: Recording, tensor: torch.Tensor, *_: Any) -> Any:
    """`tensor.grad`."""
    return recording.grads.read(recording, tensor)


def write(recording: Recording, tensor: torch.Tensor, grad: Any) -> None:
    """`tensor.grad = grad`."""
    if grad is not None and not isinstance(grad, torch.Tensor):
        raise TypeError(
            f"assigned grad expected to be a Tensor or None but got grad of type {type(grad)}"
        )
    recording.grads.write(recording, tensor, grad)


def delete(recording: Recording, tensor: torch.Tensor) -> None:
    """`del tensor.grad`."""
    recording.grads.write(recording, tensor, None)


def retain(recording: Recording, tensor: torch.Tensor) -> None:
    """`tensor.retain_grad()`."""
    owner = recording.lift(tensor)
    if not owner.proxy.requires_grad:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    if owner.proxy.meta.is_leaf:
        return
    if _real(recording, tensor) is not None:
        raise UnsupportedError(
            f"retain_grad of a tensor that was computed outside of the program is called{recording.at()}; call it there"
        )
    recording.grads.retained[id(owner)] = owner


def retains(recording: Recording, tensor: torch.Tensor, *_: Any) -> bool:
    """`tensor.retains_grad`."""
    if type(tensor) is not TracedTensor or (real := _real(recording, tensor)) is None:
        return id(tensor) in recording.grads.retained
    with internals.DisableTorchFunction():
        return real.retains_grad


HANDLED: dict[Any, Any] = {
    T.retain_grad: retain,
    T.retains_grad.__get__: retains,
    **{getattr(T, name).__get__: read for name in ("grad", "_grad") if hasattr(T, name)},
    **{getattr(T, name).__set__: write for name in ("grad", "_grad") if hasattr(T, name)},
    **{getattr(T, name).__delete__: delete for name in ("grad", "_grad") if hasattr(T, name)},
}
