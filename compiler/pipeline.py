"""The pipeline: passes in their order, each taking the program a step further, every step kept."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import networkx

from tracemill.compiler.errors import PassError, PluginError
from tracemill.compiler.pass_base import AnyPass, PassContext
from tracemill.compiler.plugins import PASSES, PLUGINS, Registered
from tracemill.compiler.trace import STAGES, Program, Trace
from tracemill.passes.verify import verify


@dataclass(frozen=True)
class Step:
    """One pass that ran: the program it made, and what it cost.

    seconds: wall time. symbols: bound symbols of all traces, before and after.
    """

    name: str
    stage: str
    program: Program
    seconds: float
    symbols: tuple[int, int]


@dataclass
class History:
    """The steps of one specialisation, oldest first."""

    steps: list[Step] = field(default_factory=list)

    def traces(self, role: str) -> list[Trace]:
        """The traces of a role, one for each step that has it."""
        found = [step.program.traces().get(role) for step in self.steps]
        return [trace for trace in found if trace is not None]


def ordered(passes: Iterable[Registered[AnyPass]]) -> list[AnyPass]:
    """Passes in the order they run: by stage, then `before` and `after`, then ours before others by distribution and name.

    Raises PluginError, naming the plugin, for an unknown stage, an unknown name in before or after, or a cycle.
    """
    known = {registered.item.name: registered for registered in passes}
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_nodes_from(known)
    for name, registered in known.items():
        _add_order(graph, name, registered, known)
    rank = {
        name: (
            STAGES.index(item.item.stage),
            item.distribution != "tracemill",
            item.distribution,
            position,
        )
        for position, (name, item) in enumerate(known.items())
    }
    try:
        return [
            known[name].item
            for name in networkx.lexicographical_topological_sort(graph, key=rank.__getitem__)
        ]
    except networkx.NetworkXUnfeasible:
        cycle = " -> ".join(edge[0] for edge in networkx.find_cycle(graph))
        owners = ", ".join(sorted({known[edge[0]].plugin for edge in networkx.find_cycle(graph)}))
        raise PluginError(
            f"passes that must precede each other: {cycle} (plugins: {owners})"
        ) from None


def _add_order(
    graph: networkx.DiGraph[str],
    name: str,
    registered: Registered[AnyPass],
    known: dict[str, Registered[AnyPass]],
) -> None:
    item = registered.item
    if item.stage not in STAGES:
        raise PluginError(
            f"pass {name!r} of plugin {registered.plugin!r} has unknown stage {item.stage!r}; the stages are {', '.join(STAGES)}"
        )
    for other, edge in [
        *((other, (name, other)) for other in item.before),
        *((other, (other, name)) for other in item.after),
    ]:
        if other not in known:
            raise PluginError(
                f"pass {name!r} of plugin {registered.plugin!r} is ordered against {other!r}, which is no known pass; "
                f"known are {', '.join(known)}"
            )
        graph.add_edge(*edge)
    for other, entry in known.items():
        if STAGES.index(entry.item.stage) < STAGES.index(item.stage):
            graph.add_edge(other, name)


def passes_for(extra: Sequence[AnyPass] = (), disabled: Sequence[str] = ()) -> list[AnyPass]:
    """The registered passes and `extra` ones, without the disabled, in order."""
    registered = dict(PASSES.registered())
    for name in disabled:
        PASSES.get(name)
    for item in extra:
        registered[item.name] = Registered(item, "passes=", "passes=")
    return ordered(entry for name, entry in registered.items() if name not in disabled)


def run(passes: Sequence[AnyPass], context: PassContext, history: History) -> Program:
    """Runs passes on an empty program; each step is added to `history` as soon as it is done."""
    program = Program(Trace("prologue"), Trace("computation"))
    checked = os.environ.get("TRACEMILL_VERIFY") == "1"
    hook = PLUGINS.manager.hook
    for item in passes:
        hook.tracemill_before_pass(apass=item, program=program)
        before = _size(program)
        begun = time.perf_counter()
        program = _run_one(item, program, context)
        seconds = time.perf_counter() - begun
        if checked:
            for trace in program.traces().values():
                verify(trace, item)
        history.steps.append(
            Step(item.name, item.stage, program, seconds, (before, _size(program)))
        )
        hook.tracemill_after_pass(apass=item, program=program, seconds=seconds)
    return program


def _run_one(item: AnyPass, program: Program, context: PassContext) -> Program:
    if item.stage == "interpretation":
        made = item.run(program, context)  # the user's own errors pass unchanged
    else:
        try:
            made = item.run(program, context)
        except Exception as error:
            raise PassError(
                f"pass {item.name!r} of stage {item.stage} failed: {type(error).__name__}: {error}"
            ) from error
    return made.replace(
        **{
            role: trace.replace(stage=item.stage, constructed_by=item.name)
            for role, trace in made.traces().items()
        }
    )


def _size(program: Program) -> int:
    return sum(len(trace.bound_symbols) for trace in program.traces().values())
