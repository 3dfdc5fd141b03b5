"""Observe: runs the program while its Python state is watched, and puts back what it changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from types import CodeType, FrameType
from typing import Any

import torch

from tracemill.compiler.errors import MutationError, TracemillError, UninitialisedError
from tracemill.compiler.names import Names
from tracemill.compiler.pass_base import PassContext
from tracemill.compiler.profiling import unprofiled
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.settings import Ambient
from tracemill.compiler.state_checks import IDENTICAL
from tracemill.compiler.trace import Trace
from tracemill.passes.interpretation.gradients.grad_state import GradState
from tracemill.passes.interpretation.gradients.rates import Rates
from tracemill.passes.interpretation.inputs import Inputs
from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.outputs import Output, Returned
from tracemill.passes.interpretation.python import asked_names
from tracemill.passes.interpretation.python.asked_names import ASKERS
from tracemill.passes.interpretation.python.cached_functions import CachedFunctions
from tracemill.passes.interpretation.python.classes import IDENTITIES, TYPE_ANSWERS
from tracemill.passes.interpretation.python.conditions import GLOBAL_HOOKS, StateCheck
from tracemill.passes.interpretation.python.epilogue import EpilogueBuilder, places_of
from tracemill.passes.interpretation.python.fetch import Fetched, Fetcher
from tracemill.passes.interpretation.python.messages import Message, kept
from tracemill.passes.interpretation.python.new_objects import NewObject, new_objects
from tracemill.passes.interpretation.python.passed import StandsElsewhere
from tracemill.passes.interpretation.python.places import Place, place_of
from tracemill.passes.interpretation.python.sharp_edges import SharpEdges
from tracemill.passes.interpretation.python.snapshot import Snapshot
from tracemill.passes.interpretation.python.state import Walk
from tracemill.passes.interpretation.python.tables import State
from tracemill.passes.interpretation.python.usage import Usage
from tracemill.passes.interpretation.python.watch import Watch
from tracemill.passes.interpretation.python.writes import (
    Changes,
    Writer,
    sole_names,
    unchecked,
)
from tracemill.passes.interpretation.randomness import generators_of
from tracemill.passes.interpretation.session import interpreting, refuse_changed_settings
from tracemill.passes.interpretation.stand_in import own_attributes


@dataclass(frozen=True)
class Observed:
    """A run of the program on stand-ins.

    output: what it returned, in proxies. changes: what it wrote, put back already. made: the new objects among that.
    messages: the warnings and log records that it gave.
    """

    output: Output
    snapshot: Snapshot
    watch: Watch
    edges: SharpEdges
    changes: Changes
    made: list[NewObject]
    messages: list[Message]


def observe(
    interpreter: Interpreter,
    context: PassContext,
    values: Sequence[Any],
    roots: Iterable[Place],
    inputs: Inputs,
) -> Observed:
    """Runs the program on `values`, one for each parameter. Raises what the program raises, its writes undone."""
    call = context.call
    snapshot = Snapshot()
    snapshot.visit(*(place.value for place in roots))
    snapshot.visit(*(value for value, _ in inputs.containers))
    snapshot.visit(torch.Tensor, *(hooks for hooks in GLOBAL_HOOKS.values() if hooks))
    given = {id(place.value): proxy for place, proxy in inputs.opaque}
    given |= {id(value): proxy for value, proxy in inputs.containers}
    context.printed.clear()
    edges = SharpEdges(context.sharp_edges, printed=context.printed)
    standing_in, messages = ExitStack(), list[Message]()

    def enter(code: CodeType, frame: FrameType, whole: bool) -> None:
        if "type" in code.co_names:
            standing_in.enter_context(TYPE_ANSWERS)
        if "id" in code.co_names:
            standing_in.enter_context(IDENTITIES)
        if not ASKERS.keys().isdisjoint(code.co_names):
            standing_in.enter_context(asked_names.ASKING)
        snapshot.enter(code, frame.f_globals, whole=whole)

    def tell(owner: Any, name: str) -> None:
        watch.asked_for(name)
        snapshot.asked_for(owner, name)

    changes: Changes | None = None
    watch = Watch(enter, edges, CachedFunctions(snapshot, interpreter))
    interpreter.handles, interpreter.found = watch.has_handlers, snapshot.met
    try:
        with (
            standing_in,
            asked_names.told(tell),
            kept(messages),
            interpreter.surroundings(),
            interpreting(interpreter, generators_of(call.form.target, call.values)),
            edges.watching(),
            watch,
        ):
            returned = _called(interpreter, context, values)
            with unprofiled():
                refuse_set_attributes(interpreter)
                changes = snapshot.changes()
                made = new_objects(changes.values(), returned, snapshot.met)
            given |= {id(new.value): new.proxy for new in made if new.is_returned}
            output = Returned(interpreter, given, snapshot.met).output(returned)
    except BaseException:
        edges.put_back_draws()
        raise
    finally:
        interpreter.handles, interpreter.found = bool, None  # which hold what was watched no longer
        changes = snapshot.changes() if changes is None else changes
        for view, changed in changes.items():
            view.put_back(changed)
        settings = edges.settings.put_back()
    refuse_changed_settings(settings)
    edges.report()
    context.handles = watch.handles
    return Observed(output, snapshot, watch, edges, changes, made, messages)


def _arguments_found(interpreter: Interpreter, state: State) -> Iterator[StateCheck]:
    """The checks that tensors among the arguments stand where the program finds them as well."""
    for proxy, tensor in interpreter.lifted.values():
        if proxy in interpreter.inputs:
            for place in state.tensors.get(id(tensor), ()):
                subject = f"{place.hint}: the same tensor as {proxy.name}"
                yield StateCheck(subject, place.parent, IDENTICAL, (proxy,), place.steps)


def refuse_set_attributes(interpreter: Interpreter) -> None:
    """Raises MutationError where the program gave an attribute to a tensor that it did not make."""
    for _, tensor in list(interpreter.lifted.values()):
        stand_in = interpreter.lift(tensor)
        for name in own_attributes(stand_in):
            if vars(stand_in)[name] is not vars(tensor).get(name):
                raise MutationError(
                    f"the program sets an attribute of a tensor, {name!r}, which the compiled program would not do; keep it "
                    "elsewhere"
                )


def _called(interpreter: Interpreter, context: PassContext, values: Sequence[Any]) -> Any:
    """What the program returns. What it raises by itself, with PyTorch's settings as they were, eager can raise too.

    Raises a refusal that the program met, also where it caught it.
    """
    try:
        returned = context.call.form.call(values)
    except UninitialisedError as error:
        context.raised = error
        raise
    except TracemillError:
        raise
    except Exception as error:
        if interpreter.refused is not None:
            raise interpreter.refused from error
        if not interpreter.around.differences(Ambient.now()):
            context.raised = error
        raise
    if interpreter.refused is not None:  # the program caught it
        raise interpreter.refused
    if (
        interpreter.failed is not None
    ):  # so did it here, and may not with what other calls' tensors hold
        context.raised = interpreter.failed
        raise interpreter.failed
    return returned


def state_lines(
    seen: Observed,
    interpreter: Interpreter,
    inputs: Inputs,
    roots: dict[Place, Proxy],
    target: tuple[Proxy, Any],
    names: Names,
    *,
    checked: bool,
) -> tuple[Fetched, Trace | None]:
    """The prologue's lines for the state that the program read, and the epilogue for what it wrote.

    target: the program itself, by the name that the text has for it.
    """
    usage = Usage(seen.watch.codes, seen.watch.unseen_names, whole=seen.watch.whole)
    free = unchecked(seen.changes, usage, sole_names(seen.snapshot, seen.changes))
    walk = Walk(seen.snapshot, seen.watch, seen.changes, free, interpreter.lifted)
    handed = {Place(value, None, (), proxy.name): proxy for value, proxy in inputs.containers}
    handed |= {new.place: new.proxy for new in seen.made}
    walk.places.update((id(place.value), place) for place in handed)
    by_proxy = {proxy: place for place, proxy in handed.items()}
    rates = Rates(interpreter, seen.snapshot, seen.watch, seen.changes)
    walk.rates |= rates.unchecked
    state = walk.run(roots, {key: by_proxy[proxy] for key, proxy in inputs.originals.items()})
    if seen.watch.compares and not inputs.hidden.isdisjoint(state.tensors):
        raise StandsElsewhere(frozenset(inputs.hidden & state.tensors.keys()))
    rates.find(walk.places, state)
    grads = GradState(interpreter, state)
    state.checks.extend(_arguments_found(interpreter, state))
    state.checks.extend(seen.edges.checks())
    state.checks.extend(seen.edges.settings.checks(seen.watch.ran))
    writer = Writer(seen.snapshot, interpreter, walk.places, free, usage)
    fillings = chain.from_iterable(new.filling() for new in seen.made)
    writes = [*grads.writes(), *writer.writes(fillings), *writer.writes(seen.changes.items())]
    writes += map(writer.message, seen.messages)
    own = [pair for pair in interpreter.lifted.values() if pair[0] not in interpreter.inputs]
    returned = {place_of(value, walk.places): proxy for value, proxy in seen.output.found}
    fetcher = Fetcher(roots | handed | grads.owners, names, returned, checked=checked)
    for new in seen.made:
        new.proxy._name = names.claim(new.place.hint)
    fetched = fetcher.fetch(own, state, places_of(writes))
    fetched.lines += fetcher.made(new for new in seen.made if new.is_returned)
    if not writes:
        return fetched, None
    bound = {**fetcher.bound(), target[0]: target[1]}
    later = (new for new in seen.made if not new.is_returned)
    return fetched, EpilogueBuilder(fetched.reached, bound, later, names).build(writes)
