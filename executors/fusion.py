"""Executors that run regions: groups of operations, each as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tracemill.compiler.lifetimes import freed
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol, FusedSymbol
from tracemill.compiler.trace import Trace


@dataclass(frozen=True)
class Region:
    """Operations that one executor runs as one.

    name: the region's in the program, `mine0`.
    executor: the name of the executor that is to run it.
    bound_symbols: its lines, in an order that can run.
    inputs: the values that they need, each once, in the order of first use.
    outputs: the values that are needed outside. Each has memory of its own (a view that is needed outside of the region
        is made there, from the value that it views) and must have its proxy's strides: what follows relies on them.
    checked: those of the inputs whose metadata is known to be as recorded at each call, strides included.
    program: one object for all regions of a program, forward and backward.
    """

    name: str
    executor: str
    bound_symbols: tuple[BoundSymbol, ...]
    inputs: tuple[Proxy, ...]
    outputs: tuple[TensorProxy, ...]
    checked: frozenset[Proxy] = frozenset()
    program: object = None

    @property
    def trace(self) -> Trace:
        """The region as a trace: from its inputs to a tuple of its outputs, each value freed after its last use."""
        lines = freed(self.bound_symbols, self.outputs)
        return Trace(self.name, self.inputs, lines, self.outputs)

    @property
    def inputs_are_checked(self) -> bool:
        """Whether all inputs are known to be as they were recorded."""
        return self.checked.issuperset(self.inputs)

    def bind(self, impl: Callable[..., Any], *, boxed: bool = False) -> BoundSymbol:
        """The line that runs the region: `t5, t7, = mine0(t1, t2)`.

        impl: from the inputs to a sequence of the outputs. boxed: it takes the inputs in one list, which it may empty to
        free them early.
        """
        return BoundSymbol(
            FusedSymbol(self.name, self.executor, impl),
            ([*self.inputs],) if boxed else self.inputs,
            output=self.outputs,
            subsymbols=self.bound_symbols,
        )


class FusionExecutor:
    """Runs regions of operations; a subclass says which operations, and makes one operation of each region.

    name: how the executor is asked for, and the stem of its regions' names.
    takes_random: whether operations that draw random numbers may be in its regions.
    takes_symbolic: whether sizes may be numbers that differ from call to call.
    strict: whether a region that fails to compile is an error; else it runs on the next executors, with a warning.
    passes: passes of the executor's own, which run where it is asked for.
    """

    name: ClassVar[str] = ""
    takes_random: ClassVar[bool] = False
    takes_symbolic: ClassVar[bool] = False
    passes: Sequence[Any] = ()
    strict: bool = False

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether a line may be in a region.

        It is asked only about lines that may be moved together: functions of tensors that write to nothing.
        """
        raise NotImplementedError

    def obstacle(self, bsym: BoundSymbol) -> str:
        """Why a line may be in no region, for the report; empty where it may. An executor that knows why overrides it."""
        return "" if self.can_fuse(bsym) else "not supported"

    def fuse(self, region: Region) -> BoundSymbol:
        """The line that runs a region: `region.bind(function)`."""
        raise NotImplementedError

    def split(self, lines: Sequence[BoundSymbol]) -> Iterable[Sequence[BoundSymbol]]:
        """The lines that could be one region, cut into those that shall be.

        Each line is in one part, and each part in their order; no two parts may each need what the other makes.
        """
        return (lines,)

    def why_split(self, lines: Sequence[BoundSymbol]) -> str:
        """Why `split` cuts these lines, for the report: it completes "because". An executor that knows why overrides it."""
        return "the executor says so"

    def is_worth(self, region: Region) -> bool:
        """Whether a region gains anything: by default where two of its operations compute, as views do not."""
        return sum(map(computes, region.bound_symbols)) > 1

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """None: operations are run in regions, not by themselves."""
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


def computes(bsym: BoundSymbol) -> bool:
    """Whether a line makes new values: it is no view, and reads tensors, as a constant does not."""
    given = {value.storage for value in bsym.inputs if isinstance(value, TensorProxy)}
    made = [value for value in bsym.outputs if isinstance(value, TensorProxy)]
    return bool(given) and any(value.storage not in given for value in made)


def aliases(bsym: BoundSymbol) -> bool:
    """Whether a line makes a tensor in memory that it was given."""
    given = {value.storage for value in bsym.inputs if isinstance(value, TensorProxy)}
    return any(value.storage in given for value in bsym.outputs if isinstance(value, TensorProxy))


def holds_a_tensor(bsym: BoundSymbol) -> bool:
    """Whether a constant among the arguments is itself a tensor."""
    return any(isinstance(leaf, torch.Tensor) for leaf in bsym.flat_args)
