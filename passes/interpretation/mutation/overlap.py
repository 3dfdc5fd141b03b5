"""Which tensors share memory: groups of them while tracing, and the checks that later calls are alike.

apart.check(x, running_mean, y, weight) or mismatch("memory that is written to: shared with nothing else")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch

from tracemill.compiler.errors import MutationError
from tracemill.compiler.guards import check
from tracemill.compiler.models import extent_of, is_dense
from tracemill.compiler.oracle import STORAGE_READERS
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.shared_memory import Apart
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import is_symbolic
from tracemill.compiler.trace import Trace
from tracemill.passes.interpretation.mutation.memory import Base, Memory


def span(proxy: TensorProxy) -> tuple[int, int]:
    """The bytes of its storage that a tensor reaches over: the first, and the one after the last."""
    size = proxy.dtype.itemsize
    start = proxy.storage_offset * size
    return start, start + extent_of(proxy.meta) * size


def sharing(proxies: Sequence[TensorProxy]) -> list[TensorProxy]:
    """The tensors whose storage is another one's too; whether they overlap depends on their sizes."""
    count = Counter(proxy.storage for proxy in proxies)
    return [proxy for proxy in proxies if count[proxy.storage] > 1]


def groups(proxies: Sequence[TensorProxy]) -> Iterator[list[TensorProxy]]:
    """Tensors that share memory, directly or through others; most stand alone."""
    by_storage: dict[int, list[TensorProxy]] = {}
    for proxy in proxies:
        by_storage.setdefault(id(proxy.storage), []).append(proxy)
    for together in by_storage.values():
        group: list[TensorProxy] = []
        reach = 0
        for proxy in sorted(together, key=span):
            start, end = span(proxy)
            if group and start >= reach:
                yield group
                group = []
            group.append(proxy)
            reach = max(reach, end)
        yield group


def extent(group: Sequence[TensorProxy]) -> tuple[int, int]:
    """The elements of their storage that the tensors of a group reach over."""
    size = group[0].dtype.itemsize
    spans = [span(proxy) for proxy in group]
    return min(start for start, _ in spans) // size, max(end for _, end in spans) // size


def refuse_repeating(
    bsym: BoundSymbol, written: Sequence[TensorProxy], at: Callable[[], str]
) -> None:
    """Raises MutationError for a write to a tensor elements of which are one in memory, as an expanded one's."""
    for proxy in written:
        if extent_of(proxy.meta) < proxy.meta.numel:
            raise MutationError(
                f"{bsym.sym.name} writes to a tensor elements of which are one in memory{at()}, such as an expanded one; "
                "write to what it is a view of"
            )


def begins(memory: Memory, tensors: Sequence[TensorProxy]) -> None:
    """Takes note that a view is taken of tensors by its place in memory; raises MutationError where that tells otherwise."""
    for base in [memory.base(tensor) for tensor in tensors if tensor in memory]:
        if base.start != 0 or base.proxy.storage_offset != 0:
            raise MutationError(
                f"a view is taken by its place in memory{memory.at()}, of a tensor that is written to and does not begin "
                "where its memory begins; clone it first"
            )
        base.begins = True


def covers(proxy: TensorProxy, start: int, end: int) -> bool:
    """Whether a tensor holds exactly these elements of its storage, each once."""
    return (
        proxy.storage_offset == start
        and proxy.meta.numel == end - start
        and is_dense(proxy.meta)
        and not (proxy.meta.conj or proxy.meta.neg)
    )


def refuse_unlike(group: Sequence[TensorProxy]) -> None:
    """Raises MutationError for tensors that share memory and see different things in it."""
    metas = {(p.dtype, p.meta.conj, p.meta.neg) for p in group}
    if len(metas) > 1 or group[0].meta.conj or group[0].meta.neg:
        names = ", ".join(proxy.name for proxy in group)
        raise MutationError(
            f"{names} share memory that the program writes to, as different dtypes or conjugates; clone one of them"
        )


def counts_right(bsym: BoundSymbol, bases: Sequence[Base]) -> bool:
    """Whether a write may count from where memory begins, as it does in its functional form; these then must begin there."""
    if bsym.answer is None or all(step.fn not in STORAGE_READERS for step in bsym.answer.body):
        return True
    if any(base.proxy.storage_offset for base in bases):
        return False
    for base in bases:
        base.begins = True
    return True


def checks(computation: Trace, bases: Sequence[Base]) -> Iterator[BoundSymbol]:
    """The prologue's lines for where in memory the inputs lie."""
    used: set[Proxy] = {proxy for bsym in computation.bound_symbols for proxy in bsym.inputs}
    used.update(computation.outputs)
    written = [base for base in bases if base.inputs]
    for base in written:
        if len(base.inputs) > 1:
            yield _shared(base.inputs)
        for given in base.inputs if base.begins else ():
            begin = given.storage_offset
            yield check(f"{given.name}: where it begins", "{}.storage_offset() == {}", given, begin)
    known = {proxy for base in written for proxy in base.inputs}
    others = [
        proxy
        for proxy in computation.args
        if isinstance(proxy, TensorProxy)
        and proxy in used
        and proxy not in known
        and proxy.meta.layout == torch.strided
    ]
    tensors = [*(base.inputs[0] for base in written), *others]
    if len(tensors) < 2:
        return
    apart = Apart(
        [_piece(base.inputs) for base in written],
        [_length(proxy) for proxy in others],
    )
    condition = f"{{}}.check({', '.join('{}' for _ in tensors)})"
    yield check("memory that is written to: shared with no other input", condition, apart, *tensors)


def _length(proxy: TensorProxy) -> int | None:
    """The bytes that a tensor reaches over; None where they differ from call to call."""
    start, end = span(proxy)
    return None if is_symbolic(proxy) else end - start


def _piece(group: Sequence[TensorProxy]) -> tuple[int, int | None]:
    if len(group) == 1:
        return 0, _length(group[0])
    spans = [span(proxy) for proxy in group]
    start, end = min(start for start, _ in spans), max(end for _, end in spans)
    return spans[0][0] - start, end - start


def _shared(group: Sequence[TensorProxy]) -> BoundSymbol:
    names = ", ".join(proxy.name for proxy in group)
    places = range(len(group))
    same = [
        f"{{{i}}}.untyped_storage()._cdata == {{0}}.untyped_storage()._cdata" for i in places[1:]
    ]
    offsets = f"({', '.join(f'{{{i}}}.storage_offset()' for i in places)}) == {{{len(group)}}}"
    condition = f"({' and '.join([*same, offsets])})"
    begin = tuple(proxy.storage_offset for proxy in group)
    return check(f"{names}: how they share memory", condition, *group, begin)
