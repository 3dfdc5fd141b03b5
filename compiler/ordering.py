"""The order in which passes run."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from tracemill.compiler.errors import OptionError, PluginError
from tracemill.compiler.pass_base import AnyPass, ProgramPass
from tracemill.compiler.plugins import PASSES, Registered, fault_of
from tracemill.compiler.trace import STAGES

RegisteredPass = Registered[AnyPass]


def ordered(passes: Iterable[RegisteredPass]) -> list[RegisteredPass]:
    """Passes in the order they run: by stage; then by `before` and `after`; then ours first, by distribution and name.

    Raises PluginError, naming the plugin, for an unknown stage, a name in before or after that is no pass or a pass of
    another stage, and a cycle.
    """
    known = {registered.item.name: registered for registered in passes}
    for registered in known.values():
        for fault in _faults(registered, known):
            raise PluginError(f"pass {registered.item.name!r} of {registered.owner} {fault}")
    return [
        registered
        for stage in STAGES
        for registered in _within_stage(
            [registered for registered in known.values() if registered.item.stage == stage]
        )
    ]


def _faults(registered: RegisteredPass, known: Mapping[str, RegisteredPass]) -> Iterator[str]:
    item = registered.item
    if item.stage not in STAGES:
        yield f"has unknown stage {item.stage!r}; the stages are {', '.join(STAGES)}"
    for word in ("before", "after"):
        others = getattr(item, word)
        if isinstance(others, str):
            yield f"has {word} = {others!r}; a tuple of names is wanted: ({others!r},)"
            others = ()
        for other in others:
            if other not in known:
                yield f"is to run {word} {other!r}, which is no known pass; known are {', '.join(known)}"
            elif known[other].item.stage != item.stage:
                yield (
                    f"is to run {word} {other!r}, which is of stage {known[other].item.stage}, not {item.stage}; "
                    "the order of stages is fixed"
                )


def _within_stage(passes: Sequence[RegisteredPass]) -> list[RegisteredPass]:
    known = {registered.item.name: registered for registered in passes}
    graph: TopologicalSorter[str] = TopologicalSorter()
    for name, registered in known.items():
        graph.add(name, *registered.item.after)
        for other in registered.item.before:
            graph.add(other, name)
    try:
        graph.prepare()
    except CycleError as error:
        cycle = error.args[1]
        owners = ", ".join(sorted({known[name].owner for name in cycle}))
        raise PluginError(
            f"passes that must each run before the next: {' -> '.join(cycle)} (from {owners})"
        ) from None
    ready: list[tuple[bool, str, str]] = []
    order: list[RegisteredPass] = []
    while graph.is_active():
        for name in graph.get_ready():
            heapq.heappush(ready, (not known[name].is_ours, known[name].distribution, name))
        *_, name = heapq.heappop(ready)
        order.append(known[name])
        graph.done(name)
    return order


def passes_for(extra: Sequence[AnyPass] = (), disabled: Sequence[str] = ()) -> list[RegisteredPass]:
    """The registered passes and `extra` ones, without the disabled, in order.

    An extra pass of the same class as a registered one takes its place: so it is given other options.

    Raises OptionError for what is no pass, a name that another class has, an unknown disabled name, and a disabled pass
    without which there is no program.
    """
    chosen = dict(PASSES.registered())
    for item in extra:
        fault = fault_of(PASSES.hook, item)
        if fault:
            raise OptionError(f"passes=: {fault}")
        known = chosen.get(item.name)
        if known is not None and type(known.item) is not type(item):
            raise OptionError(f"passes=: {known.owner} has a pass named {item.name!r} already")
        owner = Registered(item, f"passes= ({type(item).__module__})")
        chosen[item.name] = (
            owner if known is None else Registered(item, known.plugin, known.distribution)
        )
    for name in disabled:
        item = chosen[name].item if name in chosen else PASSES.get(name)
        if isinstance(item, ProgramPass) and item.runs_program:
            raise OptionError(f"pass {name!r} cannot be disabled: it makes the program")
    return [
        registered
        for registered in ordered(chosen.values())
        if registered.item.name not in disabled
    ]
