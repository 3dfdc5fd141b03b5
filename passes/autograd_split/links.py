"""Links: how one line of the forward is differentiated.

A link is asked for its backward when the chain reaches it, and afterwards for the lines that stand in the forward: the
line itself, or, where the backward reads values from inside, the operations that it consists of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from tracemill.compiler.answer import NewTensor, Ref, tensor_arguments
from tracemill.compiler.body import NotCapturedError, Step
from tracemill.compiler.bound_body import BoundBody
from tracemill.compiler.derivative import Backward, Cotangents, Derivative, Derivatives
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.meta import Storage
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import leaves, proxies

UNNAMED = ""
"""The name of values until all of a program's are known, so that they can be numbered in order."""

Gradients = Mapping[TensorProxy, TensorProxy]


class Link(Protocol):
    """One line of the forward that gradients flow through.

    bsym: the line. outputs: its differentiable outputs. wanted: its arguments that get a gradient.
    """

    bsym: BoundSymbol
    outputs: tuple[TensorProxy, ...]
    wanted: tuple[TensorProxy, ...]

    def backward(
        self,
        cotangents: Mapping[TensorProxy, TensorProxy],
        arrived: dict[TensorProxy, TensorProxy],
        emit: Callable[[BoundSymbol], object],
    ) -> Gradients:
        """Emits the lines that differentiate it for these cotangents of its outputs.

        arrived: the gradients that later lines gave; those that it adds its own to, in eager's order, it takes out.
        """
        ...

    def saved(self, outputs: Iterable[TensorProxy]) -> Collection[TensorProxy] | None:
        """The line's values that eager keeps for the backward from some outputs; None for those that the backward reads."""
        ...

    def also_needed(self, subsets: Iterable[Sequence[TensorProxy]]) -> Iterable[Proxy]:
        """What the forward must keep in case that only some outputs have a cotangent."""
        ...

    def forward(self) -> Sequence[BoundSymbol]:
        """The lines that stand in the forward."""
        ...


def unnamed(spec: NewTensor, storage: Storage, offset: int) -> TensorProxy:
    """A value whose name is not known yet."""
    made = TensorProxy("t", meta=spec.meta, storage=storage, storage_offset=offset)
    made._name = UNNAMED
    return made


def _plain(cotangent: TensorProxy) -> TensorProxy:
    meta = cotangent.meta.replace(requires_grad=False, is_leaf=True)
    return cotangent.changed("cotangent", meta=meta, storage=Storage(meta.nbytes))


class OracleLink:
    """A link whose derivative the oracle tells.

    free: the program's inputs, which require grad also where autograd is off. sizes: the program's; where the derivative
    was told for other ones, that is for the sizes of now, all sizes that it meets must stay.
    """

    def __init__(
        self, bsym: BoundSymbol, derivative: Derivative, free: set[Proxy], sizes: Sizes
    ) -> None:
        self.bsym = bsym
        self._sizes = sizes
        self._derivative = derivative
        self._body = derivative.body
        tensors = tensor_arguments(bsym.args, bsym.kwargs)
        outs = bsym.flat_outs
        self._kept = frozenset(i for i, tensor in enumerate(tensors) if tensor in free)
        self._positions: dict[TensorProxy, int] = {outs[i]: i for i in derivative.differentiable}
        self.outputs: tuple[TensorProxy, ...] = tuple(self._positions)
        self.wanted = tuple(tensors[position] for position in derivative.wanted)
        self._tensors = tensors
        self._bound = BoundBody(self._body, sizes, lambda: UNNAMED)
        self._values = self._bound.values
        for position, tensor in enumerate(tensors):
            self._bound.take(Ref(position), tensor)
        for ref, out in zip(derivative.outputs, outs, strict=True):
            if ref is not None:
                self._bound.take(ref, out)
        self._outside = set(self._values)
        self._opened = False
        self._settled = False
        self._given = False

    def backward(
        self,
        cotangents: Mapping[TensorProxy, TensorProxy],
        arrived: dict[TensorProxy, TensorProxy],
        emit: Callable[[BoundSymbol], object],
    ) -> Gradients:
        told = self._told(cotangents)
        summed = [
            position
            for position, ref in told.gradients.items()
            if ref is not None and self._tensors[position] in arrived and self._body.is_sum(ref)
        ]
        before = {position: arrived[self._tensors[position]] for position in summed}
        if before:
            told = self._told(cotangents, before)
        views = self._views(told, settle=True)
        values = dict(self._values)
        given = [cotangents[out] for out in self._positions if out in cotangents]
        for ref, cotangent in zip(told.cotangents, (*given, *before.values()), strict=True):
            values[ref.index] = cotangent
            self._bound.lies(ref, cotangent.storage)
        steps = (*views, *told.steps)
        made = [self._bound.line(step, self.bsym, values, self.bsym) for step in steps]
        for position in before:
            del arrived[self._tensors[position]]
        for line in made:
            emit(line)
        return {
            self._tensors[position]: values[ref.index]
            for position, ref in told.gradients.items()
            if ref is not None
        }

    def saved(self, outputs: Iterable[TensorProxy]) -> Collection[TensorProxy] | None:
        kept = self._derivative.kept(self._positions[out] for out in outputs)
        values = (*self._tensors, *self.bsym.flat_outs)
        return {value for value, is_kept in zip(values, kept, strict=True) if is_kept}

    def _told(
        self,
        cotangents: Mapping[TensorProxy, TensorProxy],
        before: Mapping[int, TensorProxy] | None = None,
    ) -> Backward:
        before = before or {}
        if self._derivative.sizes.is_symbolic is not self._sizes.is_symbolic:
            self._sizes.specialise(*cotangents.values(), *before.values())
        asked: Cotangents = tuple(
            (position, _plain(cotangents[out]))
            for out, position in self._positions.items()
            if out in cotangents
        )
        arrived = tuple((position, _plain(cotangent)) for position, cotangent in before.items())
        return self._derivative.backward(asked, arrived)

    def _views(self, told: Backward, *, settle: bool) -> list[Step]:
        """The views to make again in the backward; opens the line where it takes more than views."""
        steps: list[Step] = []
        for ref in told.needs:
            made = self._body.regeneration(ref, self._outside)
            if made is None:
                self._open()
                return []
            steps.extend(step for step in made if step not in steps)
        if self._opened:
            return []
        if settle and not self._settled and not self._derivative.same_without_grad(self._kept):
            self._open()
            return []
        self._settled = self._settled or settle
        return steps

    def _open(self) -> None:
        if self._opened:
            return
        if self._given:
            raise UnsupportedError(
                f"the backward of {self.bsym.sym.name}{at(self.bsym)} needs values that were not saved, because only "
                "some of the program's outputs have a cotangent; use all of its outputs that require grad"
            )
        self._opened = self._settled = True
        self._lines = [self._bound.line(step, self.bsym) for step in self._derivative.steps]

    def also_needed(self, subsets: Iterable[Sequence[TensorProxy]]) -> Iterable[Proxy]:
        found: dict[Proxy, None] = {}
        for subset in subsets:
            told = self._told({out: out for out in subset})
            steps = (*self._views(told, settle=False), *told.steps)
            numbers = [self._sizes.number(leaf) for step in steps for leaf in leaves(step.args)]
            found.update(dict.fromkeys(proxies(numbers)))
            read = [ref for step in told.steps for ref in step.inputs]
            sources = [
                source
                for ref in told.needs
                for step in self._body.regeneration(ref, self._outside) or ()
                for source in step.inputs
            ]
            found.update(
                (self._values[r.index], None) for r in (*read, *sources) if r.index in self._values
            )
        return found

    def forward(self) -> Sequence[BoundSymbol]:
        self._given = True
        return self._lines if self._opened else [self.bsym]


def at(bsym: BoundSymbol) -> str:
    """Where a line comes from, for messages."""
    return "" if bsym.source is None else f" at {bsym.source.file}:{bsym.source.line}"


def oracle_link(
    bsym: BoundSymbol, free: set[Proxy], sizes: Sizes, *derivatives: Derivatives
) -> OracleLink | None:
    """The link of a line whose derivative PyTorch tells on fakes, or None.

    derivatives: who is asked, one after another. A line whose derivative is told only for the sizes of now fixes them.
    """
    impl = bsym.sym.impl
    if impl is None:
        return None
    for told in dict.fromkeys(derivatives):
        try:
            derivative = told.ask(impl, bsym.args, bsym.kwargs)
        except NotCapturedError:
            continue
        if told.sizes.is_symbolic is not sizes.is_symbolic:
            sizes.specialise(bsym.args, bsym.kwargs, bsym.output)
        return OracleLink(bsym, derivative, free, sizes)
    return None
