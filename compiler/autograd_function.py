"""How a forward and its backward run as one torch.autograd.Function."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.arrangement import arranger, unless_expanded
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.gates import Way, gated, is_open, with_hooks_apart
from tracemill.compiler.proxy import NumberProxy, Proxy, TensorProxy
from tracemill.compiler.symbolic import Expression
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.values import leaves

_is_view = torch.Tensor._is_view
is_grad_enabled = torch.is_grad_enabled


class Part(NamedTuple):
    """A part of a backward.

    defined: which outputs have a cotangent. ends: positions of outputs whose gradients from other outputs go no further.
    to_ends: whether these gradients are what it is for.
    """

    defined: tuple[bool, ...]
    ends: tuple[int, ...] = ()
    to_ends: bool = False


@dataclass(eq=False)
class Backwards:
    """The backwards of one specialisation, one for each set of outputs that have a cotangent.

    cotangents: a proxy like each. whole: the backward for all of them. elementwise: whether it reads them element by
    element, so that expanded numbers will do. make: the backward for some. again: the program as eager runs it, for
    gradients of gradients; raises UnsupportedError where it cannot. sources: for each output the positions of the others
    that it is computed from.
    """

    cotangents: tuple[TensorProxy, ...]
    whole: Callable[..., Any]
    elementwise: bool
    make: Callable[[Part], Callable[..., Any]]
    again: Callable[[], Callable[..., Any]]
    sources: tuple[tuple[int, ...], ...] = ()
    _made: dict[Part, Callable[..., Any]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def some(self, part: Part) -> Callable[..., Any]:
        """A part of the backward, made on first use."""
        with self._lock:
            known = self._made.get(part)
            if known is None:
                known = self._made[part] = self.make(part)
            return known


def bare(trace: Trace) -> Callable[..., Any]:
    """The trace's function without its `no_grad`: autograd is off already where it is called."""
    function = trace.callable()
    return getattr(function, "__wrapped__", function)


def differentiable(program: Program, backwards: Backwards) -> Callable[..., Any]:
    """The function from the computation's inputs to the program's outputs, with gradients."""
    shape = _Shape(program.computation)
    function = _function(bare(program.computation), backwards, shape)
    apply: Callable[..., Any] = function.apply  # type: ignore[attr-defined]
    if not torch.is_grad_enabled():  # the program enables grad itself
        apply = torch.enable_grad()(apply)
    if shape.is_one_tensor:
        return apply
    single, build = len(shape.outs) == 1, shape.build
    picked = shape.differentiable
    sources = {
        picked[out]: [picked[other] for other in others]
        for out, others in enumerate(backwards.sources)
        if others
    }
    if sources:
        way = _way(backwards, picked)
        order = dict(sorted(sources.items(), key=lambda item: len(item[1])))

        def run_gated(*inputs: Any) -> Any:
            return build(gated(apply(*inputs), order, way), inputs)

        return run_gated

    def run(*inputs: Any) -> Any:
        made = apply(*inputs)
        return build((made,) if single else made, inputs)

    return run


def _way(backwards: Backwards, picked: Sequence[int]) -> Way:
    """The gradients of the outputs that an output is computed from, of a program's node."""
    arrangers = tuple(map(arranger, backwards.cotangents))
    places = {position: out for out, position in enumerate(picked)}

    def way(node: Any, position: int, cotangent: torch.Tensor) -> Sequence[torch.Tensor | None]:
        out = places[position]
        defined = tuple(i == out for i in range(len(places)))
        found = backwards.some(Part(defined, backwards.sources[out], True))
        left: _Left | None = getattr(node, "left", None)
        saved = node.saved_tensors if left is None else tuple(each for each, _ in left.saved)
        return found((saved, getattr(node, "others", ())), (arrangers[out](cotangent),))

    return way


class _Shape:
    """What a computation returns: which tensors are new, which are inputs, which get cotangents."""

    def __init__(self, computation: Trace) -> None:
        self.result, (saved, objects) = computation.output
        self.saves_objects = bool(objects)
        positions: dict[Any, int] = {proxy: i for i, proxy in enumerate(computation.args)}
        found = [leaf for leaf in leaves(self.result) if isinstance(leaf, TensorProxy)]
        self.outs = tuple(dict.fromkeys(proxy for proxy in found if proxy not in positions))
        self.alone = self._alone([*self.outs, *positions])
        self.is_one_tensor = isinstance(self.result, Proxy) and self.result in self.outs
        self.differentiable = tuple(i for i, out in enumerate(self.outs) if out.requires_grad)
        self.constant = tuple(i for i, out in enumerate(self.outs) if not out.requires_grad)
        self.wanted = tuple(
            i for i, arg in enumerate(computation.args) if getattr(arg, "requires_grad", False)
        )
        places = {proxy: i for i, proxy in enumerate(saved)}
        self.saved_inputs = tuple((i, places[p]) for p, i in positions.items() if p in places)
        self.other_inputs = tuple(
            i for p, i in positions.items() if p not in places and isinstance(p, TensorProxy)
        )
        self.numbers = tuple(i for p, i in positions.items() if isinstance(p, NumberProxy))
        self.objects = [p.name for p in positions if not isinstance(p, (TensorProxy, NumberProxy))]
        self._arithmetic = {
            leaf: leaf.function() for leaf in leaves(self.result) if type(leaf) is Expression
        }
        self._args = positions

    def _alone(self, seen: Sequence[Any]) -> frozenset[int]:
        """The new tensors that share no memory with another one that the caller has."""
        count = Counter(proxy.storage for proxy in seen if isinstance(proxy, TensorProxy))
        return frozenset(i for i, out in enumerate(self.outs) if count[out.storage] == 1)

    def take(self, result: Any) -> tuple[torch.Tensor, ...]:
        """The new tensors in what the computation returned, in order."""
        if self.is_one_tensor:
            return (result,)
        found: dict[Any, torch.Tensor] = dict(_pairs(self.result, result))
        return tuple(found[out] for out in self.outs)

    def build(self, made: Sequence[torch.Tensor], inputs: Sequence[Any]) -> Any:
        """The program's result from the new tensors and its inputs."""
        by_proxy: dict[Any, torch.Tensor] = dict(zip(self.outs, made, strict=True))
        args = self._args

        def leaf(value: Any) -> Any:
            if type(value) is Expression:
                operands = [inputs[args[operand]] for operand in value.operands]
                return self._arithmetic[value](*operands)
            if not isinstance(value, Proxy):
                return value
            return inputs[args[value]] if value in args else by_proxy[value]

        return _filled(self.result, leaf)


def _pairs(structure: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """The proxies of a structure, each with its value, which may itself be a dict or a list that is handed through."""
    if isinstance(structure, Proxy):
        yield structure, value
    elif isinstance(structure, (tuple, list)):
        for item, part in zip(structure, value, strict=True):
            yield from _pairs(item, part)
    elif isinstance(structure, dict):
        for key, item in structure.items():
            yield from _pairs(item, value[key])


def _filled(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A structure of tuples, lists and dicts made anew: the caller may change it."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_filled(item, leaf) for item in value])
    if kind is dict:
        return {key: _filled(item, leaf) for key, item in value.items()}
    return leaf(value)


def _function(
    forward_of: Callable[..., Any], backwards: Backwards, shape: _Shape
) -> type[internals.SingleLevelFunction]:
    """The class that autograd calls. What it decides here, it does not decide at each call."""
    take, constant, alone = shape.take, shape.constant, shape.alone
    others_of, numbers, has_others = shape.other_inputs, shape.numbers, shape.saves_objects
    whole, picked = backwards.whole, shape.differentiable
    arrangers = tuple(map(arranger, backwards.cotangents))
    one = arrangers[0] if len(arrangers) == 1 else None
    if one is not None and backwards.elementwise:
        one = unless_expanded(one)
    all_differentiable = len(picked) == len(shape.outs)
    one_tensor = shape.is_one_tensor
    inner = tuple(sorted({other for others in backwards.sources for other in others}))

    class Compiled(internals.SingleLevelFunction):
        """The forward and the backward of one specialisation."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            result, (tensors, others) = forward_of(*inputs)
            ctx.save_for_backward(*tensors)
            ctx.set_materialize_grads(False)
            if has_others:
                ctx.others = others
            if others_of:
                ctx.inputs = [(weakref.ref(inputs[i]), _version(inputs[i])) for i in others_of]
            if numbers:
                ctx.numbers = [inputs[i] for i in numbers]
            if one_tensor and not result._is_view():
                return result
            outs = take(result)
            if any(map(_is_view, outs)):
                outs = _without_views(outs, alone)
            if constant:
                ctx.mark_non_differentiable(*[outs[i] for i in constant])
            return outs[0] if len(outs) == 1 else outs

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            given = cotangents if all_differentiable else [cotangents[i] for i in picked]
            if is_grad_enabled():
                return _again(ctx, given, backwards.again(), shape)
            others = ctx.others if has_others else ()
            if one is not None and given[0] is not None:
                return whole((_taken(ctx), others), (one(given[0]),))
            arranged = [
                arrange(cotangent)
                for arrange, cotangent in zip(arrangers, given, strict=True)
                if cotangent is not None
            ]
            ends = inner if inner and is_open(ctx) else ()
            if len(arranged) == len(given) and not ends:
                return whole((_taken(ctx), others), arranged)
            if not arranged:
                return (None,) * len(ctx.needs_input_grad)
            defined = tuple(cotangent is not None for cotangent in given)
            part = backwards.some(Part(defined, ends))
            return part((_shared(ctx, defined), others), arranged)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise UnsupportedError(
                "forward-mode AD reached a jitted function that records gradients; call it on tensors that do not "
                "require grad, or call the function without jit"
            )

    if len(picked) > 1:
        with_hooks_apart(Compiled)
    return Compiled


def _without_views(outs: Sequence[torch.Tensor], alone: frozenset[int]) -> tuple[torch.Tensor, ...]:
    """Outputs that are views to nobody else (that of a `linear`) as plain tensors: autograd forbids writes to views."""
    return tuple(
        out.detach() if i in alone and out._is_view() else out for i, out in enumerate(outs)
    )


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@dataclass(eq=False)
class _Left:
    """What was saved, for the outputs that no backward has used yet; each tensor with its version."""

    unused: list[bool]
    saved: tuple[tuple[torch.Tensor, int], ...]


def _shared(ctx: Any, defined: tuple[bool, ...]) -> tuple[torch.Tensor, ...]:
    """The saved tensors for a backward from some outputs, kept for one from the others, as eager's own graphs would."""
    left: _Left | None = getattr(ctx, "left", None)
    if left is None:
        saved = tuple(  # an output holds its node, and so must not be held by it
            (tensor.detach() if tensor.grad_fn is ctx else tensor, _version(tensor))
            for tensor in ctx.saved_tensors
        )
        left = ctx.left = _Left([True] * len(defined), saved)
    elif not any(there and unused for there, unused in zip(defined, left.unused, strict=True)):
        return ctx.saved_tensors  # has its own error for what was used before
    left.unused = [unused and not there for there, unused in zip(defined, left.unused, strict=True)]
    if not any(left.unused):
        ctx.left = None
    for tensor, version in left.saved:
        if _version(tensor) != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{list(tensor.shape)} is at version {tensor._version}; expected version {version} instead"
            )
    return tuple(tensor for tensor, _ in left.saved)


def _taken(ctx: Any) -> tuple[Any, ...]:
    """The saved tensors, which the graph forgets unless it is retained: the backward frees them as it goes."""
    saved = ctx.saved_tensors
    ctx.maybe_clear_saved_tensors()
    return saved


def _again(ctx: Any, cotangents: Sequence[Any], program: Callable[..., Any], shape: _Shape) -> Any:
    """Gradients that can be differentiated: the program runs again, line by line under autograd."""
    inputs = _inputs(ctx, shape)
    for i in shape.wanted:
        inputs[i] = inputs[i].view_as(
            inputs[i]
        )  # hooks on the inputs themselves fire once, not here
    outs = shape.take(program(*inputs))
    there = [
        (outs[i], c) for i, c in zip(shape.differentiable, cotangents, strict=True) if c is not None
    ]
    found = torch.autograd.grad(
        [out for out, _ in there],
        [inputs[i] for i in shape.wanted],
        [cotangent for _, cotangent in there],
        create_graph=True,
        allow_unused=True,
    )
    gradients: list[Any] = [None] * len(inputs)
    for i, gradient in zip(shape.wanted, found, strict=True):
        gradients[i] = gradient
    return tuple(gradients)


def _inputs(ctx: Any, shape: _Shape) -> list[Any]:
    if shape.objects:
        raise UnsupportedError(
            f"create_graph=True runs the jitted function's program again, which needs "
            f"{', '.join(shape.objects)} as it was; call the function without jit for gradients of gradients"
        )
    saved = ctx.saved_tensors
    places = (shape.saved_inputs, shape.other_inputs, shape.numbers)
    inputs: list[Any] = [None] * sum(map(len, places))
    for place, i in enumerate(shape.numbers):
        inputs[i] = ctx.numbers[place]
    for i, place in shape.saved_inputs:
        inputs[i] = saved[place]
    for place, i in enumerate(shape.other_inputs):
        reference, version = ctx.inputs[place]
        tensor = reference()
        if tensor is None or _version(tensor) != version:
            gone = "no longer exists" if tensor is None else "was modified in place"
            raise UnsupportedError(
                f"create_graph=True runs the jitted function's program again, but its input {i} {gone} since the call; "
                "keep the inputs until the backward, or call the function without jit"
            )
        inputs[i] = tensor
    return inputs
