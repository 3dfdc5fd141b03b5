"""Rates: the learning rates that optimisers got as tensors, found again at each call.

lr = groups_0["lr"]
lr_1 = as_tensor(lr)
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.python.places import Place, place_of
from tracemill.passes.interpretation.python.snapshot import Snapshot
from tracemill.passes.interpretation.python.tables import State
from tracemill.passes.interpretation.python.watch import Watch, mentioned
from tracemill.passes.interpretation.python.writes import Changes

_READERS: tuple[Any, ...] = tuple(
    map(inspect.unwrap, (torch.optim.Optimizer.state_dict, torch.optim.Optimizer.__repr__))
)
"""Optimisers' own functions that tell the rate."""


class Rates:
    """The learning rates of one run of a program.

    unchecked: the ids of the groups whose rate nobody but an optimiser reads or writes, so that any will do.
    """

    def __init__(
        self, interpreter: Interpreter, snapshot: Snapshot, watch: Watch, changes: Changes
    ) -> None:
        written = {id(view.owner) for view, changed in changes.items() if "lr" in changed}
        self._found = [
            (group, tensor)
            for group, tensor in interpreter.rates.values()
            if id(group) in snapshot.views and id(group) not in written
        ]
        read = watch.whole or any("lr" in mentioned(code) for code in watch.codes)
        read = read or any(watch.ran(function.__code__) for function in _READERS)
        self.unchecked: set[int] = set() if read else {id(group) for group, _ in self._found}

    def find(self, places: Mapping[int, Place], state: State) -> None:
        """Adds the places of the rates; one that the program itself sets has none, and is a constant."""
        for group, tensor in self._found:
            owner: Any = place_of(group, places)
            state.tensors[id(tensor)] = [owner.child(tensor, (("lr",),), "lr")]
            state.numbers.add(id(tensor))
