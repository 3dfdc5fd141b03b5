"""The chain rule over a trace: from its outputs' cotangents to its arguments' gradients, line by line in reverse."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import torch

from tracemill.compiler.answer import tensor_arguments
from tracemill.compiler.body import NotCapturedError
from tracemill.compiler.derivative import DERIVATIVES, derivatives_for
from tracemill.compiler.errors import MutationError, UnsupportedError
from tracemill.compiler.meta import DecidedByDataError
from tracemill.compiler.module_hooks import Hooked
from tracemill.compiler.names import Names
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.compiler.trace import Trace
from tracemill.passes.autograd_split import overwritten
from tracemill.passes.autograd_split.halves import distinct_tensors
from tracemill.passes.autograd_split.hooked import HookedLink
from tracemill.passes.autograd_split.links import UNNAMED, Gradients, Link, at, oracle_link, unnamed
from tracemill.passes.autograd_split.opaque import OpaqueLink
from tracemill.passes.autograd_split.own_vjp import OwnVjpLink
from tracemill.passes.autograd_split.slices import together

MOST_CLASSES = 4
"""Of how many kinds the outputs of a line may be, by what depends on them, for all their subsets to be looked at."""


class Chained(NamedTuple):
    """A backward as lines: from the cotangents of some outputs to a gradient, or None, for each argument.

    met: the gradients of outputs that it was asked to end at.
    """

    cotangents: tuple[TensorProxy, ...]
    lines: tuple[BoundSymbol, ...]
    gradients: tuple[TensorProxy | None, ...]
    met: Mapping[TensorProxy, TensorProxy]


class Derivation:
    """A trace and how each of its lines is differentiated; gives a backward for any set of cotangents.

    outputs: the tensors of the trace's output that a cotangent can come to, each once. kept: what the forward saves for
    backwards with fewer cotangents.
    """

    def __init__(self, trace: Trace, sizes: Sizes) -> None:
        self.trace = trace
        self._sizes = sizes
        self._derivatives = derivatives_for(sizes)
        given = set(trace.args)
        self._known = set(trace.values())
        self._free = {proxy for proxy in given if getattr(proxy, "requires_grad", False)}
        self.outputs = tuple(
            out
            for out in distinct_tensors(trace.output)
            if out.requires_grad and out not in given and not out.meta.is_leaf
        )
        self.kept: tuple[Proxy, ...] = ()
        self._links: dict[int, Link] = {}
        self._arrived: dict[object, tuple[TensorProxy | None, ...]] = {}
        if self.outputs:
            for bsym in trace.bound_symbols:
                _refuse_writes(bsym)

    def backward(
        self, defined: Sequence[TensorProxy], ends: Collection[TensorProxy] = ()
    ) -> Chained:
        """The backward for cotangents of these outputs; what it makes has no name yet.

        ends: outputs whose gradients from other outputs go no further.
        """
        self._arrived.clear()
        met: dict[TensorProxy, TensorProxy] = {}
        starts = {out: self._cotangent(out) for out in defined}
        lines: list[BoundSymbol] = []
        arrived: dict[TensorProxy, TensorProxy] = dict(starts)
        with torch.no_grad():
            for bsym in reversed(self.trace.bound_symbols):
                outs = [out for out in _made(bsym) if out in arrived]
                if not outs:
                    continue
                self._sizes.line = bsym
                cotangents = {out: arrived.pop(out) for out in outs}
                if not _leads_on(bsym):
                    continue
                held = {end: arrived.pop(end) for end in ends if end in arrived}
                gradients = self._differentiate(bsym, cotangents, arrived, lines)
                arrived.update(held)
                for tensor, gradient in gradients.items():
                    into = met if tensor in ends else arrived
                    known = into.get(tensor)
                    into[tensor] = (
                        gradient if known is None else self._sum(known, gradient, bsym, lines)
                    )
        self._sizes.line = None
        gradients = tuple(
            arrived.get(arg) if isinstance(arg, TensorProxy) and arg in self._free else None
            for arg in self.trace.args
        )
        return Chained(tuple(starts.values()), tuple(lines), gradients, met)

    def sources(self) -> tuple[tuple[int, ...], ...]:
        """For each output the positions of the others that it is computed from."""
        bits = {out: 1 << position for position, out in enumerate(self.outputs)}
        found: dict[TensorProxy, int] = {}
        for bsym in self.trace.bound_symbols if len(bits) > 1 else ():
            link = self._links.get(id(bsym))
            if link is not None:
                reached = 0
                for tensor in link.wanted:
                    reached |= found.get(tensor, 0) | bits.get(tensor, 0)
                found.update(dict.fromkeys(link.outputs, reached))
        return tuple(
            tuple(i for i in range(len(bits)) if found.get(out, 0) >> i & 1) for out in self.outputs
        )

    def _differentiate(
        self,
        bsym: BoundSymbol,
        cotangents: dict[TensorProxy, TensorProxy],
        arrived: dict[TensorProxy, TensorProxy],
        lines: list[BoundSymbol],
    ) -> Gradients:
        made: list[BoundSymbol] = []
        link, gradients = self._differentiated(bsym, cotangents, arrived, made)
        made = together(made, self._sizes)
        if bsym.overwritten:
            made = overwritten.read(bsym, made, self._known, link.saved(cotangents))
        lines += made
        return gradients

    def _differentiated(
        self,
        bsym: BoundSymbol,
        cotangents: dict[TensorProxy, TensorProxy],
        arrived: dict[TensorProxy, TensorProxy],
        made: list[BoundSymbol],
    ) -> tuple[Link, Gradients]:
        """The gradients of a line as PyTorch tells them, or else as autograd finds them at each call."""
        for link in self._told(bsym):
            if not cotangents.keys() <= set(link.outputs):
                break
            try:
                return link, link.backward(cotangents, arrived, made.append)
            except (NotCapturedError, DecidedByDataError):
                made.clear()
        link = self._leave_to_autograd(bsym, cotangents)
        return link, link.backward(cotangents, arrived, made.append)

    def _told(self, bsym: BoundSymbol) -> Iterator[Link]:
        """The links of a line: for every size, then for the sizes of now."""
        link = self._links.get(id(bsym))
        if link is None:
            link = self._links[id(bsym)] = self._link(bsym)
        yield link
        if self._sizes.is_symbolic:
            link = oracle_link(bsym, self._free, self._sizes, DERIVATIVES)
            if link is not None:
                self._links[id(bsym)] = link
                yield link

    def _link(self, bsym: BoundSymbol) -> Link:
        if isinstance(bsym.sym, Hooked):
            return HookedLink(bsym, self._arrived, self._sizes)
        if bsym.sym.vjp is not None:
            return OwnVjpLink(bsym)
        link = oracle_link(bsym, self._free, self._sizes, self._derivatives, DERIVATIVES)
        return link or OpaqueLink(bsym, self._sizes)

    def _cotangent(self, out: TensorProxy) -> TensorProxy:
        proxy = self._sizes.cotangent(out)
        proxy._name = UNNAMED
        return proxy

    def _sum(
        self, one: TensorProxy, other: TensorProxy, bsym: BoundSymbol, lines: list[BoundSymbol]
    ) -> TensorProxy:
        """Emits the sum of two gradients of a value that `bsym` uses, in the order in which eager adds them."""
        answer, total = self._sizes.ask(torch.add, (one, other), {}, unnamed)
        where: dict[str, Any] = {"source": bsym.source, "module_path": bsym.module_path}
        lines.append(
            BoundSymbol(
                symbol(torch.add),
                (one, other),
                {},
                total,
                answer=answer,
                differentiates=bsym,
                **where,
            )
        )
        return total

    def _leave_to_autograd(
        self, bsym: BoundSymbol, cotangents: dict[TensorProxy, TensorProxy]
    ) -> OpaqueLink:
        link = self._links[id(bsym)] = OpaqueLink(bsym, self._sizes)
        lost = [out.name for out in cotangents if out not in link.outputs]
        if lost or bsym.sym.impl is None:
            raise UnsupportedError(
                f"{bsym.sym.name}{at(bsym)} has no derivative with respect to {', '.join(lost) or 'its arguments'}; "
                "give its symbol a vjp, or detach its arguments"
            )
        return link

    def also_needed(self) -> tuple[Proxy, ...]:
        """What the backwards for fewer cotangents may read besides; to be asked after the backward for all of them."""
        if len(self.outputs) < 2:
            return ()
        reach: dict[Proxy, int] = {out: 1 << i for i, out in enumerate(self.outputs)}
        found: dict[Proxy, None] = {}
        for bsym in reversed(self.trace.bound_symbols):
            outs = [out for out in _made(bsym) if reach.get(out)]
            link = self._links.get(id(bsym))
            if not outs or link is None:
                continue
            subsets = list(_subsets(outs, reach))
            if len({reach[out] for out in outs}) > 1 or isinstance(link, OpaqueLink):
                now = {each.value: each.now for each in bsym.overwritten if each.now is not None}
                found.update((now.get(proxy, proxy), None) for proxy in link.also_needed(subsets))
            together = 0
            for out in outs:
                together |= reach[out]
            for tensor in link.wanted:
                reach[tensor] = reach.get(tensor, 0) | together
        return tuple(found)

    def take(self, sizes: Iterable[Proxy]) -> None:
        """Makes sizes that only backwards read arguments of the trace."""
        self.trace = self.trace.replace(args=[*self.trace.args, *sizes])

    def forward(self) -> tuple[BoundSymbol, ...]:
        """The trace's lines, those opened whose inner values a backward reads."""
        lines: list[BoundSymbol] = []
        for bsym in self.trace.bound_symbols:
            link = self._links.get(id(bsym))
            lines.extend([bsym] if link is None else link.forward())
        return tuple(lines)


def _made(bsym: BoundSymbol) -> list[TensorProxy]:
    """The tensors that a line makes and gradients flow through: not a view taken under no_grad, a leaf of its own."""
    given = set(bsym.inputs)
    own = bsym.sym.vjp is not None and any(getattr(v, "requires_grad", False) for v in given)
    return [
        out
        for out in dict.fromkeys(bsym.outputs)
        if isinstance(out, TensorProxy)
        and out not in given
        and not (out.requires_grad and out.meta.is_leaf)
        and (out.requires_grad or own)
    ]


def _leads_on(bsym: BoundSymbol) -> bool:
    """Whether gradients flow through a line: one that reads a leaf of the program's own alone is where they end."""
    return any(getattr(proxy, "requires_grad", False) for proxy in bsym.inputs)


def _refuse_writes(bsym: BoundSymbol) -> None:
    """A write that gradients flow through has to be made functional before programs are split."""
    answer = bsym.answer
    if answer is None or not answer.mutated:
        return
    tensors = tensor_arguments(bsym.args, bsym.kwargs)
    if any(tensors[position].requires_grad for position in answer.mutated):
        raise MutationError(
            f"{bsym.sym.name}{at(bsym)} writes to a tensor that gradients flow through; use the functional form"
        )


def _subsets(
    outs: Sequence[TensorProxy], reach: dict[Proxy, int]
) -> Iterator[tuple[TensorProxy, ...]]:
    """The sets of a line's outputs that have a cotangent when some outputs of the program have.

    Where there are many, those for one output of the program each: a backward reads no more for several at once.
    """
    bits = range(max(reach[out] for out in outs).bit_length())
    of_bits = (tuple(out for out in outs if reach[out] >> bit & 1) for bit in bits)
    classes = [found for found in dict.fromkeys(of_bits) if found]
    seen: set[tuple[TensorProxy, ...]] = set()
    for size in range(1, len(classes) + 1) if len(classes) <= MOST_CLASSES else (1,):
        for chosen in combinations(classes, size):
            there = set().union(*chosen)
            subset = tuple(out for out in outs if out in there)
            if subset not in seen:
                seen.add(subset)
                yield subset


def name_values(lines: Sequence[BoundSymbol], first: Sequence[Any], names: Names) -> None:
    """Numbers the values that have no name yet, in the order of their lines."""
    for proxy in (*first, *(out for bsym in lines for out in bsym.outputs)):
        if isinstance(proxy, TensorProxy) and proxy._name == UNNAMED:
            proxy._name = names.fresh(proxy.prefix)
