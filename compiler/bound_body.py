"""A body's operations as lines of a trace: its values are proxies, the trace's own and those made on the way."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from tracemill.compiler.answer import Ref
from tracemill.compiler.body import Body, Step
from tracemill.compiler.meta import Storage
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.compiler.values import map_leaves


class BoundBody:
    """A body on the proxies of a trace.

    values: the proxy of each value that has one, by the index of its ref. name: names what is made.
    """

    def __init__(self, body: Body, sizes: Sizes, name: Callable[[], str]) -> None:
        self.values: dict[int, TensorProxy] = {}
        self._body = body
        self._sizes = sizes
        self._name = name
        self._storages: dict[Any, tuple[Storage, int]] = {}
        """Of each of the body's storages the trace's, and the byte there at which it begins."""

    def take(self, ref: Ref, proxy: TensorProxy) -> None:
        """Makes a proxy the value of a ref that has none."""
        self.values.setdefault(ref.index, proxy)
        start = (proxy.storage_offset - self._body.offset(ref)) * proxy.dtype.itemsize
        self._storages.setdefault(self._body.storage(ref), (proxy.storage, start))

    def lies(self, ref: Ref, storage: Storage) -> None:
        """Says where a value lies from here on."""
        self._storages[self._body.storage(ref)] = storage, 0

    def line(
        self,
        step: Step,
        of: BoundSymbol,
        values: MutableMapping[int, TensorProxy] | None = None,
        differentiates: BoundSymbol | None = None,
    ) -> BoundSymbol:
        """A step as a line that comes from where `of` comes from; what it makes is added to `values`, or to its own."""
        known = self.values if values is None else values

        def value(leaf: Any) -> Any:
            if type(leaf) is not Ref:
                return self._sizes.number(leaf)
            found = known.get(leaf.index)
            if found is None:
                found = known[leaf.index] = self._made(leaf)
            return found

        return BoundSymbol(
            symbol(step.fn),
            map_leaves(value, step.args),
            map_leaves(value, step.kwargs),
            map_leaves(value, step.output),
            source=of.source,
            module_path=of.module_path,
            answer=step.answer,
            region=of.region,
            differentiates=differentiates,
        )

    def _made(self, ref: Ref) -> TensorProxy:
        meta = self._body.meta(ref)
        new = Storage(meta.nbytes), 0
        storage, start = self._storages.setdefault(self._body.storage(ref), new)
        offset = start // meta.dtype.itemsize + self._body.offset(ref)
        proxy = TensorProxy("t", meta=meta, storage=storage, storage_offset=offset)
        proxy = self._sizes.like(proxy, self._body.tensor(ref))
        proxy._name = self._name()
        return proxy
