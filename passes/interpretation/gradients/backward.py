"""Backward: what `Tensor.backward` does in a program becomes lines like any others, and writes to `.grad`.

Before, in the user's program:

    loss = (x * w).sum()
    loss.backward()

After, where `w.grad` was None when the program was traced:

    def computation(x, w):
      t0 = torch.Tensor.mul(x, w)
      t1 = torch.Tensor.sum(t0)
      t2 = torch.ones_like(t1)
      t3 = torch.Tensor.expand(t2, [3])
      t4 = torch.mul(t3, x)
      return (None, (w, t4))

    def epilogue(w, t4):
      w.grad = t4

Where `w.grad` was a tensor, the gradient is added to it in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.meta import Storage, contiguous_stride
from tracemill.compiler.models import is_dense
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.settings import without_autocast
from tracemill.compiler.values import leaves
from tracemill.passes.interpretation.gradients import gradients_inside, grads
from tracemill.passes.interpretation.gradients.gradients_inside import is_grown, refusal, tape_of
from tracemill.passes.interpretation.gradients.tape import ONCE, Tape
from tracemill.passes.interpretation.replacements.replacement import standing_in

T: Any = torch.Tensor


class Recording(gradients_inside.Recording, grads.Recording, Protocol):
    """What these need of the interpreter."""


def of_tensor(
    recording: Recording,
    tensor: torch.Tensor,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """`tensor.backward(...)`."""
    _backward(recording, "backward", tensor, gradient, retain_graph, create_graph, inputs)


def of_tensors(
    recording: Recording,
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """`torch.autograd.backward(...)`."""
    asking, given = (
        "torch.autograd.backward",
        grad_variables if grad_tensors is None else grad_tensors,
    )
    _backward(recording, asking, tensors, given, retain_graph, create_graph, inputs)


def _backward(
    recording: Recording,
    asking: str,
    tensors: Any,
    given: Any,
    retain_graph: bool | None,
    create_graph: bool,
    inputs: Any,
) -> None:
    tape = tape_of(recording, asking)
    outs = _proxies(recording, tensors)
    for position, out in enumerate(outs):
        if not out.requires_grad:
            raise RuntimeError(
                f"element {position} of tensors does not require grad and does not have a grad_fn"
            )
    _refuse_outside(recording, outs)
    wanted = _wanted(recording, tape, outs, inputs)
    cotangents = None if given is None else tuple(_given(recording, given))
    keep = create_graph if retain_graph is None else retain_graph
    options = {**ONCE, "retain_graph": keep, "create_graph": create_graph, "allow_unused": True}
    known = _memory(recording)
    found = gradients_inside.gradients(recording, outs, wanted, cotangents, options)
    with without_autocast(), torch.set_grad_enabled(create_graph):
        for proxy, gradient in zip(wanted, found, strict=True):
            if gradient is not None:
                owner = recording.lift(recording.stand_ins(proxy))
                _accumulate(recording, owner, gradient, known, create_graph=create_graph)


def _wanted(recording: Recording, tape: Tape, outs: Sequence[TensorProxy], inputs: Any) -> Any:
    """The values whose gradients are kept: leaves in the order in which they were met, and results that retain theirs."""
    nodes = tape.nodes(outs)
    retained = [
        owner.proxy
        for owner in recording.grads.retained.values()
        if tape.model(owner.proxy).grad_fn in nodes
    ]
    if inputs is None:
        return [*_in_order(recording, tape.leaves(outs)), *retained]
    wanted = _proxies(recording, inputs)
    if not wanted:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    if not set(retained) <= set(wanted):
        raise refusal(
            recording, "has inputs=, and other tensors retain their gradients; name these too"
        )
    for proxy in wanted:
        grads.retain(recording, recording.lift(recording.stand_ins(proxy)))
    return wanted


def _proxies(recording: Recording, tensors: Any) -> list[TensorProxy]:
    if isinstance(tensors, Mapping):
        tensors = tensors.values()
    items = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if not all(isinstance(item, torch.Tensor) for item in items):
        raise refusal(recording, "is asked for the gradient of an edge of autograd's graph")
    return [recording.lift(item).proxy for item in items]


def _given(recording: Recording, given: Any) -> list[TensorProxy | None]:
    items = [given] if isinstance(given, torch.Tensor) else given
    return [None if item is None else recording.lift(item).proxy for item in items]


def _in_order(recording: Recording, reached: Sequence[TensorProxy]) -> list[TensorProxy]:
    """Some leaves in the order in which the program met them."""
    wanted = dict.fromkeys(reached)
    met = [proxy for proxy, _ in recording.lifted.values() if proxy in wanted]
    return list(dict.fromkeys((*met, *wanted)))


def _refuse_outside(recording: Recording, outs: Sequence[TensorProxy]) -> None:
    """Refuses a backward that would go on to what inputs were computed from outside of the program."""
    grown = [proxy for proxy, _ in recording.lifted.values() if is_grown(proxy)]
    nodes = recording.tape.nodes(outs) if grown else ()
    for proxy in grown:
        if proxy in outs or recording.tape.model(proxy).grad_fn in nodes:
            raise refusal(
                recording,
                f"comes to an input ({proxy.type_string}) that was computed outside of the program; detach that one, or "
                "compute it inside",
            )


def _memory(recording: Recording) -> set[Storage]:
    """The memory of the values so far."""
    return {
        leaf.storage
        for line in recording.bound_symbols
        for leaf in leaves((line.args, line.kwargs, line.output))
        if isinstance(leaf, TensorProxy)
    }


def _accumulate(
    recording: Recording,
    owner: Any,
    gradient: Any,
    known: set[Storage],
    *,
    create_graph: bool,
) -> None:
    """Adds a gradient to what is there, as autograd does.

    known: the memory that others have, a gradient in which is copied; this one's is theirs from here on.
    """
    grads.refuse_sparse(recording, gradient)
    held = grads.read(recording, owner)
    if held is None:
        grads.write(recording, owner, _kept(recording, owner.proxy, gradient, known))
    elif create_graph or not owner.proxy.meta.is_leaf:
        grads.write(recording, owner, recording.record(T.add, (held, gradient), {}))
    else:
        recording.record(T.add_, (held, gradient), {})


def _kept(recording: Recording, owner: TensorProxy, gradient: Any, known: set[Storage]) -> Any:
    """A gradient as it is kept: a tensor of its own, which lies in memory like its tensor."""
    meta, wanted = gradient.proxy.meta, owner.meta
    is_own = gradient.proxy.storage not in known
    known.add(gradient.proxy.storage)
    contiguous = contiguous_stride(wanted.shape)
    stride = wanted.stride if wanted.is_leaf and is_dense(wanted) else contiguous
    if is_own and all(
        size == 1 or one == other
        for size, one, other in zip(meta.shape, meta.stride, stride, strict=True)
    ):
        return gradient
    if stride == contiguous:
        return recording.record(T.clone, (gradient,), {"memory_format": torch.contiguous_format})
    with torch.no_grad():
        made = recording.record(torch.empty_like, (recording.stand_ins(owner),), {})
    recording.record(T.copy_, (made, gradient), {})
    return made


HANDLED: dict[Any, Any] = {T.backward: of_tensor, torch.autograd.backward: of_tensors}


def _unseen(recording: Recording, *args: Any, **kwargs: Any) -> None:
    with internals.DisableTorchFunction():
        of_tensors(recording, *args, **kwargs)


REPLACED = (torch.autograd, "backward", standing_in(torch.autograd.backward, _unseen))
"""Before PyTorch 2.11, function modes do not see it."""
