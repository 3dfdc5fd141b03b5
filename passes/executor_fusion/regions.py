"""Regions: a trace's lines grouped for one fusion executor, and each group made one line."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from tracemill.compiler.proxy import NumberProxy, Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.symbolic import is_symbolic
from tracemill.compiler.trace import Trace
from tracemill.executors.fusion import FusionExecutor, Region, aliases, holds_a_tensor
from tracemill.passes.dce import has_effect, swept
from tracemill.passes.executor_fusion.dependencies import dependencies
from tracemill.passes.executor_fusion.partition import arranged, partition


@dataclass
class Outcome:
    """What became of a trace's lines.

    lines: the new ones. sizes: how many lines each region has. split: how many groups were cut by the executor, and left:
    how many lines were left out, by reason.
    """

    lines: list[BoundSymbol]
    sizes: list[int] = field(default_factory=list)
    split: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """For the report: `4 regions (12 + 3 x 8 lines), split: 1 because it is too long, left out: 1 random`."""
        regions = f"{len(self.sizes)} region{'s' if len(self.sizes) != 1 else ''}"
        runs = ((size, len(list(run))) for size, run in groupby(self.sizes))
        sizes = " + ".join(str(size) if count == 1 else f"{count} x {size}" for size, count in runs)
        lines = f" ({sizes} lines)" if self.sizes else ""
        return regions + lines + _counted("split", self.split) + _counted("left out", self.left)


def _counted(what: str, reasons: Counter[str]) -> str:
    counts = "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f", {what}: {counts}" if counts else ""


class Fusing:
    """Gives a fusion executor its regions of a trace.

    taken: lines that executors before it run. stem: what the names of its regions begin with. program: one object for
    all traces of a program.
    """

    def __init__(
        self,
        trace: Trace,
        executor: FusionExecutor,
        taken: Collection[BoundSymbol],
        stem: str,
        program: object,
    ) -> None:
        self._trace = trace
        self._executor = executor
        self._taken = set(map(id, taken))
        self._stem = stem
        self._program = program
        self._outcome = Outcome([])
        self._outputs = set(trace.outputs)
        self._readers: defaultdict[Proxy, set[int]] = defaultdict(set)
        for n, bsym in enumerate(trace.bound_symbols):
            for value in bsym.inputs:
                self._readers[value].add(n)
        self._checked = frozenset(self._values_of_known_metadata())

    def outcome(self) -> Outcome:
        """The trace's lines with the regions in place."""
        lines = self._trace.bound_symbols
        fusible = [self._is_fusible(bsym) for bsym in lines]
        if not any(fusible):
            self._outcome.lines = list(lines)
            return self._outcome
        follows = dependencies(lines)
        returned = [n for n, bsym in enumerate(lines) if self._outputs.intersection(bsym.outputs)]
        groups = [
            tuple(part)
            for group in partition(follows, fusible, returned)
            for part in self._split(group)
        ]
        kept = self._worth(groups)
        for block in arranged(follows, kept):
            whole = [lines[n] for n in block]
            fused = self._fused(*kept[block]) if block in kept else None
            if block in kept and fused is None:
                self._outcome.left["failed to compile"] += len(block)
            self._outcome.lines.extend(whole if fused is None else fused)
        return self._outcome

    def _is_fusible(self, bsym: BoundSymbol) -> bool:
        if id(bsym) in self._taken or not bsym.outputs:
            return False
        reason = self._obstacle(bsym)
        if reason:
            self._outcome.left[reason] += 1
        return not reason

    def _obstacle(self, bsym: BoundSymbol) -> str:
        """Why a line can be in no region of the executor; empty where it can."""
        executor = self._executor
        if bsym.is_random and not executor.takes_random:
            return "random"
        if (has_effect(bsym) and not bsym.is_random) or writes_inside(bsym):
            return "with effects"
        if not executor.takes_symbolic and any(map(is_symbolic, (*bsym.inputs, *bsym.outputs))):
            return "of symbolic sizes"
        return executor.obstacle(bsym) if is_function_of_tensors(bsym) else "not supported"

    def _split(self, group: Sequence[int]) -> list[list[int]]:
        lines = [self._trace.bound_symbols[n] for n in group]
        number_of = {id(bsym): n for n, bsym in zip(group, lines, strict=True)}
        parts = [
            [number_of.get(id(bsym), -1) for bsym in part] for part in self._executor.split(lines)
        ]
        in_order = all(part == sorted(part) for part in parts)
        if not in_order or sorted(n for part in parts for n in part) != list(group):
            raise ValueError(
                f"split of executor {self._executor.name!r} gave other lines, or another order, than it was given"
            )
        parts = list(filter(None, parts))
        if len(parts) > 1:
            self._outcome.split[f"because {self._executor.why_split(lines)}"] += 1
        return parts

    def _worth(
        self, groups: Sequence[tuple[int, ...]]
    ) -> dict[tuple[int, ...], tuple[Region, list[BoundSymbol]]]:
        """The groups that are worth a region, each with that, without a name yet, and the views to make outside of it."""
        kept: dict[tuple[int, ...], tuple[Region, list[BoundSymbol]]] = {}
        for group in groups:
            region, outside = self._region(group)
            if region.outputs and self._executor.is_worth(region):
                kept[group] = region, outside
            else:
                self._outcome.left["not worth a region"] += len(group)
        return kept

    def _fused(self, region: Region, outside: list[BoundSymbol]) -> list[BoundSymbol] | None:
        """The line that runs a region, then the views outside of it; None where the executor cannot compile it."""
        region = replace(region, name=f"{self._stem}{len(self._outcome.sizes)}")
        try:
            fused = self._executor.fuse(region)
        except Exception as error:
            if self._executor.strict:
                error.add_note(
                    f"while executor {self._executor.name!r} compiled region {region.name}"
                )
                raise
            warnings.warn(
                f"executor {self._executor.name!r} could not compile region {region.name} "
                f"({len(region.bound_symbols)} lines), which runs on the executors after it: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )
            return None
        self._outcome.sizes.append(len(region.bound_symbols))
        return [fused, *outside]

    def _region(self, group: Sequence[int]) -> tuple[Region, list[BoundSymbol]]:
        """The region of a group, and the views to make outside of it."""
        lines = [self._trace.bound_symbols[n] for n in group]
        members = set(group)
        needed = {
            value
            for bsym in lines
            for value in bsym.outputs
            if value in self._outputs or self._readers[value] - members
        }
        outside: list[BoundSymbol] = []
        for bsym in reversed(lines):  # a view of a view needs the first one outside too
            if aliases(bsym) and needed.intersection(bsym.outputs):
                outside.append(bsym)
                needed.update(bsym.inputs)
                needed.difference_update(bsym.outputs)
        inside = swept(Trace(bound_symbols=lines, output=tuple(needed))).bound_symbols
        made = dict.fromkeys(value for bsym in inside for value in bsym.outputs)
        read = dict.fromkeys(value for bsym in inside for value in bsym.inputs)
        outputs = (value for value in made if value in needed and isinstance(value, TensorProxy))
        inputs = (value for value in read if value not in made)
        region = Region(
            "",
            self._executor.name,
            tuple(inside),
            tuple(inputs),
            tuple(outputs),
            self._checked,
            self._program,
        )
        return region, outside[::-1]

    def _values_of_known_metadata(self) -> Iterator[Proxy]:
        """The arguments, which the prologue has checked, and what operations of PyTorch make of such."""
        if self._trace.name == "computation":
            yield from self._trace.args
        for bsym in self._trace.bound_symbols:
            if bsym.sym.path is not None and bsym.is_recorded:
                yield from bsym.outputs


def writes_inside(bsym: BoundSymbol) -> bool:
    """Whether an operation that a line consists of writes to a tensor."""
    return any(operation._schema.is_mutable for operation in bsym.operations)


def is_function_of_tensors(bsym: BoundSymbol) -> bool:
    """Whether a line makes new tensors, or views, of tensors and constants alone."""
    given = [value for value in bsym.inputs if not isinstance(value, NumberProxy)]
    made = [value for value in bsym.outputs if isinstance(value, TensorProxy)]
    if len(made) != sum(isinstance(out, Proxy) for out in bsym.flat_outs) or holds_a_tensor(bsym):
        return False
    if not all(isinstance(value, TensorProxy) for value in given) or set(given) & set(made):
        return False
    known = {value.storage for value in given if isinstance(value, TensorProxy)}
    fresh = [value.storage for value in made if value.storage not in known]
    return len(fresh) == len(set(fresh))
