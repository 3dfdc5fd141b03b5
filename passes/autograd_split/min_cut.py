"""The minimum cut: which of the forward's values to save, so that few bytes are kept and the rest follows from them.

A value is an edge whose capacity is its bytes; what cannot be computed again hangs on the source, what the backward
reads on the sink. Views are one value with their base, the program's inputs cost nothing. Only values that something read
may be computed from are in the graph, which leaves most of a program out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import networkx
from networkx.algorithms.flow import boykov_kolmogorov

from tracemill.compiler.answer import NewTensor
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import leaves
from tracemill.passes.autograd_split.halves import Halves

SOURCE, SINK = "source", "sink"


def is_view(bsym: BoundSymbol) -> bool:
    """Whether all that a line makes are views of its first argument."""
    answer = bsym.answer
    if answer is None or answer.mutated or answer.random:
        return False
    specs = leaves(answer.output)
    return bool(specs) and all(
        isinstance(spec, NewTensor) and spec.storage == ("argument", 0) for spec in specs
    )


class _Value(NamedTuple):
    """How a value can be had in the backward.

    capacity: the bytes that saving it takes, None where it cannot be saved. made_from: what it is computed from again,
    None where it cannot be.
    """

    capacity: int | None
    made_from: tuple[Proxy, ...] | None = None


class MinimumCut:
    """The cut of a program.

    recomputable: whether a line may run again in the backward. cost: the bytes that saving a value takes.
    written: the inputs that the epilogue writes to, which are not what they were when the backward runs.
    saved: the values to save, each the base of the views that the backward makes of it.
    """

    def __init__(
        self,
        halves: Halves,
        recomputable: Callable[[BoundSymbol], bool],
        cost: Callable[[TensorProxy], int],
        written: Iterable[Proxy] = (),
    ) -> None:
        self._lost = set(written)
        self._halves = halves
        self._recomputable = recomputable
        self._cost = cost
        self._graph: networkx.DiGraph[Any] = networkx.DiGraph()
        self._base: dict[Proxy, Proxy] = {}
        self._values: dict[Proxy, _Value] = {}
        self._inputs = set(halves.computation.args)
        self._inner = _inner_values(halves)
        self._written = {
            proxy.storage
            for bsym in halves.computation.bound_symbols
            if bsym.mutates
            for proxy in bsym.inputs
            if isinstance(proxy, TensorProxy)
        }
        self._build()
        self.saved = self._cut()

    def base(self, proxy: Proxy) -> Proxy:
        """The value that a value is a view of, itself when it is none."""
        return self._base.get(proxy, proxy)

    def _build(self) -> None:
        for proxy in self._inputs:
            self._values[proxy] = _Value(None if proxy in self._lost else 0)
        for bsym in self._halves.computation.bound_symbols:
            self._line(bsym)
        self._graph.add_nodes_from((SOURCE, SINK))
        read = dict.fromkeys(map(self.base, self._halves.saved))
        wanted = [base for base in read if base not in self._inputs]
        self._graph.add_edges_from(((base, "out"), SINK) for base in wanted)
        added: set[Proxy] = set()
        while wanted:
            proxy = wanted.pop()
            if proxy not in added:
                added.add(proxy)
                wanted.extend(self._add(proxy))

    def _add(self, proxy: Proxy) -> tuple[Proxy, ...]:
        """Adds a value to the graph; returns those that it may be computed from."""
        value = self._values[proxy]
        if value.capacity is None:
            self._graph.add_edge((proxy, "in"), (proxy, "out"))
        else:
            self._graph.add_edge((proxy, "in"), (proxy, "out"), capacity=value.capacity)
        if value.made_from is None:
            self._graph.add_edge(SOURCE, (proxy, "in"))
            return ()
        self._graph.add_edges_from(((source, "out"), (proxy, "in")) for source in value.made_from)
        return value.made_from

    def _line(self, bsym: BoundSymbol) -> None:
        given = list(dict.fromkeys(map(self.base, bsym.inputs)))
        if is_view(bsym):
            base = next(proxy for proxy in given if isinstance(proxy, TensorProxy))
            self._base.update((out, base) for out in bsym.outputs)
            return
        free = self._may_run_again(bsym)
        for out in bsym.made:
            self._base[out] = out
            never_saved = bsym.region and free and out in self._inner
            cost = self._cost(out) if isinstance(out, TensorProxy) else 0
            made_from = tuple(given) if free else None
            self._values[out] = _Value(None if never_saved else cost, made_from)

    def _may_run_again(self, bsym: BoundSymbol) -> bool:
        touched = (*bsym.inputs, *bsym.outputs)
        if any(isinstance(p, TensorProxy) and p.storage in self._written for p in touched):
            return False  # what it read then is not there any more
        if bsym.region and bsym.sym.path is not None and not bsym.is_random:
            return True
        return self._recomputable(bsym)

    def _cut(self) -> set[Proxy]:
        _, (above, below) = networkx.minimum_cut(
            self._graph, SOURCE, SINK, flow_func=boykov_kolmogorov
        )
        return {
            node[0]
            for node in above
            if node != SOURCE and node[1] == "in" and (node[0], "out") in below
        }


def _inner_values(halves: Halves) -> set[Proxy]:
    """The values of checkpoint regions that nothing outside of their region reads."""
    region_of: dict[Proxy, int] = {}
    read_outside: set[Proxy] = set(halves.computation.outputs)
    for bsym in halves.computation.bound_symbols:
        for proxy in bsym.inputs:
            if region_of.get(proxy, bsym.region) != bsym.region:
                read_outside.add(proxy)
        region_of.update((out, bsym.region) for out in bsym.made if bsym.region)
    return region_of.keys() - read_outside


def count_bytes(values: Iterable[Proxy], inputs: Iterable[Proxy]) -> int:
    """The bytes of these values' memory, each storage once, that of the program's inputs left out."""
    free = {proxy.storage for proxy in inputs if isinstance(proxy, TensorProxy)}
    kept = {proxy.storage for proxy in values if isinstance(proxy, TensorProxy)}
    return sum(storage.nbytes for storage in kept - free)
