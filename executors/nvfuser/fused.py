"""Fused functions: a region as a function of tensors, run by nvFuser."""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import torch

from tracemill.compiler.torch_internals import FakeTensor
from tracemill.executors.nvfuser.definition import Definition, define
from tracemill.executors.nvfuser.families import TRANSLATIONS
from tracemill.executors.nvfuser.layout import Layout
from tracemill.executors.nvfuser.registry import Untranslatable
from tracemill.executors.nvfuser.values import sizes_of

_shared: WeakValueDictionary[Any, Definition] = WeakValueDictionary()
_lock = threading.Lock()


class Fused:
    """A graph of ATen operations as a function, with a definition for each layout of its inputs.

    Regions that do the same, such as the layers of a model, share their definitions, and so the kernels.

    name: the region's. module: the graph as PyTorch runs it: on fakes, and where nvFuser fails.
    strict: whether such a failure is an error. options: the families of operations that are translated besides those that
    always are. checked: whether the inputs are known to be laid out as they were recorded; they are not looked at then.
    """

    def __init__(
        self,
        name: str,
        module: torch.fx.GraphModule,
        *,
        options: frozenset[str] = frozenset(),
        strict: bool = False,
        checked: bool = False,
    ) -> None:
        self.__name__ = self.name = name
        self.module = module
        self.strict = strict
        self._options = options
        self._definitions: dict[Any, Definition] = {}
        self._failed = False
        nodes = list(module.graph.nodes)
        self._inputs = [node.meta["val"] for node in nodes if node.op == "placeholder"]
        self._outputs = [node.meta["val"] for node in nodes[-1].args[0]]
        self._static = all(
            isinstance(size, int)
            for meta in (*self._inputs, *self._outputs)
            if isinstance(meta, torch.Tensor)
            for size in sizes_of(meta)
        )
        self._checked = checked and self._static
        self._moved = _sharing(nodes[-1].args[0])

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """The region's outputs."""
        if FakeTensor in map(type, inputs):
            return self.module(*inputs)
        outputs = None if self._failed else self._by_nvfuser(inputs)
        if outputs is None:
            outputs = list(self.module(*inputs))
        return self._as_recorded(inputs, outputs)

    def _by_nvfuser(self, inputs: Sequence[Any]) -> list[torch.Tensor] | None:
        """The outputs as nvFuser makes them; None where it cannot."""
        try:
            definition = self._recorded if self._checked else self._definition_for(inputs)
            if definition.draws and self.is_captured():
                return None
            return self.run(definition, inputs, self._device)
        except (RuntimeError, Untranslatable) as error:
            if not _is_own(error):
                raise
            if (
                self._checked
            ):  # a kernel of PyTorch's may give other strides than are recorded of it
                self._checked = False
                return self._by_nvfuser(inputs)
            if self.strict:
                raise
            self._give_up(error)
            return None

    def _definition_for(self, inputs: Sequence[Any]) -> Definition:
        layouts = tuple(
            [
                Layout.of(value.shape, value.stride()) if isinstance(value, torch.Tensor) else None
                for value in inputs
            ]
        )
        return self._definitions.get(layouts) or self.definition(layouts)

    @cached_property
    def _recorded(self) -> Definition:
        return self.definition()

    def is_captured(self) -> bool:
        """Whether a CUDA graph is being captured, in which nvFuser would draw the same numbers at each replay."""
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def run(
        self, definition: Definition, inputs: Sequence[Any], device: torch.device
    ) -> list[torch.Tensor]:
        """Runs a definition on inputs of its layouts."""
        return definition(inputs, device)

    def definition(self, layouts: Sequence[Layout | None] | None = None) -> Definition:
        """The definition for inputs of some layouts: those that were recorded, unless they are given."""
        if layouts is None:
            layouts = [
                Layout.of(*_hints(meta)) if isinstance(meta, torch.Tensor) else None
                for meta in self._inputs
            ]
        layouts = tuple(layouts)
        with _lock:
            known = self._definitions.get(layouts)
            if known is None:
                key = self._key, layouts, self._options
                known = _shared.get(key)
                if known is None:
                    known = _shared[key] = define(self.module.graph, layouts, self._options)
                self._definitions[layouts] = known
            return known

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        """What the graph does, whatever its values are called."""
        numbers: dict[torch.fx.Node, int] = {}
        lines: list[Any] = []

        def numbered(node: torch.fx.Node) -> Any:
            return _Number(numbers[node])

        for node in self.module.graph.nodes:
            arguments = torch.fx.map_arg((node.args, node.kwargs), numbered)
            numbers[node] = len(numbers)
            target = node.target if node.op == "call_function" else None
            lines.append((node.op, target, repr(arguments), _described(node.meta.get("val"))))
        return tuple(lines)

    @cached_property
    def _device(self) -> torch.device:
        metas = [meta for meta in (*self._inputs, *self._outputs) if isinstance(meta, torch.Tensor)]
        return next((meta.device for meta in metas if meta.device.type == "cuda"), metas[0].device)

    def _as_recorded(
        self, inputs: Sequence[Any], outputs: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The outputs with memory of their own, and with the strides that PyTorch gives them."""
        if self._moved:
            taken = {_memory(value) for value in inputs if isinstance(value, torch.Tensor)}
            for position, output in enumerate(outputs):
                if _memory(output) in taken:
                    outputs[position] = output.clone()
                taken.add(_memory(outputs[position]))
        if self._static:
            for position, (output, meta) in enumerate(zip(outputs, self._outputs, strict=True)):
                if output.stride() != meta.stride():
                    outputs[position] = _restrided(output, meta.stride())
        return outputs

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        warnings.warn(
            f"nvFuser could not run region {self.name}, which PyTorch runs instead: {_reason(error)}",
            stacklevel=4,
        )

    def __str__(self) -> str:
        return str(self.definition())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class _Number:
    """Stands for a node in the text of arguments."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __repr__(self) -> str:
        return f"%{self._number}"


def _described(meta: Any) -> Any:
    if isinstance(meta, torch.Tensor):
        return (
            str(meta.dtype),
            str(meta.device),
            tuple(map(str, meta.shape)),
            tuple(map(str, meta.stride())),
        )
    if isinstance(meta, (tuple, list)):
        return tuple(map(_described, meta))
    return str(meta)


def _hints(meta: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides; of symbolic ones, what they were while tracing."""
    return tuple(map(_hint, meta.shape)), tuple(map(_hint, meta.stride()))


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def _restrided(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A tensor with other strides: a view where they differ for dimensions of size one, else a copy."""
    triples = zip(tensor.shape, tensor.stride(), stride, strict=True)
    if all(size == 1 or have == want for size, have, want in triples):
        return tensor.as_strided(tensor.shape, stride)
    made = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _sharing(outputs: Sequence[torch.fx.Node]) -> list[int]:
    """The outputs whose elements are those of an input or of another output, which nvFuser may give instead of a copy."""
    sources = [_moved_from(node) for node in outputs]
    return [
        position
        for position, source in enumerate(sources)
        if source.op == "placeholder" or sources.count(source) > 1
    ]


def _moved_from(node: torch.fx.Node) -> torch.fx.Node:
    """The value whose elements a node has, in whatever order."""
    while node.all_input_nodes:
        translation = TRANSLATIONS.get(node.target)
        if node.target is not operator.getitem and (translation is None or not translation.moves):
            break
        node = node.all_input_nodes[0]
    return node


def _is_own(error: Exception) -> bool:
    """Whether an error is nvFuser's own, of compiling or of what it is given; not one of memory or of the device."""
    return type(error) in (RuntimeError, Untranslatable)


def _reason(error: Exception) -> str:
    """The line of an error of nvFuser's that says what is wrong: before it may come a place in its sources and a kernel."""
    lines = str(error).partition("\nException raised from")[0].strip().splitlines()
    said = [line for line in lines if line and "INTERNAL ASSERT" not in line] or lines or [""]
    return next((line for line in said if "error: " in line), said[0])
