"""Writes as the program goes: which ones cannot be repeated at each call, and what tensors are like afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from tracemill.compiler import prims
from tracemill.compiler.answer import Answer
from tracemill.compiler.errors import MutationError
from tracemill.compiler.guards import check
from tracemill.compiler.meta import Storage
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbol import BoundSymbol, Symbol, symbol
from tracemill.compiler.values import leaves, substitute

T: Any = torch.Tensor
_ATEN: Any = torch.ops.aten
RESHAPED: dict[Any, Any] = {
    **{getattr(T, f"{name}_"): getattr(T, name) for name in ("t", "squeeze", "unsqueeze")},
    **{getattr(T, f"{name}_"): getattr(T, name) for name in ("transpose", "swapaxes", "swapdims")},
    **{T.detach_: T.detach, torch.detach_: T.detach},
    **{_ATEN.t_.default: _ATEN.t.default, _ATEN.unsqueeze_.default: _ATEN.unsqueeze.default},
    **{_ATEN.squeeze_.default: _ATEN.squeeze.default, _ATEN.squeeze_.dim: _ATEN.squeeze.dim},
    **{_ATEN.squeeze_.dims: _ATEN.squeeze.dims, _ATEN.detach_.default: _ATEN.detach.default},
    **{_ATEN.transpose_.default: _ATEN.transpose.int},
}
"""Calls that change a tensor's metadata in place; each with the call that gives a view with that metadata."""

_REPLACING = ("aten::set_", "aten::resize_", "aten::resize_as_")
_DETACH = (T.detach, torch.detach, _ATEN.detach.default)


class Recording(Protocol):
    """What writes need of the interpreter."""

    bound_symbols: list[BoundSymbol]
    lifted: dict[int, tuple[TensorProxy, torch.Tensor]]
    checks: list[BoundSymbol]

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records a call on proxies; returns its output, on proxies."""
        ...

    def emit(
        self, sym: Symbol, args: Any, kwargs: Any, output: Any, answer: Answer | None = None
    ) -> BoundSymbol:
        """Adds a line to the program."""
        ...

    def become(self, proxy: TensorProxy, other: TensorProxy) -> None:
        """Makes the stand-in of `proxy` the stand-in of `other`."""
        ...

    def latest(self, proxy: TensorProxy) -> TensorProxy:
        """What the stand-in of a value stands for now."""
        ...

    def current(self, storage: Storage) -> Sequence[TensorProxy]:
        """The proxies of the stand-ins that lie in a storage."""
        ...

    def fresh_name(self) -> str:
        """A name for a new value."""
        ...

    def at(self) -> str:
        """The user's line, for errors."""
        ...


def recorded(
    recording: Recording,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    answer: Answer,
    tensors: Sequence[TensorProxy],
) -> tuple[Any] | None:
    """Records a call that changes a tensor's shape in place, or writes to a list of tensors in turn, as what it does.

    None for every other call. Raises MutationError for a write that could not be repeated at each call, and eager's error
    where it has one.
    """
    given = {proxy.storage for proxy, _ in recording.lifted.values()}
    _refuse(recording, fn, answer, tensors, given)
    if _goes_one_by_one(answer, args, kwargs):
        for one_args, one_kwargs in _in_turn(args, kwargs):
            recording.call(fn, one_args, one_kwargs)
        return (answer.instantiate(tensors, _makes_nothing),)
    view = RESHAPED.get(fn)
    if view in _DETACH:
        _raise_for_view(recording, fn, answer, tensors[0])
    if view is not None:
        return (_reshaped(recording, view, args, kwargs, answer, tensors[0]),)
    resized = [p for p, meta in answer.changed.items() if meta.shape != tensors[p].meta.shape]
    if resized:
        return (_resized(recording, fn, args, kwargs, [tensors[p] for p in resized]),)
    return None


def _refuse(
    recording: Recording,
    fn: Callable[..., Any],
    answer: Answer,
    tensors: Sequence[TensorProxy],
    given: set[Storage],
) -> None:
    name = symbol(fn).name
    if any(operation.fn._schema.name in _REPLACING for operation in answer.body):
        raise MutationError(
            f"{name} gives a tensor other memory{recording.at()}; use copy_, or make a new tensor"
        )
    for position in answer.mutated:
        proxy, after = tensors[position], answer.changed.get(position)
        if proxy.storage not in given and after is None:
            continue
        if proxy.meta.layout != torch.strided:
            raise MutationError(
                f"{name} writes to a tensor of layout {proxy.meta.layout}{recording.at()}; use the functional form"
            )
        if after is not None and fn not in RESHAPED and after.stride != proxy.meta.stride:
            if proxy.storage in given or after.shape == proxy.meta.shape:
                raise MutationError(
                    f"{name} changes shape or strides of a tensor in place{recording.at()}; use the functional form"
                )
        if fn in RESHAPED and all(proxy is not known for known, _ in recording.lifted.values()):
            continue  # a view, which nobody outside of the program has
        if proxy.storage in given:
            _refuse_for_input(recording, name, proxy, after)


def _refuse_for_input(recording: Recording, name: str, proxy: TensorProxy, after: Any) -> None:
    if torch.is_grad_enabled() and proxy.requires_grad:
        given = [known for known, _ in recording.lifted.values() if known.storage is proxy.storage]
        if any(known is proxy and known.meta.is_leaf for known in given):
            raise MutationError(
                f"{name} writes to a leaf that requires grad where autograd does not see it{recording.at()}; call it "
                "under torch.no_grad, or on a detached tensor"
            )
        if any(known.requires_grad and known.meta.is_leaf for known in given):
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place operation."
            )
    if after is None or after.shape == proxy.meta.shape:
        return
    raise MutationError(
        f"{name} changes the shape of an input of the program in place{recording.at()}; use the functional form"
    )


def _goes_one_by_one(answer: Answer, args: Any, kwargs: Any) -> bool:
    """Whether a call writes to a list of tensors one after the other that share memory, or of which some require grad."""
    if not all(step.fn._schema.name.startswith("aten::_foreach_") for step in answer.body):
        return False
    proxies = list(_tensors(leaves((args, kwargs))))
    is_single = all(len(items) == 1 for items in _lists(args, kwargs))
    is_mixed = len({proxy.requires_grad for proxy in proxies}) > 1
    return not is_single and (is_mixed or len({p.storage for p in proxies}) < len(proxies))


def _lists(args: Any, kwargs: Any) -> list[Any]:
    return [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple))]


def _in_turn(args: Any, kwargs: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The calls for each place of the lists."""
    for place in range(len(_lists(args, kwargs)[0])):

        def one(value: Any, place: int = place) -> Any:
            return [value[place]] if isinstance(value, (list, tuple)) else value

        yield tuple(map(one, args)), {name: one(value) for name, value in kwargs.items()}


def _makes_nothing(spec: Any, storage: Storage, offset: int) -> Any:
    raise TypeError("a call that writes to lists of tensors makes no new one")


def _raise_for_view(recording: Recording, fn: Any, answer: Answer, proxy: TensorProxy) -> None:
    """Raises eager's error where `detach_` is called on a view; refuses to detach an input."""
    root = root_of(proxy, recording.bound_symbols)
    given = next((real for known, real in recording.lifted.values() if known is root), None)
    if recording.latest(root) is not proxy or (given is not None and given._is_view()):
        fn(torch.empty(1).view(1))
    if given is None:
        return
    recording.checks.append(check(f"{root.name}: no view", "{}._base is None", root))
    if answer.changed:
        raise MutationError(
            f"{symbol(fn).name} detaches an input of the program{recording.at()}; use detach()"
        )


def _reshaped(
    recording: Recording, view: Any, args: Any, kwargs: Any, answer: Answer, proxy: TensorProxy
) -> TensorProxy:
    """`t.t_()` is `t.t()`, which is from then on what `t` names."""
    if not answer.changed:
        return proxy
    made = recording.call(view, args, kwargs)
    recording.become(proxy, made)
    return made


def _resized(
    recording: Recording, fn: Any, args: Any, kwargs: Any, tensors: list[TensorProxy]
) -> TensorProxy:
    """`torch.add(x, y, out=t)` for an empty `t` is `torch.add(x, y)`, which is from then on what `t` names."""
    (proxy,) = tensors if len(tensors) == 1 else (None,)
    if proxy is None or kwargs.get("out") is not proxy or proxy.meta.numel:
        raise MutationError(
            f"{symbol(fn).name} changes the size of a tensor in place{recording.at()}; use the functional form"
        )
    made = recording.call(fn, args, {key: value for key, value in kwargs.items() if key != "out"})
    if made.dtype is not proxy.dtype:
        made = recording.call(torch.Tensor.to, (made, proxy.dtype), {})
    recording.become(proxy, made)
    return made


def refreshed(
    recording: Recording, output: Any, answer: Answer, tensors: Sequence[TensorProxy]
) -> Any:
    """After a write that gradients flow through: the tensor, its base and its views require grad from here on."""
    mapping: dict[Any, Any] = {}
    for position in answer.changed:
        proxy = tensors[position]
        root = root_of(proxy, recording.bound_symbols)
        for other in recording.current(proxy.storage):
            if other.requires_grad or other in mapping:
                continue
            if other is proxy or root_of(other, recording.bound_symbols) is root:
                mapping[other] = _requiring_grad(recording, other)
    return substitute(output, mapping)


def _requiring_grad(recording: Recording, proxy: TensorProxy) -> TensorProxy:
    meta = proxy.meta.replace(requires_grad=True, is_leaf=False)
    made = proxy.changed(recording.fresh_name(), meta=meta)
    recording.emit(prims.SAME, (proxy,), {}, made)
    recording.become(proxy, made)
    return made


def views_of(
    proxy: TensorProxy, others: Iterable[TensorProxy], lines: Sequence[BoundSymbol]
) -> list[TensorProxy]:
    """Those of some tensors that autograd takes to be views of one."""
    return [other for other in others if other is not proxy and root_of(other, lines) is proxy]


def root_of(proxy: TensorProxy, lines: Sequence[BoundSymbol]) -> TensorProxy:
    """The tensor that autograd takes a view to be a view of; a detached one is its own."""
    parents = _parents(lines, proxy.storage)
    while proxy in parents:
        proxy = parents[proxy]
    return proxy


def _parents(lines: Sequence[BoundSymbol], storage: Storage) -> Mapping[TensorProxy, TensorProxy]:
    found: dict[TensorProxy, TensorProxy] = {}
    for bsym in lines:
        if bsym.sym.impl in _DETACH:
            continue
        given = [p for p in bsym.inputs if isinstance(p, TensorProxy) and p.storage is storage]
        for out in _tensors(bsym.outputs) if given else ():
            if out.storage is storage and out not in given:
                found.setdefault(out, given[0])
    return found


def _tensors(values: Any) -> Iterator[TensorProxy]:
    return (value for value in values if isinstance(value, TensorProxy))
