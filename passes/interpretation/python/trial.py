"""Trials: user code that PyTorch is asked about, such as a `torch.autograd.Function`, runs besides its own calls.

Its effects on Python state, what it prints and the random numbers that it draws are those of a call that nobody made: they
are undone. At each call of the program the code runs itself, and so do its effects.
"""

from __future__ import annotations

import random
from collections import abc
from contextlib import contextmanager
from typing import Any

import numpy

from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.profiling import unprofiled
from tracemill.passes.interpretation.python.printing import PRINTING, silent
from tracemill.passes.interpretation.python.snapshot import Snapshot
from tracemill.passes.interpretation.python.watch import Watch
from tracemill.passes.interpretation.stand_in import interpretation, refusal


class Handed:
    """A list or dict of the user's that a function is handed at each call, and may write to."""

    def __init__(self, value: Any) -> None:
        self.value = value


def as_given(value: Any) -> Any:
    """What a function is handed."""
    return value.value if type(value) is Handed else value


@contextmanager
def effects_undone(*roots: Any) -> abc.Generator[list[Any]]:
    """The block's effects on Python state are undone: on what is reached from `roots` and from the code that runs in it.

    Gives a list that holds, after the block, the objects reached from `roots` that it wrote to.
    """
    snapshot = Snapshot()
    snapshot.visit(*map(as_given, roots))
    handed, written = set(snapshot.met), list[Any]()
    watch = Watch(lambda code, frame, _whole: snapshot.enter(code, frame.f_globals))
    drawn, arrays_drawn = random.getstate(), numpy.random.get_state(legacy=False)
    token = silent.set(True)
    try:
        with PRINTING, unprofiled(), watch:
            yield written
    finally:
        silent.reset(token)
        random.setstate(drawn)
        numpy.random.set_state(arrays_drawn)
        for view, changed in snapshot.changes().items():
            view.put_back(changed)
            if id(view.owner) in handed:
                written.append(view.owner)


def refuse_new(written: abc.Iterable[Any]) -> None:
    """Raises UnsupportedError for an object that the program has just made: the trace knows it, and not each call's own."""
    recording: Any = interpretation.get()
    if recording is None or recording.found is None:
        return
    for value in written:
        if id(value) not in recording.found:
            raise refusal(
                UnsupportedError(
                    f"a {type(value).__name__} that the program makes is written to by a torch.autograd.Function"
                    f"{recording.at()}; let the function return what it finds, or make the object before the call"
                )
            )
