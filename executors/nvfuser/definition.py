"""Definitions: a graph of ATen operations as an nvFuser program, for inputs of one layout."""

from __future__ import annotations

import operator
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tracemill.executors.nvfuser.builder import Builder
from tracemill.executors.nvfuser.layout import Layout, is_dense, memory_order
from tracemill.executors.nvfuser.library import library
from tracemill.executors.nvfuser.registry import Untranslatable
from tracemill.executors.nvfuser.values import sizes_of

_NUMBERS = {
    bool: "Bool",
    int: "Int",
    torch.SymInt: "Int",
    float: "Double",
    torch.SymFloat: "Double",
}
_lock = threading.RLock()


class Definition:
    """An nvFuser program.

    program: the `FusionDefinition`. draws: how many draws of random numbers it makes; where there are any, it takes seed
    and offset after its inputs.
    """

    def __init__(self, program: Any, draws: int) -> None:
        self.program = program
        self.draws = draws
        self._lock = threading.Lock()

    def __call__(self, inputs: Sequence[Any], device: torch.device) -> list[torch.Tensor]:
        """Runs the program on inputs that lie on `device`; the first time it is compiled."""
        given = list(inputs)
        with (
            self._lock,
            torch.cuda.device(device),
        ):  # regions share definitions, and threads may run them at once
            if self.draws:
                given += random_state(torch.cuda.default_generators[device.index], self.draws)
            return self.program.execute(given, device=device)

    def __str__(self) -> str:
        return repr(self.program).strip()


def define(
    graph: torch.fx.Graph, layouts: Sequence[Layout | None], options: frozenset[str] = frozenset()
) -> Definition:
    """The definition of a graph.

    layouts: of the graph's placeholders, None for numbers. options: the families of operations, of
    `registry.OPTIONS`, that are translated too. Raises Untranslatable, with a reason, where that cannot be done.
    """
    with _defining() as program:
        builder = Builder(program, options)
        at = iter(layouts)
        on_gpu = any(_is_on_gpu(node.meta.get("val")) for node in graph.nodes)
        for node in graph.nodes:
            if node.op == "placeholder":
                _define_input(builder, node, next(at), on_gpu)
            elif node.op == "call_function":
                _write(builder, node)
            elif node.op == "output":
                _define_outputs(builder, node, reordered=any(x and x.order for x in layouts))
            else:
                raise Untranslatable(f"{node.op} {node.target}")
        return Definition(program, builder.draws)


def _is_on_gpu(meta: Any) -> bool:
    return isinstance(meta, torch.Tensor) and meta.device.type == "cuda"


@contextmanager
def _defining() -> Generator[Any]:
    """An open definition; closed by hand, since leaving by an exception would print it."""
    with _lock:
        program = library().FusionDefinition()
        program.__enter__()
        try:
            yield program
        finally:
            program.__exit__(None, None, None)


def _define_input(
    builder: Builder, node: torch.fx.Node, layout: Layout | None, on_gpu: bool
) -> None:
    meta = node.meta["val"]
    if not isinstance(meta, torch.Tensor):
        builder.define_scalar(node, _NUMBERS[type(meta)])
        return
    if layout is None:
        raise TypeError(f"{node.name} is a tensor and has no layout")
    shape = [size if isinstance(size, int) else -1 for size in sizes_of(meta)]
    is_cpu = meta.device.type == "cpu" and on_gpu
    builder.define_tensor(node, shape, layout.contiguity, layout.order, is_cpu)


def _write(builder: Builder, node: torch.fx.Node) -> None:
    try:
        builder.write(node)
    except (RuntimeError, TypeError) as error:  # nvFuser's, about arguments that it does not take
        raise Untranslatable(f"{node.target}: {str(error).strip().splitlines()[0]}") from error


def _define_outputs(builder: Builder, node: torch.fx.Node, *, reordered: bool) -> None:
    """Lays the outputs out as PyTorch does.

    reordered: whether inputs are laid out in another order than that of their dimensions, which nvFuser would take over.
    """
    for output in _flat(node.args[0]):
        meta = output.meta["val"]
        if not is_dense(meta) and not _is_view(output):
            raise Untranslatable(f"{output.name} has gaps in memory")
        order = memory_order(meta)
        if order is None and reordered:
            order = list(range(meta.dim()))[::-1]
        builder.output(builder.value(output), order)


def _is_view(node: torch.fx.Node) -> bool:
    """Whether a node is a view, which is made outside where it is needed there: a line that is tried alone."""
    made: Any = node.args[0] if node.target is operator.getitem else node
    schema = getattr(made.target, "_schema", None)
    return schema is not None and any(one.alias_info is not None for one in schema.returns)


def _flat(outputs: Any) -> list[torch.fx.Node]:
    return [outputs] if isinstance(outputs, torch.fx.Node) else list(outputs)


NUMBERS_PER_OFFSET = 4
"""How many numbers one call of the Philox generator makes.

nvFuser's offset counts the calls, and each draw makes one for every four elements; PyTorch's offset counts the numbers.
"""


def random_state(generator: torch.Generator, draws: int) -> tuple[int, int]:
    """Seed and offset, as nvFuser counts, of a generator of CUDA's, which is advanced past this many draws."""
    offset = generator.get_offset()
    generator.set_offset(offset + NUMBERS_PER_OFFSET * draws)
    seed = generator.initial_seed()
    signed = (
        seed - 2**64 if seed >= 2**63 else seed
    )  # nvFuser's Int has a sign; the bits are what counts
    return signed, offset // NUMBERS_PER_OFFSET
