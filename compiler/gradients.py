"""Gradients of fakes, also of those on a device that is not there.

Autograd's engine asks each device for its streams, so it refuses fakes of a GPU where there is none. The nodes of its graph
can be called without it: they are, newest first as by the engine, and gradients are summed, reduced and cast where it does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler.body import NotCapturedError
from tracemill.compiler.meta import memory_of
from tracemill.compiler.torch_internals import set_version

Gradient = torch.Tensor | None
Node = Any
"""A node of autograd's graph, whose own class says neither that it is called nor what a leaf's holds."""


def gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
) -> Sequence[Gradient]:
    """The gradient of each input, None where none flows to it; autograd's graph stays."""
    if all(_is_there(tensor.device) for tensor in (*outputs, *inputs)):
        return torch.autograd.grad(
            outputs, inputs, cotangents, retain_graph=True, allow_unused=True
        )
    return walked(outputs, inputs, cotangents)


def asked(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Any,
    options: Mapping[str, Any],
) -> Sequence[Gradient]:
    """What `torch.autograd.grad` gives for these arguments and options; raises what it raises."""
    if all(_is_there(tensor.device) for tensor in (*outputs, *inputs)):
        return torch.autograd.grad(outputs, inputs, cotangents, **options)
    return asked_without_engine(outputs, inputs, cotangents, options)


def asked_without_engine(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Any,
    options: Mapping[str, Any],
) -> Sequence[Gradient]:
    """The same without the engine: the graph stays whole, so that a second question is no error.

    Raises NotCapturedError for a batch of cotangents.
    """
    if options["is_grads_batched"]:
        raise NotCapturedError("a batch of cotangents is for autograd's engine")
    given = cotangents if isinstance(cotangents, Sequence) else [cotangents] * len(outputs)
    starts = [_cotangent(*each) for each in zip(range(len(outputs)), outputs, given, strict=True)]
    found = walked(outputs, inputs, starts, create_graph=bool(options["create_graph"]))
    if options["materialize_grads"]:
        pairs = zip(found, inputs, strict=True)
        return [torch.zeros_like(tensor) if made is None else made for made, tensor in pairs]
    unused = [position for position, made in enumerate(found) if made is None]
    if unused and not options["allow_unused"]:
        _raise_for_unused(unused[0])
    return found


def _raise_for_unused(position: int) -> None:
    """Raises what PyTorch raises for an input that no output depends on; versions word it otherwise."""
    with torch.enable_grad():
        used, other = (torch.zeros((), requires_grad=True) for _ in range(2))
        torch.autograd.grad(used.clone(), [*[used] * position, other])


def _cotangent(position: int, out: torch.Tensor, given: Gradient) -> torch.Tensor:
    """The cotangent of an output, which is one where none is given."""
    if not out.requires_grad:
        raise RuntimeError(
            f"element {position} of tensors does not require grad and does not have a grad_fn"
        )
    if given is not None:
        return given
    if out.numel() != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    return torch.ones_like(out, memory_format=torch.preserve_format)


def _is_there(device: torch.device) -> bool:
    return device.type in ("cpu", "meta") or torch.get_device_module(device).is_available()


def walked(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    *,
    create_graph: bool = False,
) -> list[Gradient]:
    """The same without the engine; raises TypeError for a graph with a node that is a Python function."""
    nodes = _newest_first([out.grad_fn for out in outputs if out.grad_fn is not None])
    leaves = {id(node.variable): node for node in nodes if hasattr(node, "variable")}

    def edge(tensor: torch.Tensor) -> tuple[Node, int]:
        return tensor.grad_fn or leaves.get(id(tensor)), tensor.output_nr

    starts, ends = list(map(edge, outputs)), list(map(edge, inputs))
    leading = _leading(nodes, {node for node, _ in ends if node is not None})
    arrived: dict[Node, list[Gradient]] = {node: [None] * len(_inputs(node)) for node in nodes}

    def bring(edges: Sequence[tuple[Node, int]], brought: Sequence[Gradient]) -> None:
        fitting = [
            None if gradient is None or node is None else _fitted(gradient, _inputs(node)[slot])
            for (node, slot), gradient in zip(edges, brought, strict=True)
        ]
        for (node, slot), gradient in zip(edges, fitting, strict=True):
            if gradient is not None:
                known = arrived[node][slot]
                arrived[node][slot] = gradient if known is None else known + gradient

    with torch.set_grad_enabled(create_graph):
        bring(starts, cotangents)
        for node in filter(leading.__contains__, nodes):
            made: Any = node(*arrived[node])
            bring(node.next_functions, made if isinstance(made, tuple) else (made,))
    return [arrived[node][slot] if node in arrived else None for node, slot in ends]


def kept_by(outputs: Iterable[torch.Tensor], tensors: Iterable[torch.Tensor]) -> Iterator[bool]:
    """Whether the backward from some outputs checks that nobody has written to a tensor, for each of the tensors."""
    kept: dict[Any, list[torch.Tensor]] = {}
    for saved in _saved(outputs):
        kept.setdefault(memory_of(saved), []).append(saved)
    return (_tells_writes(tensor, kept.get(memory_of(tensor), ())) for tensor in tensors)


def _tells_writes(tensor: torch.Tensor, kept: Sequence[torch.Tensor]) -> bool:
    """Whether one of some tensors in the same memory counts the writes to a tensor: a view may have a count of its own."""
    if not kept or tensor.is_inference():
        return bool(kept)
    before = [other._version for other in kept]
    count = tensor._version
    torch.autograd.graph.increment_version(tensor)
    try:
        return any(other._version != old for other, old in zip(kept, before, strict=True))
    finally:
        set_version((tensor,), (count,))


def _saved(outputs: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What the graph of some tensors keeps for its backward."""
    for node in _newest_first([out.grad_fn for out in outputs if out.grad_fn is not None]):
        if hasattr(node, "saved_tensors"):
            yield from (tensor for tensor in node.saved_tensors if tensor is not None)
        for name in dir(node):
            if name.startswith("_saved_"):
                yield from _tensors(getattr(node, name))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    items = value if isinstance(value, (tuple, list)) else (value,)
    return (item for item in items if isinstance(item, torch.Tensor))


def nodes_of(outputs: Iterable[torch.Tensor]) -> list[Node]:
    """The nodes of the graph of some tensors, newest first."""
    return _newest_first([out.grad_fn for out in outputs if out.grad_fn is not None])


def _newest_first(roots: Sequence[Node]) -> list[Node]:
    """The nodes that can be reached, each before those that its results go to."""
    found: dict[Node, None] = {}
    coming = list(roots)
    while coming:
        node = coming.pop()
        if node not in found:
            found[node] = None
            coming.extend(_following(node))
    return sorted(found, key=_number, reverse=True)


def _number(node: Any) -> int:
    """Autograd's number of a node: the newer, the greater; those of leaves, which nothing follows, are the greatest."""
    return node._sequence_nr()


def _following(node: Node) -> Iterator[Node]:
    return (following for following, _ in node.next_functions if following is not None)


def _leading(nodes: Sequence[Node], ends: Collection[Node]) -> set[Node]:
    """The nodes whose results come to one of some ends."""
    leading: set[Node] = set()
    for node in reversed(nodes):
        if any(following in ends or following in leading for following in _following(node)):
            leading.add(node)
    return leading


def _inputs(node: Node) -> Sequence[Any]:
    """What autograd recorded of the tensors that a node takes the gradients of."""
    return node._input_metadata


def _fitted(gradient: torch.Tensor, recorded: Any) -> torch.Tensor:
    """A gradient as autograd recorded its tensor: summed over what was broadcast, cast, a single number moved."""
    if tuple(gradient.shape) != tuple(recorded.shape):
        gradient = gradient.sum_to_size(recorded.shape)
    if gradient.is_complex() and not recorded.dtype.is_complex:
        gradient = gradient.real
    if gradient.dtype != recorded.dtype:
        gradient = gradient.to(recorded.dtype)
    return gradient if gradient.device == recorded.device else gradient.to(recorded.device)
