"""The log of a call's body: every ATen operation that it does, seen below autograd and autocast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import GENERATOR, BodyOperation, Ref
from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.random_state import Generator
from tracemill.compiler.values import leaves, map_leaves

_UNDECLARED_WRITERS = {
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten.cudnn_batch_norm.default,
    torch.ops.aten.miopen_batch_norm.default,
}
"""Write their fourth and fifth argument, the running statistics, when the sixth says so; their schemas do not tell."""


class BodyLog(internals.TorchDispatchMode):
    """Logs every ATen operation, with its tensors as refs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[BodyOperation] = []
        self.written: list[torch.Tensor] = []
        self.random = False
        self._refs: dict[int, Ref] = {}
        self._kept: list[torch.Tensor] = []  # an id stays valid as long as its tensor lives

    def add(self, tensor: torch.Tensor) -> Ref:
        """The ref of a tensor, a new one when it was not seen before."""
        ref = self._refs.get(id(tensor))
        if ref is None:
            ref = self._refs[id(tensor)] = Ref(len(self._kept))
            self._kept.append(tensor)
        return ref

    def tensor(self, ref: Ref) -> torch.Tensor:
        """The tensor of a ref."""
        return self._kept[ref.index]

    @property
    def size(self) -> int:
        """How many tensors were seen."""
        return len(self._kept)

    def find(self, tensor: torch.Tensor) -> int:
        """The index of a tensor's ref, -1 when no operation touched it."""
        ref = self._refs.get(id(tensor))
        return -1 if ref is None else ref.index

    @property
    def metas(self) -> dict[int, TensorMeta]:
        """The metadata of every tensor seen."""
        return {index: TensorMeta.of(tensor) for index, tensor in enumerate(self._kept)}

    def _encode(self, value: Any) -> Any:
        def leaf(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self.add(value)
            return GENERATOR if isinstance(value, Generator) else value

        return map_leaves(leaf, value)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        refs = self._encode(args), self._encode(kwargs)
        output = func(*args, **kwargs)
        if func.namespace == "prim":
            return output
        self.operations.append(BodyOperation(func, *refs, self._encode(output)))
        self.random |= draws(func, args, kwargs)
        self.written.extend(written_arguments(func, args, kwargs))
        return output


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an ATen operation draws random numbers; attention does so only for its dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[position] if position < len(args) else argument.default_value
            return kwargs.get(argument.name, given) != 0.0
    return True


def written_arguments(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """The tensors that an ATen operation writes to, as its schema says (or should)."""
    if func in _UNDECLARED_WRITERS:
        running, training = args[3:5], args[5]
        yield from (tensor for tensor in running if training and isinstance(tensor, torch.Tensor))
    if not func._schema.is_mutable:
        return
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        yield from (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))
