"""The stand-ins of a program's tensors: of its arguments, of those that it meets, and of what it makes."""

from __future__ import annotations

from typing import Any

import torch

from tracemill.compiler import prims
from tracemill.compiler import torch_internals as internals
from tracemill.compiler.meta import Storage, TensorMeta
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbol import BoundSymbol, Symbol
from tracemill.compiler.values import map_leaves
from tracemill.passes.interpretation.kinds import refuse_other_kinds
from tracemill.passes.interpretation.mutation import in_place
from tracemill.passes.interpretation.stand_in import TracedTensor


class TracedTensors:
    """The stand-ins of one run of a program.

    inputs: the input tensors' proxies.
    lifted: the real tensors met on the way (parameters, buffers, globals), with their proxies.
    """

    bound_symbols: list[BoundSymbol]

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[TensorProxy] = []
        self.lifted: dict[int, tuple[TensorProxy, torch.Tensor]] = {}
        self._storages: dict[int, Storage] = {}
        self._stand_ins: dict[TensorProxy, TracedTensor] = {}
        self._owned: dict[int, torch.Tensor] = {}
        self._became: dict[TensorProxy, TensorProxy] = {}
        self._below_autograd = False

    def input(self, tensor: torch.Tensor, marks: Any = None) -> TracedTensor:
        """The stand-in of an input tensor; `marks` say which of its sizes differ from call to call."""
        stand_in = self.lift(tensor)
        if stand_in.proxy not in self.inputs:
            self.inputs.append(stand_in.proxy)
        return stand_in

    def mark(self, tensor: torch.Tensor, marks: Any) -> None:
        """Says which sizes of a tensor inside of an argument differ from call to call, before it is met."""

    def lift(self, tensor: torch.Tensor) -> TracedTensor:
        """The stand-in of a real tensor; the same tensor has the same stand-in."""
        if type(tensor) is TracedTensor:
            return tensor
        known = self.lifted.get(id(tensor))
        if known is None:
            refuse_other_kinds(tensor, self.at)
            with internals.DisableTorchFunction():
                proxy = self._input_proxy(tensor)
            known = self.lifted[id(tensor)] = (proxy, tensor)
            stand_in = self._stand_ins[proxy] = self._stand_in(proxy)
            stand_in.take_after(tensor)
            return stand_in
        return self._stand_ins[self.latest(known[0])]

    def latest(self, proxy: TensorProxy) -> TensorProxy:
        """What the stand-in of a value stands for now."""
        while proxy in self._became:
            proxy = self._became[proxy]
        return proxy

    def own(self, tensor: torch.Tensor) -> TracedTensor:
        """The stand-in of a tensor that the program has as it is, and gets as it is from a call that returns it."""
        stand_in = self.lift(tensor)
        self._owned[id(stand_in)] = tensor
        return stand_in

    def _storage_of(self, tensor: torch.Tensor) -> Storage | None:
        """The memory of a real tensor, one object for all that share it."""
        if tensor.layout != torch.strided:
            return None
        memory = tensor.untyped_storage()
        return self._storages.setdefault(memory._cdata, Storage(memory.nbytes()))

    def become(self, proxy: TensorProxy, other: TensorProxy) -> None:
        """Makes the stand-in of `proxy` the stand-in of `other`."""
        self._became[proxy] = other
        stand_in = self._stand_ins[other] = self._stand_ins.pop(proxy)
        with internals.DisableTorchFunction(), internals.no_user_modes():
            if self._below_autograd:  # which holds it, and sets its graph
                stand_in.lie_like(other)
                return
            made = self._stand_in(other)
            if stand_in._is_param:
                made.be_parameter()
            torch.utils.swap_tensors(stand_in, made)

    def require_grad(self, proxy: TensorProxy) -> None:
        """Makes a tensor that requires no grad a leaf that does."""
        meta = proxy.meta.replace(requires_grad=True, is_leaf=True)
        made = proxy.changed(self.fresh_name(), meta=meta)
        self.emit(prims.SAME, (proxy,), {}, made)
        stand_in = self._stand_ins[made] = self._stand_ins.pop(proxy)
        stand_in.proxy = self._became[proxy] = made
        with internals.DisableTorchFunction():
            stand_in.requires_grad_()
        for view in in_place.views_of(proxy, self.current(proxy.storage), self.bound_symbols):
            if not view.requires_grad:  # autograd asks their base
                self.require_grad(view)

    def current(self, storage: Storage) -> list[TensorProxy]:
        """The proxies of the stand-ins that lie in a storage."""
        return [proxy for proxy in self._stand_ins if proxy.storage is storage]

    def _input_proxy(self, tensor: torch.Tensor) -> TensorProxy:
        return TensorProxy(
            self.fresh_name(),
            meta=TensorMeta.of(tensor),
            storage=self._storage_of(tensor),
            storage_offset=int(tensor.storage_offset()) if tensor.layout == torch.strided else 0,
        )

    def _stand_in(self, proxy: TensorProxy) -> TracedTensor:
        return TracedTensor(proxy)

    def stand_ins(self, output: Any) -> Any:
        """An output with the stand-ins of its proxies, or the program's own tensors where it gave them."""

        def leaf(value: Any) -> Any:
            if not isinstance(value, TensorProxy):
                return value
            stand_in = self._stand_ins.get(value)
            if stand_in is not None:
                return self._owned.get(id(stand_in), stand_in)
            stand_in = self._stand_ins[value] = self._stand_in(value)
            return stand_in

        return map_leaves(leaf, output)

    # What the interpreter does

    def fresh_name(self) -> str:
        """A provisional name for a new value."""
        raise NotImplementedError

    def emit(self, sym: Symbol, args: Any, kwargs: Any, output: Any) -> BoundSymbol:
        """Adds a line to the program."""
        raise NotImplementedError

    def at(self) -> str:
        """The user's line that runs, for errors."""
        raise NotImplementedError
