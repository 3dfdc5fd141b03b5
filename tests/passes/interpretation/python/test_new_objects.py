"""New objects that a program stores: eager's at each call, one where they stand at several places or are returned too."""

from __future__ import annotations

import collections
import dataclasses
import enum
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import tracemill as tm
from tests.test_argument_objects import content

X = torch.tensor([1.0, 2.0])
pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again")


class Plain:
    def __init__(self, value: Any, count: int) -> None:
        self.value, self.count = value, count


class Slotted:
    __slots__ = ("__count", "unset", "value")

    def __init__(self, value: Any, count: int) -> None:
        self.value, self.__count = value, count


class SlottedToo(Slotted):
    """One that has attributes as well."""

    def __init__(self, value: Any, count: int) -> None:
        super().__init__(value, count)
        self.more = [value]


@dataclasses.dataclass
class Data:
    value: Any
    count: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    value: Any
    count: int


class Immutable:
    """What `attrs` makes of a frozen class, by hand."""

    value: Any
    count: int

    def __init__(self, value: Any, count: int) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "count", count)

    def __setattr__(self, *_: Any) -> None:
        raise AttributeError("frozen")

    def __eq__(self, other: object) -> bool:
        return type(other) is Immutable and other.count == self.count

    def __hash__(self) -> int:
        return hash(self.count)


class Named(typing.NamedTuple):
    value: Any
    size: int


class Kind(enum.Enum):
    PLAIN = 1


class Flags(enum.Flag):
    READ, WRITE = 1, 2


class Numbers(collections.OrderedDict[str, Any]):
    """A dict whose way of taking items in is its own."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(f"_{key}", value)


class Shouting(list[Any]):
    def append(self, item: Any) -> None:
        super().append([item])


KINDS: dict[str, Callable[[Tensor, int], Any]] = {
    "an object": Plain,
    "an object with slots": Slotted,
    "an object with slots and attributes": SlottedToo,
    "a dataclass": Data,
    "a frozen dataclass": Frozen,
    "a frozen dataclass with slots": FrozenSlots,
    "an object that refuses to be set": Immutable,
    "a namedtuple": Named,
    "a namespace": lambda value, count: SimpleNamespace(value=value, count=count),
    "a list": lambda value, count: [value, count],
    "a dict": lambda value, count: {"value": value, "count": count},
    "a dict with other keys": lambda value, count: {(1, Kind.PLAIN): value, Flags(3): count},
    "a set of objects": lambda value, count: {Immutable(value, count)},
    "a set of tensors": lambda value, _count: {value},
    "a deque": lambda value, count: collections.deque([value, count], maxlen=2),
    "a defaultdict": lambda value, count: collections.defaultdict(list, {count: [value]}),
    "an ordered dict": lambda value, count: collections.OrderedDict([(count, value), (0, 1)]),
    "a counter": lambda _value, count: collections.Counter({"a": count}),
    "a dict of a class": lambda value, count: Numbers(value=value, count=count),
    "a list of a class": lambda value, count: Shouting([value, count]),
    "an array": lambda _value, count: numpy.full(2, count),
    "bytes": lambda _value, count: bytearray([count]),
    "one in another": lambda value, count: Plain([Slotted(value, count), {"a": value}], count),
}


def compare(make: Callable[[], Callable[[Tensor], Any]], state: Callable[[Any], Any]) -> None:
    """Calls a program three times, and compares results and state with eager."""
    program, eager = make(), make()
    called = tm.jit(program)
    for step in range(3):
        result, expected = called(X + step), eager(X + step)
        assert content([result, state(program)]) == content([expected, state(eager)])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("returns", [False, True])
def test_a_new_object_is_stored(name: str, *, returns: bool) -> None:
    def make() -> Callable[[Tensor], Any]:
        log: list[Any] = []

        def program(x: Tensor) -> Any:
            made = KINDS[name](x * 2, x.shape[0])
            log.append(made)
            return (made, x) if returns else x + 1

        program.log = log  # type: ignore[attr-defined]
        return program

    compare(make, lambda program: program.log)


def test_one_object_at_two_places_is_one() -> None:
    def make() -> Callable[[Tensor], Any]:
        state = SimpleNamespace(first=None, second=None, table={})

        def program(x: Tensor) -> Any:
            state.first = state.second = [x]
            state.table["a"] = state.table["b"] = Plain(state.first, 1)
            return {"list": state.first, "in": [state.table["a"], x]}

        program.state = state  # type: ignore[attr-defined]
        return program

    compare(make, lambda program: program.state)


def test_objects_that_hold_each_other() -> None:
    class Node:
        def __init__(self, value: Any, parent: Any) -> None:
            self.value, self.parent, self.children = value, parent, list[Any]()
            if parent is not None:
                parent.children.append(self)

    def make() -> Callable[[Tensor], Any]:
        state = SimpleNamespace(root=None, itself=None)

        def program(x: Tensor) -> Any:
            state.root = Node(x * 2, None)
            Node(x * 3, state.root)
            state.itself = list[Any]([x])
            state.itself.append(state.itself)
            return Node(x * 4, state.root)

        program.state = state  # type: ignore[attr-defined]
        return program

    compare(make, lambda program: program.state)


def test_gradients_flow_into_what_is_stored_and_returned() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.kept: Any = None

        def forward(self, x: Tensor) -> Any:
            self.kept = Frozen(self.linear(x), 1)
            return self.kept

    module = Keeping()
    called, grads = tm.jit(module), []
    for run in (module, called, called):
        module.zero_grad()
        assert run(X) is module.kept
        module.kept.value.sum().backward()
        grads.append([parameter.grad for parameter in module.parameters()])
    torch.testing.assert_close(grads[1:], grads[:1] * 2)


def test_what_is_stored_first_and_read_afterwards_is_no_check() -> None:
    class Keeping:
        outputs: Any = None

        def step(self, x: Tensor) -> Tensor:
            self.outputs = [x * 2, x * 3]
            return self.outputs[0] + self.outputs[1]

    keeping = Keeping()
    called = tm.jit(keeping.step)
    for step in range(4):
        torch.testing.assert_close(called(X + step), (X + step) * 5)
        torch.testing.assert_close(keeping.outputs[1], (X + step) * 3)
    assert tm.cache_info(called).misses <= 2


def test_the_lines(golden: Any) -> None:
    state = SimpleNamespace(log=[], last=None)

    def program(x: Tensor) -> Any:
        state.log.append(Slotted(x * 2, 1))
        state.last = Frozen([x * 3], 2)
        return state.last

    called = tm.jit(program)
    called(X)
    assert "frozen = bare(Frozen)" in tm.last_prologue_traces(called)[-1].text("minimal")
    golden(tm.last_epilogue_traces(called)[-1].text("minimal"), "lines")
