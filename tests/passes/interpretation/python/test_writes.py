"""What a program writes to Python state happens at each call as in eager, or it is refused before anything ran."""

from __future__ import annotations

import collections
import contextvars
import queue
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm
from tracemill.compiler.errors import MutationError

Program = Callable[[torch.Tensor], Any]
PROGRAMS: dict[str, tuple[Callable[[], tuple[Program, Callable[[], Any]]], int]] = {}
VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE", default=0)
calls_so_far = 0
TABLE: dict[str, Any] = {}


def writes(*, traces: int) -> Callable[..., Any]:
    """Registers what makes a program and what reads its effects; `traces`: in how many calls of four it is traced."""

    def register(make: Callable[[], tuple[Program, Callable[[], Any]]]) -> Any:
        PROGRAMS[make.__name__] = (make, traces)
        return make

    return register


class State:
    def __init__(self) -> None:
        self.calls = 0
        self.last: Any = None
        self.history: list[Any] = []
        self.table: dict[str, Any] = {}


@writes(traces=1)
def a_counter() -> Any:
    state = State()

    def program(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        return x * 2

    return program, lambda: state.calls


@writes(traces=4)
def a_counter_that_the_result_depends_on() -> Any:
    state = State()

    def program(x: torch.Tensor) -> torch.Tensor:
        state.calls = state.calls + 1
        return x * state.calls

    return program, lambda: state.calls


@writes(traces=1)
def a_global_counter() -> Any:
    global calls_so_far
    calls_so_far = 0

    def program(x: torch.Tensor) -> torch.Tensor:
        global calls_so_far
        calls_so_far += 1
        return x * 2

    return program, lambda: calls_so_far


@writes(traces=1)
def a_counter_in_a_closure() -> Any:
    calls = 0

    def program(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x * 2

    return program, lambda: calls


@writes(traces=1)
def a_tensor_stored() -> Any:
    state = State()

    def program(x: torch.Tensor) -> torch.Tensor:
        state.last = x * 3
        return x * 2

    return program, lambda: state.last


@writes(traces=1)
def an_input_stored() -> Any:
    state = State()

    def program(x: torch.Tensor) -> torch.Tensor:
        state.last = (x, "text", [1.5, None])
        return x * 2

    return program, lambda: state.last


@writes(traces=2)
def a_value_made_once() -> Any:
    state = State()

    def program(x: torch.Tensor) -> torch.Tensor:
        if state.last is None:
            state.last = x * 3
        return x * state.last

    return program, lambda: state.last


@writes(traces=1)
def a_list_that_grows() -> Any:
    state = State()

    def program(x: torch.Tensor) -> torch.Tensor:
        state.history.append(x + 1)
        return x * 2

    return program, lambda: state.history


@writes(traces=4)
def a_list_that_grows_and_is_read() -> Any:
    state = State()

    def program(x: torch.Tensor) -> torch.Tensor:
        state.history.append(x + 1)
        return x * len(state.history)

    return program, lambda: state.history


@writes(traces=1)
def a_list_that_is_replaced() -> Any:
    state = State()

    def program(x: torch.Tensor) -> torch.Tensor:
        state.history = [x + 1, {"two": x + 2}]
        return x * 2

    return program, lambda: state.history


@writes(traces=2)
def an_entry() -> Any:
    state = State()

    def program(x: torch.Tensor) -> torch.Tensor:
        state.table["last"] = x + 1
        return x * 2

    return program, lambda: state.table


@writes(traces=3)
def entries_that_move() -> Any:
    table = collections.OrderedDict(a=1, b=2, c=3)

    def program(x: torch.Tensor) -> torch.Tensor:
        table.move_to_end(next(iter(table)))
        return x * 2

    return program, lambda: list(table.items())


@writes(traces=2)
def an_entry_deleted() -> Any:
    table = {"a": 1, "b": 2}

    def program(x: torch.Tensor) -> torch.Tensor:
        table.pop("a", None)
        return x * 2

    return program, lambda: table


@writes(traces=2)
def a_member_of_a_set() -> Any:
    seen: set[str] = set()

    def program(x: torch.Tensor) -> torch.Tensor:
        seen.add("x")
        return x * 2

    return program, lambda: seen


@writes(traces=1)
def an_object_stored() -> Any:
    state = State()

    class Pair:
        def __init__(self, left: Any, right: Any) -> None:
            self.left, self.right = left, right

    def program(x: torch.Tensor) -> torch.Tensor:
        state.last = Pair(x + 1, "text")
        return x * 2

    return program, lambda: state.last and (state.last.left, state.last.right)


@writes(traces=1)
def an_attribute_that_appears() -> Any:
    space = types.SimpleNamespace()

    def program(x: torch.Tensor) -> torch.Tensor:
        space.late = x + 1
        return x * 2

    return program, lambda: vars(space)


@writes(traces=4)
def what_the_standard_library_writes() -> Any:
    waiting: queue.Queue[Any] = queue.Queue()

    def program(x: torch.Tensor) -> torch.Tensor:
        waiting.put(x + 1)
        return x * 2

    return program, lambda: (waiting.unfinished_tasks, list(waiting.queue))


@writes(traces=1)
def a_class_attribute() -> Any:
    class Counted:
        last: Any = None

    def program(x: torch.Tensor) -> torch.Tensor:
        Counted.last = x + 1
        return x * 2

    return program, lambda: Counted.last


@writes(traces=2)
def a_context_variable() -> Any:
    VARIABLE.set(0)

    def program(x: torch.Tensor) -> torch.Tensor:
        VARIABLE.set(5)
        return x * 2

    return program, VARIABLE.get


@writes(traces=4)
def a_random_generator_of_pythons() -> Any:
    generator = random.Random(0)
    return (lambda x: x * generator.random()), generator.random


@writes(traces=1)
def a_buffer_and_a_counter_of_a_module() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.total: torch.Tensor
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.total = self.total + x
            return x * self.total

    net = Net()
    return net, lambda: (net.calls, dict(net.named_buffers()), sorted(net.__dict__))


@pytest.mark.filterwarnings("ignore:.* is compiled again")
@pytest.mark.parametrize("name", PROGRAMS)
def test_effects_are_eagers(name: str) -> None:
    make, traces = PROGRAMS[name]
    inputs = [torch.full((2,), float(number)) for number in range(4)]
    program, effects = make()
    expected = []
    for x in inputs:
        result = program(x)
        expected.append((result, _copied(effects())))
    program, effects = make()
    jitted = tm.jit(program)
    for x, (result, effect) in zip(inputs, expected, strict=True):
        torch.testing.assert_close(jitted(x), result)
        assert _copied(effects()) == effect
    assert tm.cache_info(jitted).misses == traces


def _copied(value: Any) -> Any:
    """Effects as they are now, tensors as numbers."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor) else repr(value)


def test_arguments_are_written_to() -> None:
    def program(x: torch.Tensor, out: list[Any], table: dict[str, Any], state: State) -> Any:
        out.append(x + 1)
        table["seen"] = x + 2
        state.calls += 1
        return x * 2

    jitted = tm.jit(program)
    x = torch.ones(2)
    for _ in range(3):
        out: list[Any] = []
        table: dict[str, Any] = {}
        state = State()
        jitted(x, out, table, state)
        torch.testing.assert_close((out, table, state.calls), ([x + 1], {"seen": x + 2}, 1))
    assert tm.cache_info(jitted).misses == 1


def test_a_program_that_fails_has_the_effects_that_come_before() -> None:
    state = State()

    def program(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        state.history.append(x)
        state.last = x * 2
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        tm.jit(program)(torch.ones(2))
    assert (state.calls, len(state.history)) == (1, 1)
    assert torch.equal(state.last, torch.full((2,), 2.0))


def test_a_new_function_stored_is_refused() -> None:
    state = State()

    def program(x: torch.Tensor) -> Any:
        state.last = lambda: x
        return x * 2

    with pytest.raises(MutationError, match="stores a new function"):
        tm.jit(program)(torch.ones(2))
    assert state.last is None


def test_a_tensor_kept_out_of_sight_is_refused_by_name_of_its_holder() -> None:
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def program(x: torch.Tensor) -> torch.Tensor:
        waiting.put(x * 2)
        return x + 1

    with pytest.raises(MutationError, match=r"keeps a tensor of the call, .*, in a.*SimpleQueue"):
        tm.jit(program)(torch.ones(2))


def test_the_epilogue_reads_as_the_program_does(golden: Callable[[str, str], None]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.history: list[Any] = []
            self.last: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.history.append(x + 1)
            self.last = {"doubled": x * 2}
            return x

    jitted = tm.jit(Net())
    jitted(torch.ones(2))
    golden(tm.last_epilogue_traces(jitted)[-1].text("minimal"), "epilogue")
