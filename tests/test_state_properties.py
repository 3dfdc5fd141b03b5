"""Random programs over Python state and control flow: values and state are eager's at three calls, changed in between."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import tracemill as tm


class State:
    """What a program reads and writes."""

    def __init__(self) -> None:
        self.count = 0
        self.scale = 2.0
        self.flag = True
        self.items: list[Any] = [1, 2]
        self.table: dict[str, Any] = {"a": 1.5}
        self.last: Any = None
        self.held = torch.ones(3)


Step = Callable[[State, Tensor], Tensor]


def counted(state: State, x: Tensor) -> Tensor:
    state.count += 1
    return x


def by_count(state: State, x: Tensor) -> Tensor:
    return x + state.count


def scaled(state: State, x: Tensor) -> Tensor:
    return x * state.scale


def rescaled(state: State, x: Tensor) -> Tensor:
    state.scale = state.scale * 0.5 if state.flag else 3.0
    return x


def flipped(state: State, x: Tensor) -> Tensor:
    state.flag = not state.flag
    return x.abs() if state.flag else -x


def appended(state: State, x: Tensor) -> Tensor:
    state.items.append(len(state.items))
    return x


def summed(state: State, x: Tensor) -> Tensor:
    for item in state.items:
        x = x + item
    return x


def popped(state: State, x: Tensor) -> Tensor:
    return x * state.items.pop() if state.items else x - 1


def kept(state: State, x: Tensor) -> Tensor:
    state.last = x * 2
    return x


def recalled(state: State, x: Tensor) -> Tensor:
    return x if state.last is None else x + state.last


def tabled(state: State, x: Tensor) -> Tensor:
    state.table[f"key {len(state.table) % 3}"] = x.sum()
    return x + state.table["a"]


def added_up(state: State, x: Tensor) -> Tensor:
    state.held.add_(x)
    return x


def replaced(state: State, x: Tensor) -> Tensor:
    state.held = state.held + x
    return x


def of_held(state: State, x: Tensor) -> Tensor:
    return x * state.held


def branched(state: State, x: Tensor) -> Tensor:
    if x.sum() > 4:
        state.count += 10
        return x - 3
    return x + 1


def tried(state: State, x: Tensor) -> Tensor:
    try:
        return x * state.table["key 1"]
    except KeyError:
        state.table["key 1"] = 0.5
        return x


def listed(state: State, x: Tensor) -> Tensor:
    state.items[:1] = [state.count, state.scale]
    return x


STEPS: tuple[Step, ...] = (
    *(counted, by_count, scaled, rescaled, flipped, appended, summed, popped, kept, recalled),
    *(tabled, added_up, replaced, of_held, branched, tried, listed),
)


def set_count(state: State) -> None:
    state.count = 5


def set_flag(state: State) -> None:
    state.flag = not state.flag


def set_items(state: State) -> None:
    state.items = [3]


def set_last(state: State) -> None:
    state.last = torch.full((3,), 2.0)


def set_held(state: State) -> None:
    state.held = torch.zeros(3)


def set_table(state: State) -> None:
    state.table["a"] += 1


def unchanged(state: State) -> None:
    pass


CHANGES = (unchanged, set_count, set_flag, set_items, set_last, set_held, set_table)


def told(value: Any) -> Any:
    """Values that compare, tensors as numbers."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return [(key, told(item)) for key, item in value.items()]
    return [told(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.filterwarnings("ignore:.*is compiled again")
@given(
    st.lists(st.sampled_from(STEPS), min_size=1, max_size=7),
    st.lists(st.sampled_from(CHANGES), min_size=3, max_size=3),
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_programs_over_state(steps: list[Step], changes: list[Callable[[State], None]]) -> None:
    def followed(compiled: Callable[[Any], Any]) -> list[Any]:
        state = State()

        def program(x: Tensor) -> Tensor:
            for step in steps:
                x = step(state, x)
            return x

        called, found = compiled(program), []
        for number, change in enumerate(changes):
            result = called(torch.arange(3.0) + number)
            found.append(copy.deepcopy((result, vars(state))))
            change(state)
        return found

    assert told(followed(tm.jit)) == told(followed(lambda program: program))
