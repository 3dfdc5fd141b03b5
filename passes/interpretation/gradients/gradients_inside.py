"""Gradients inside: what `torch.autograd.grad` does in a program becomes lines like any others.

Before, in the user's program:

    y = x.sin()
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)

After, in the computation:

    t0 = torch.Tensor.sin(x)
    t1 = torch.Tensor.sum(t0)
    t2 = torch.ones_like(t1)
    t3 = torch.Tensor.expand(t2, [3])
    t4 = torch.cos(x)
    t5 = torch.mul(t3, t4)

They are recorded as calls of the program's: without `create_graph` under `torch.no_grad()`, with it so that gradients flow
through them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import Ref, tensor_arguments
from tracemill.compiler.body import NotCapturedError, Step
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.guards import are_leaves, check, have_no_hooks
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.settings import without_autocast
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import leaves, map_leaves
from tracemill.passes.interpretation.gradients.tape import WAY_ROUND, Found, Tape, is_like
from tracemill.passes.interpretation.mutation.memory import LARGEST_CONSTANT

_NOT_TOLD = (
    NotCapturedError,
    internals.DataDependentOutputException,
    internals.DynamicOutputShapeException,
)


class Recording(Protocol):
    """What these need of the interpreter."""

    bound_symbols: list[BoundSymbol]
    lifted: dict[int, tuple[TensorProxy, torch.Tensor]]
    unseen: set[TensorProxy]
    sizes: Sizes
    tape: Any
    differentiates: BoundSymbol | None

    def lift(self, tensor: torch.Tensor) -> Any:
        """The stand-in of a tensor."""
        ...

    def record(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records a call, and returns what it returns, with stand-ins for tensors."""
        ...

    def require_grad(self, proxy: TensorProxy) -> None:
        """Makes a tensor that requires no grad a leaf that does."""
        ...

    def stand_ins(self, output: Any) -> Any:
        """An output with the stand-ins of its proxies."""
        ...

    def open_line(self, bsym: BoundSymbol, lines: Sequence[BoundSymbol]) -> None:
        """Puts the lines that a line consists of in its place."""
        ...

    def fresh_name(self) -> str:
        """A name for a new value."""
        ...

    def at(self) -> str:
        """The user's line, for errors."""
        ...


def recorded(
    recording: Recording,
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    **options: Any,
) -> Any:
    """Records what `torch.autograd.grad` does; its gradients. Raises what it raises in eager."""

    def proxy(leaf: Any) -> Any:
        return recording.lift(leaf).proxy if isinstance(leaf, torch.Tensor) else leaf

    tape = tape_of(recording, "torch.autograd.grad")
    outs, ins, given = map_leaves(proxy, (outputs, inputs, grad_outputs))
    if not all(isinstance(each, TensorProxy) for each in (*outs, *ins)):
        raise refusal(recording, "is asked for the gradient of an edge of autograd's graph")
    _refuse_ways_around(recording, tape, outs, ins)
    return gradients(recording, outs, ins, given, options)


def tape_of(recording: Recording, asking: str) -> Tape:
    """The program on fakes; asking: what asks for gradients of it."""
    if recording.tape is None:
        recording.tape = Tape(
            recording.bound_symbols,
            recording.sizes,
            recording.fresh_name,
            recording.open_line,
            recording.unseen,
        )
    recording.tape.asking = asking
    return recording.tape


def gradients(
    recording: Recording,
    outs: Sequence[TensorProxy],
    ins: Sequence[TensorProxy],
    given: Any,
    options: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Records how gradients come from some values to others; their stand-ins, None where there is none."""
    tape = recording.tape
    given = _with_ones(recording, outs, given)
    wanted = _inputs_among(recording, ins)
    tape.gradients_of.update(wanted)
    _refuse_written_twins(recording)
    _refuse_hooks(recording, wanted)
    try:
        found = tape.gradients(outs, ins, given, options)
        with without_autocast(), torch.set_grad_enabled(bool(options["create_graph"])):
            return _Backward(recording, tape).recorded(found)
    except _NOT_TOLD as error:
        raise refusal(recording, f"cannot be told: {error}") from error


def _inputs_among(recording: Recording, proxies: Iterable[TensorProxy]) -> list[TensorProxy]:
    asked = set(proxies)
    return [proxy for proxy, _ in recording.lifted.values() if proxy in asked]


def _with_ones(recording: Recording, outs: Sequence[TensorProxy], given: Any) -> Any:
    """The cotangents, with ones for numbers that have none; of what else has none PyTorch knows what to say."""
    if given is None:
        given = (None,) * len(outs)
    if not isinstance(given, Sequence) or len(given) != len(outs):
        return given
    return tuple(
        recording.record(torch.ones_like, (out,), {}).proxy
        if each is None and out.requires_grad and out.meta.numel == 1 and not out.dtype.is_complex
        else each
        for out, each in zip(outs, given, strict=True)
    )


class _Backward:
    """A backward that becomes lines of the program.

    made: the stand-ins of its values, by the index of their ref.
    """

    def __init__(self, recording: Recording, tape: Tape) -> None:
        self._recording = recording
        self._tape = tape
        self._made: dict[int, Any] = {}

    def recorded(self, found: Found) -> tuple[Any, ...]:
        """Records the steps; the stand-ins of the gradients, None where there is none."""
        for step, differentiates in found.steps:
            self._record(step, differentiates)
        made = [
            None if each is None else (self._gradient(*each), each[1]) for each in found.gradients
        ]
        self._tape.go_on((pair[0].proxy, pair[1]) for pair in made if pair is not None)
        return tuple(None if pair is None else pair[0] for pair in made)

    def _record(self, step: Step, differentiates: BoundSymbol | None) -> None:
        recording = self._recording
        args, kwargs = map_leaves(self._value, (step.args, step.kwargs))
        recording.differentiates = differentiates
        try:
            output = recording.record(step.fn, args, kwargs)
        finally:
            recording.differentiates = None
        for ref, made in zip(leaves(step.output), leaves(output), strict=True):
            if type(ref) is Ref:
                self._made[ref.index] = made
        self._tape.recorded(step, recording.bound_symbols[-1], map_leaves(_proxy, output))

    def _value(self, leaf: Any) -> Any:
        """What stands in the program for a leaf of a step."""
        if type(leaf) is not Ref:
            return self._recording.sizes.number(leaf)
        if leaf.index in self._made:
            return self._made[leaf.index].proxy
        value = self._tape.value(leaf)
        while not isinstance(value, TensorProxy):
            if isinstance(value, torch.Tensor):
                made = self._made[leaf.index] = self._constant(value)
                return made.proxy
            for step in value:
                self._record(step, None)
            value = self._tape.value(leaf)
        return value

    def _constant(self, tensor: torch.Tensor) -> Any:
        """The stand-in of a tensor that PyTorch made of the program's numbers."""
        if tensor.numel() > LARGEST_CONSTANT:
            raise refusal(self._recording, "reads a tensor that PyTorch made of many numbers")
        settings = {"dtype": tensor.dtype, "device": tensor.device}
        return self._recording.record(torch.tensor, (tensor.tolist(),), settings)

    def _gradient(self, ref: Ref, fake: torch.Tensor) -> Any:
        """The stand-in of a gradient, which is what eager's is."""
        gradient = self._recording.stand_ins(self._value(ref))
        if fake.requires_grad and fake.is_leaf and not gradient.proxy.requires_grad:
            self._recording.require_grad(gradient.proxy)  # zeros for an input that was not used
        if not is_like(gradient.proxy, fake):
            raise refusal(
                self._recording,
                f"gives a {gradient.proxy.type_string!r}, which PyTorch does not differentiate as recorded",
            )
        return gradient


def _proxy(leaf: Any) -> Any:
    return getattr(leaf, "proxy", leaf)


def _refuse_written_twins(recording: Recording) -> None:
    """Refuses programs that write to an input which shares its memory with another: eager may tell of it, or not."""
    memory = Counter(proxy.storage for proxy, _ in recording.lifted.values())
    shared = {storage for storage, count in memory.items() if count > 1}
    for bsym in recording.bound_symbols if shared else ():
        if bsym.mutates and any(
            tensor.storage in shared for tensor in tensor_arguments(bsym.args, bsym.kwargs)
        ):
            raise refusal(recording, "follows a write to an input that shares memory with another")


def _refuse_ways_around(
    recording: Recording, tape: Tape, outs: Sequence[TensorProxy], ins: Iterable[TensorProxy]
) -> None:
    """Refuses gradients that may come to an input by another one, which was computed from it outside of the program."""
    grown = [proxy for proxy, _ in recording.lifted.values() if is_grown(proxy)]
    wanted = _inputs_among(recording, ins) if grown else ()
    pairs = [other for one in wanted for other in grown if one is not other]
    nodes = tape.nodes(outs) if pairs else ()
    for other in pairs:
        if tape.model(other).grad_fn in nodes:
            raise refusal(
                recording,
                f"is asked for the gradient of an input, which may also come by another one ({other.type_string}) that "
                "was computed outside of the program; detach that one, or compute it inside",
            )


def _refuse_hooks(recording: Recording, wanted: Iterable[TensorProxy]) -> None:
    """Refuses gradients of inputs that have hooks, which would be called with them."""
    asked = set(wanted)
    if not have_no_hooks(*(real for proxy, real in recording.lifted.values() if proxy in asked)):
        raise refusal(recording, "is asked for the gradient of a tensor that has hooks")


def checks(tape: Tape | None, tensors: Sequence[TensorProxy]) -> Iterator[BoundSymbol]:
    """The checks that the gradients of inputs come to them by the program alone."""
    wanted = [proxy for proxy in tensors if tape is not None and proxy in tape.gradients_of]
    leaves_now = [proxy for proxy in tensors if proxy.requires_grad and proxy.meta.is_leaf]
    for subject, ask, about in (
        ("leaves of autograd's graph", are_leaves, leaves_now),
        ("hooks on tensors", have_no_hooks, wanted),
    ):
        if wanted and about:
            yield check(subject, f"{{}}({', '.join('{}' for _ in about)})", ask, *about)


def is_grown(proxy: TensorProxy) -> bool:
    """Whether a tensor is the result of something, so that gradients go on from it."""
    return proxy.requires_grad and not proxy.meta.is_leaf


def refusal(recording: Recording, reason: str) -> UnsupportedError:
    """The error for gradients that cannot be told."""
    asking = recording.tape.asking
    return UnsupportedError(f"{asking} inside the program{recording.at()} {reason}; {WAY_ROUND}")
