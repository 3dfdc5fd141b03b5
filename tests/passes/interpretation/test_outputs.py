"""What a program returns: made anew at each call, once where it stands twice; what it found is returned as itself."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import tracemill as tm


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    first: Any
    second: Any = None


class Slotted:
    __slots__ = ("first",)


def slotted(first: Any) -> Slotted:
    made = Slotted()
    made.first = first
    return made


Named = collections.namedtuple("Named", "first second")

MADE: dict[str, Callable[[Tensor], Any]] = {
    "a list": lambda x: [x],
    "a dict": lambda x: {"first": x},
    "a tuple": lambda x: (x,),
    "a namedtuple": lambda x: Named(x, 1),
    "a dataclass": lambda x: Pair(x),
    "a frozen dataclass": lambda x: Frozen(x),
    "a deque": lambda x: collections.deque([x], maxlen=3),
    "a defaultdict": lambda x: collections.defaultdict(list, first=x),
    "a Counter": lambda _x: collections.Counter("aab"),
    "a set": lambda _x: {1, 2},
    "an object": lambda x: types.SimpleNamespace(first=x),
    "an object with slots": lambda x: slotted(x),
    "a numpy array": lambda _x: numpy.zeros(2),
    "a bytearray": lambda _x: bytearray(b"ab"),
}


@pytest.mark.parametrize("name", MADE)
def test_an_object_that_stands_twice_is_one_object(name: str) -> None:
    def program(x: Tensor) -> Any:
        made = MADE[name](x + 1)
        return made, [made, {"inner": made}]

    jitted = tm.jit(program)
    for _ in range(2):
        one, (other, within) = jitted(torch.ones(2))
        assert one is other is within["inner"]
        assert type(one) is type(MADE[name](torch.ones(2)))


@pytest.mark.parametrize("name", MADE)
def test_an_object_that_the_program_makes_is_another_at_each_call(name: str) -> None:
    jitted = tm.jit(lambda x: MADE[name](x + 1))
    assert jitted(torch.ones(2)) is not jitted(torch.ones(2))


def test_what_objects_share_stays_shared() -> None:
    def program(x: Tensor) -> Any:
        inner = [x * 2]
        return Pair(inner, {"again": inner}), Frozen(inner, inner[0])

    pair, frozen = tm.jit(program)(torch.ones(2))
    assert pair.first is pair.second["again"] is frozen.first
    assert frozen.second is pair.first[0]


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "a list": lambda: [torch.ones(2)],
    "a dict": lambda: {"first": torch.ones(2)},
    "a set": lambda: {1, 2},
    "an object": lambda: types.SimpleNamespace(first=1),
    "a dataclass": lambda: Pair(torch.ones(2)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_is_returned_as_itself(name: str) -> None:
    jitted = tm.jit(lambda x, argument: (x * 2, argument, [argument]))
    for _ in range(2):
        argument = ARGUMENTS[name]()
        _, one, (other,) = jitted(torch.ones(2), argument)
        assert one is other is argument


STATE: dict[str, Callable[[], Any]] = {
    "a list": lambda: [1, 2],
    "a dict of tensors": lambda: {"first": torch.ones(2)},
    "a tuple of tensors": lambda: (torch.ones(2),),
    "a set": lambda: {1, 2},
    "a deque": lambda: collections.deque([1]),
    "an object": lambda: Pair(torch.ones(2)),
}


@pytest.mark.parametrize("name", STATE)
def test_an_object_of_the_state_is_returned_as_itself(name: str) -> None:
    holder = types.SimpleNamespace(held=STATE[name]())
    jitted = tm.jit(lambda x: (x * 2, holder.held))
    for _ in range(2):
        assert jitted(torch.ones(2))[1] is holder.held
    holder.held = STATE[name]()
    assert jitted(torch.ones(2))[1] is holder.held


@pytest.mark.filterwarnings("ignore:.*is compiled again")
def test_a_list_of_the_state_that_is_appended_to_is_returned_as_itself() -> None:
    log: list[Tensor] = []

    def program(x: Tensor) -> list[Tensor]:
        log.append(x * 2)
        return log

    jitted = tm.jit(program)
    for calls in (1, 2, 3):
        assert jitted(torch.ones(2)) is log
        assert len(log) == calls


@pytest.mark.parametrize(
    "returned", [lambda x: iter([1]), lambda x: (i for i in [1]), lambda x: enumerate([1])]
)
def test_an_iterator_is_refused(returned: Callable[[Tensor], Any]) -> None:
    with pytest.raises(tm.UnsupportedError, match="goes on after the call"):
        tm.jit(returned)(torch.ones(2))


def test_a_structure_that_holds_itself_is_refused() -> None:
    def program(x: Tensor) -> Any:
        made: dict[str, Any] = {"x": x + 1}
        made["self"] = made
        return made

    with pytest.raises(tm.UnsupportedError, match="a dict that holds itself"):
        tm.jit(program)(torch.ones(2))
