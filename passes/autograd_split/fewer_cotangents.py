"""Fewer cotangents: the backward for a call of which only some outputs are used, made when it is first needed.

The forward has run by then, so what it saves is settled; a missing cotangent is no zero: its terms are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracemill.compiler.names import Names
from tracemill.compiler.proxy import Proxy
from tracemill.compiler.trace import Program
from tracemill.compiler.values import proxies
from tracemill.passes.autograd_split.chain import Derivation, name_values
from tracemill.passes.autograd_split.halves import Halves
from tracemill.passes.autograd_split.restoring import producers, restored
from tracemill.passes.autograd_split.saving import unpackings


def with_fewer_cotangents(
    program: Program,
    derivation: Derivation,
    defined: Sequence[bool],
    ends: Sequence[int] = (),
    *,
    to_ends: bool = False,
) -> Program:
    """A split program with another backward: for cotangents of those outputs only that `defined` says.

    ends: positions of outputs whose gradients from other outputs go no further; these are what the backward returns where
    it leads `to_ends`.
    Raises UnsupportedError when it needs a value that the forward neither saved nor can make again.
    """
    outs = [out for out, there in zip(derivation.outputs, defined, strict=True) if there]
    ends_at = [derivation.outputs[position] for position in ends]
    chained = derivation.backward(outs, ends_at)
    gradients = tuple(map(chained.met.get, ends_at)) if to_ends else chained.gradients
    forward = derivation.forward()
    names = Names(name for trace in program.traces().values() for name in trace.names)
    names.reserve(out.name for bsym in forward for out in bsym.outputs)
    name_values(chained.lines, chained.cotangents, names)
    result, kept = program.computation.output
    saved = tuple(proxies(kept))
    made_by = producers([*forward, *program.computation.bound_symbols])
    made_by.update(unpackings(Halves.of(program)))
    free: set[Proxy] = set(saved)
    lines = restored(chained.lines, gradients, made_by, free)
    computation = program.computation.replace(output=result)
    halves = Halves(computation, chained.cotangents, tuple(lines), gradients)
    made = halves.program(program, saved=saved)
    assert made.backward is not None
    notes = tuple(_notes(derivation, defined, ends_at, to_ends=to_ends))
    return program.replace(backward=made.backward.replace(notes=notes))


def _notes(
    derivation: Derivation, defined: Sequence[bool], ends: Sequence[Proxy], *, to_ends: bool
) -> Iterator[str]:
    """What the backward is for."""
    pairs = list(zip(derivation.outputs, defined, strict=True))
    missing = ", ".join(out.name for out, there in pairs if not there)
    if missing and not to_ends:
        yield f"for calls without a cotangent of {missing}"
    if ends:
        names = ", ".join(out.name for out in ends)
        given = ", ".join(out.name for out, there in pairs if there)
        yield (
            f"from {given} to {names}" if to_ends else f"without what comes to {names} from others"
        )
