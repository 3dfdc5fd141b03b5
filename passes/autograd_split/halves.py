"""Halves: a split program taken apart, for the passes that move work between its forward and its backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracemill.compiler import prims
from tracemill.compiler.names import Names
from tracemill.compiler.proxy import CollectionProxy, Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.values import proxies
from tracemill.passes.dce import swept

SAVED, COTANGENTS = "saved_for_backward", "cotangents"


@dataclass(frozen=True)
class Halves:
    """A forward and a backward, as lines.

    computation: the forward; its output is the program's own. cotangents: in the order of the differentiable outputs.
    lines, gradients: the backward's, without what it unpacks. kept: values to save though no line here reads them.
    """

    computation: Trace
    cotangents: tuple[TensorProxy, ...]
    lines: tuple[BoundSymbol, ...]
    gradients: tuple[TensorProxy | None, ...]
    kept: tuple[Proxy, ...] = ()

    @classmethod
    def of(cls, program: Program, kept: Iterable[Proxy] = ()) -> Halves:
        """The halves of a program that has a backward."""
        backward = program.backward
        assert backward is not None
        result, _ = program.computation.output
        cotangents: tuple[TensorProxy, ...] = ()
        unpacked = {backward.args[0]}
        lines: list[BoundSymbol] = []
        for bsym in backward.bound_symbols:
            if bsym.sym is not prims.UNPACK_SEQUENCE:
                lines.append(bsym)
            elif bsym.args[0] is backward.args[1]:
                cotangents = bsym.output
            elif bsym.args[0] in unpacked:
                unpacked.update(bsym.output)
            else:
                lines.append(bsym)
        computation = program.computation.replace(output=result)
        return cls(computation, cotangents, tuple(lines), backward.output, tuple(kept))

    def replace(self, **changes: Any) -> Halves:
        """The halves with some of them changed."""
        return replace(self, **changes)

    def given(self, numbers: Sequence[Proxy]) -> Halves:
        """The halves of a computation that is given some numbers besides."""
        return self.replace(
            computation=self.computation.replace(args=[*self.computation.args, *numbers]),
            gradients=(*self.gradients, *(None for _ in numbers)),
        )

    def unrestored(self) -> Halves:
        """The halves without the lines of the backward that make values of the forward again."""
        known = self.forward_values
        lines = (bsym for bsym in self.lines if not any(out in known for out in bsym.made))
        return self.replace(lines=tuple(lines))

    @property
    def forward_values(self) -> dict[Proxy, None]:
        """Every value that the forward knows, in order."""
        return dict.fromkeys(self.computation.values())

    @property
    def saved(self) -> tuple[Proxy, ...]:
        """The forward's values that the backward reads, and those that are kept anyway, in the forward's order."""
        read = {proxy for bsym in self.lines for proxy in bsym.inputs}
        read.update(proxy for proxy in self.gradients if proxy is not None)
        read.difference_update(out for bsym in self.lines for out in bsym.made)
        read.update(self.kept)
        return tuple(proxy for proxy in self.forward_values if proxy in read)

    def program(self, program: Program, saved: Sequence[Proxy] | None = None) -> Program:
        """`program` with these halves, cleared of what neither needs.

        saved: what the forward saves, where that is settled already.
        """
        backward = swept(
            Trace("backward", [], self.lines, self.gradients, notes=_notes(program.backward))
        )
        halves = self.replace(lines=tuple(backward.bound_symbols))
        kept = halves.saved if saved is None else saved
        tensors = tuple(proxy for proxy in kept if isinstance(proxy, TensorProxy))
        others = tuple(proxy for proxy in kept if not isinstance(proxy, TensorProxy))
        computation = swept(
            self.computation.replace(output=(self.computation.output, (tensors, others)))
        )
        unpacks, arguments = self._unpacks(tensors, others, backward)
        return program.replace(
            computation=computation,
            backward=backward.replace(
                args=arguments, bound_symbols=[*unpacks, *backward.bound_symbols]
            ),
        )

    def _unpacks(
        self, tensors: tuple[Proxy, ...], others: tuple[Proxy, ...], backward: Trace
    ) -> tuple[list[BoundSymbol], list[Proxy]]:
        names = Names({*self.computation.names, *backward.names})
        names.reserve(proxy.name for proxy in self.cotangents)
        saved = CollectionProxy(names.claim(SAVED), length=2)
        cotangents = CollectionProxy(names.claim(COTANGENTS), length=len(self.cotangents))
        collections = tuple(
            CollectionProxy(names.fresh("C"), length=len(items)) for items in (tensors, others)
        )
        pairs = (
            (saved, collections),
            (cotangents, self.cotangents),
            *zip(collections, (tensors, others), strict=True),
        )
        lines = [prims.UNPACK_SEQUENCE.bind(whole, output=parts) for whole, parts in pairs]
        return lines, [saved, cotangents]


def _notes(backward: Trace | None) -> tuple[str, ...]:
    return () if backward is None else backward.notes


def distinct_tensors(value: Any) -> tuple[TensorProxy, ...]:
    """The tensors in a structure, each once, in order."""
    return tuple(dict.fromkeys(proxy for proxy in proxies(value) if isinstance(proxy, TensorProxy)))
