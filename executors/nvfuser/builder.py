"""The builder: writes a graph of ATen operations into a definition, one node after the other."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tracemill.compiler.torch_internals import OpOverload
from tracemill.executors.nvfuser.library import (
    DATA_TYPES,
    HALF_TYPES,
    computed_dtype,
    data_type,
    library,
)
from tracemill.executors.nvfuser.registry import TRANSLATIONS, Untranslatable
from tracemill.executors.nvfuser.values import Value

_SCALAR_OPERATIONS: dict[Callable[..., Any], str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "div",  # sizes are not negative: rounding down and towards zero are one
    operator.mod: "mod",
    operator.neg: "neg",
}
"""What is done with symbolic sizes."""

Node = torch.fx.Node


class Builder:
    """Writes nodes into the definition that is open.

    options: the families of operations that are translated besides those that always are.
    ops: nvFuser's operations.
    node, results: the node that is being translated, and what PyTorch says of its results.
    """

    node: Node

    def __init__(self, definition: Any, options: frozenset[str] = frozenset()) -> None:
        self.ops = library().ops
        self.results: tuple[torch.Tensor, ...] = ()
        self.draws = 0
        self._definition = definition
        self._options = options
        self._values: dict[Node, Any] = {}
        self._random_state: tuple[Any, Any] | None = None
        self._reduced: dict[int, tuple[Any, str]] = {}

    # Nodes

    def define_tensor(
        self,
        node: Node,
        shape: Sequence[int],
        contiguity: Sequence[Any],
        order: Sequence[int],
        is_cpu: bool,
    ) -> None:
        """Makes a tensor of the graph an input; `order` is empty where the last dimension is the innermost one.

        is_cpu: whether it is a single number on the CPU, among tensors of a GPU.
        """
        meta = node.meta["val"]
        view = self._definition.define_tensor(
            shape=list(shape),
            contiguity=list(contiguity),
            dtype=data_type(checked_dtype(meta)),
            is_cpu=is_cpu,
            stride_order=list(order),
        )
        self._values[node] = Value(view, meta)

    def define_scalar(self, node: Node, kind: str) -> None:
        """Makes a number of the graph an input: `kind` is Int, Double or Bool."""
        data_types = library().DataType
        self._values[node] = self._definition.define_scalar(None, getattr(data_types, kind))

    def write(self, node: Node) -> None:
        """Writes one call; raises Untranslatable where it has no translation."""
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        self._values[node] = self._written(node, args, kwargs)

    def output(self, value: Value, order: Sequence[int] | None) -> None:
        """Makes a value an output, its dimensions laid out in the given order; None is the order of dimensions."""
        view = value.exact
        if order is not None:
            view = self.ops.stride_order(view, list(order))
        self._definition.add_output(view)

    def value(self, node: Node) -> Any:
        """What a node has become."""
        return self._values[node]

    def _written(self, node: Node, args: Any, kwargs: Mapping[str, Any]) -> Any:
        target: Any = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        if target in _SCALAR_OPERATIONS:
            return getattr(self.ops, _SCALAR_OPERATIONS[target])(*args)
        if target is torch.ops.aten.sym_size.int:
            return self.size(*args)
        translation = TRANSLATIONS.get(target)
        if translation is None:
            raise Untranslatable(f"{target} has no translation")
        if not translation.is_on(self._options):
            asked = " or ".join(map(repr, sorted(translation.options)))
            raise Untranslatable(f"{target} is not asked for by option {asked}")
        self.node = node
        metas = node.meta["val"]
        self.results = tuple(metas) if isinstance(metas, (tuple, list)) else (metas,)
        for meta in self.results:
            if isinstance(meta, torch.Tensor):
                checked_dtype(meta)
        made = translation.write(self, *_completed(target, args, kwargs))
        if isinstance(metas, (tuple, list)):
            return tuple(map(self._result, made, metas))
        return self._result(made, metas)

    def _result(self, made: Any, meta: Any) -> Any:
        if made is None or not isinstance(meta, torch.Tensor):
            return made
        if isinstance(made, Value):
            if made.dtype == meta.dtype:
                return made if made.meta is meta else made.with_meta(meta)
            made = made.as_type(computed_dtype(meta.dtype))
        return Value(made, meta)

    # What translations ask for

    @property
    def result(self) -> torch.Tensor:
        """What PyTorch says of the result of the node that is being translated."""
        return self.results[0]

    def operand(self, value: Any, dtype: torch.dtype) -> Any:
        """A tensor or number as an operand of arithmetic in a dtype: Float for half types."""
        if dtype == torch.uint64:
            raise Untranslatable(f"arithmetic on {dtype}")
        dtype = computed_dtype(dtype)
        if isinstance(value, Value):
            return value.as_type(dtype)
        if not isinstance(value, (bool, int, float)):
            return value  # a scalar of nvFuser's: sizes and numbers that are inputs
        if dtype.is_floating_point:
            return float(value)
        return bool(value) if dtype == torch.bool else int(value)

    def scalar(self, number: Any, dtype: torch.dtype = torch.int64) -> Any:
        """A number as a scalar of nvFuser's, where an operation takes no other."""
        if not isinstance(number, (bool, int, float)):
            return number
        return self._definition.define_scalar(number, data_type(dtype))

    def size(self, value: Value, dim: int) -> Any:
        """A size: a number, or a scalar of nvFuser's where it is symbolic."""
        size = value.shape[dim]
        return size if isinstance(size, int) else self.ops.size(value.any, dim)

    def sizes(self, value: Value) -> list[Any]:
        """All sizes of a value."""
        return [self.size(value, dim) for dim in range(value.ndim)]

    def full(self, shape: Sequence[Any], number: Any, dtype: torch.dtype) -> Any:
        """A TensorView filled with a number."""
        number = self.operand(rounded(number, dtype), dtype)
        return self.ops.full(list(shape), number, dtype=data_type(computed_dtype(dtype)))

    def iota(self, length: Any, start: Any = 0, step: Any = 1) -> Any:
        """A TensorView of Ints: start, start + step, ..."""
        return self.ops.iota(length, start, step, dtype=data_type(torch.int64))

    def to_reduce(self, view: Any, name: str) -> Any:
        """A TensorView, or a copy of it where it is reduced by another operation already.

        nvFuser fills up the registers of what it reduces, with zeros for a sum and ones for a product, and refuses both.
        """
        _, known = self._reduced.setdefault(id(view), (view, name))
        return view if known == name else self.ops.set(view)

    def random_state(self) -> tuple[Any, Any]:
        """Seed and offset, inputs of the definition, for one more draw of random numbers: the first, the next, ..."""
        if self._random_state is None:
            number = library().DataType.Int
            self._random_state = (
                self._definition.define_scalar(None, number),
                self._definition.define_scalar(None, number),
            )
        seed, offset = self._random_state
        self.draws += 1
        if self.draws == 1:
            return seed, offset
        return seed, self.ops.add(offset, self.draws - 1)


def rounded(operand: Any, dtype: torch.dtype) -> Any:
    """An operand; a number is rounded to a half type, as PyTorch does where it makes it an element of a tensor."""
    if dtype in HALF_TYPES and isinstance(operand, (bool, int, float)):
        return torch.tensor(operand, dtype=dtype).item()
    return operand


def checked_dtype(meta: torch.Tensor) -> torch.dtype:
    """The dtype of a tensor; raises Untranslatable where regions cannot hold it."""
    if meta.dtype not in DATA_TYPES:
        raise Untranslatable(f"{meta.dtype} is not among the dtypes that regions hold")
    return meta.dtype


def _completed(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The value of each parameter of an operation, in order, defaults included."""
    completed: list[Any] = []
    for position, parameter in enumerate(target._schema.arguments):
        if position < len(args):
            completed.append(args[position])
        else:
            completed.append(kwargs.get(parameter.name, parameter.default_value))
    return completed
