"""The minimum cut: which of the forward's values to save, so that few bytes are kept and the rest follows from them.

A value is an edge whose capacity is its bytes; what cannot be computed again hangs on the source, what the backward
reads on the sink. Views are one value with their base, the program's inputs cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

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
        self._graph.add_nodes_from((SOURCE, SINK))
        for proxy in self._inputs:
            self._value(proxy, None if proxy in self._lost else 0, free=False)
        for bsym in self._halves.computation.bound_symbols:
            self._line(bsym)
        for proxy in self._halves.saved:
            base = self.base(proxy)
            if base not in self._inputs:
                self._graph.add_edge((base, "out"), SINK)

    def _line(self, bsym: BoundSymbol) -> None:
        given = list(dict.fromkeys(map(self.base, bsym.inputs)))
        if is_view(bsym):
            base = next(proxy for proxy in given if isinstance(proxy, TensorProxy))
            self._base.update((out, base) for out in bsym.outputs)
            return
        free = self._may_run_again(bsym)
        for out in bsym.outputs:
            if out in self._base or out in given:
                continue  # a write gives back its argument
            self._base[out] = out
            never_saved = bsym.region and free and out in self._inner
            cost = self._cost(out) if isinstance(out, TensorProxy) else 0
            self._value(out, None if never_saved else cost, free=free)
            for proxy in given:
                self._graph.add_edge((proxy, "out"), (out, "in"))

    def _may_run_again(self, bsym: BoundSymbol) -> bool:
        touched = (*bsym.inputs, *bsym.outputs)
        if any(isinstance(p, TensorProxy) and p.storage in self._written for p in touched):
            return False  # what it read then is not there any more
        if bsym.region and bsym.sym.path is not None and not bsym.is_random:
            return True
        return self._recomputable(bsym)

    def _value(self, proxy: Proxy, capacity: int | None, *, free: bool) -> None:
        """A value; without a capacity it cannot be saved, `free` it can be computed again."""
        if capacity is None:
            self._graph.add_edge((proxy, "in"), (proxy, "out"))
        else:
            self._graph.add_edge((proxy, "in"), (proxy, "out"), capacity=capacity)
        if not free:
            self._graph.add_edge(SOURCE, (proxy, "in"))

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
        region_of.update((out, bsym.region) for out in bsym.outputs if bsym.region)
    return region_of.keys() - read_outside


def count_bytes(values: Iterable[Proxy], inputs: Iterable[Proxy]) -> int:
    """The bytes of these values' memory, each storage once, that of the program's inputs left out."""
    free = {proxy.storage for proxy in inputs if isinstance(proxy, TensorProxy)}
    kept = {proxy.storage for proxy in values if isinstance(proxy, TensorProxy)}
    return sum(storage.nbytes for storage in kept - free)
