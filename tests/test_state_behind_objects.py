"""State that stands behind objects of Python's own: a change is seen at the next call, and no change traces nothing."""

from __future__ import annotations

import abc
import array
import collections
import operator
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tracemill as tm

Program = Callable[..., Any]
Change = Callable[[], object]
KINDS: dict[str, Callable[[], tuple[Program, Change]]] = {}
X = torch.tensor([1.0, 2.0])


def kind(build: Callable[[], tuple[Program, Change]]) -> Callable[[], tuple[Program, Change]]:
    """Registers a program with a change to the state that it reads."""
    KINDS[build.__name__.replace("_", " ")] = build
    return build


class Held:
    scale = 2.0


class Number(int):
    """A number that has attributes."""


class Text(str):
    """A text that has attributes."""


class Described:
    """A descriptor that keeps its values beside the objects."""

    def __init__(self) -> None:
        self.values: Any = weakref.WeakKeyDictionary()

    def __get__(self, owner: Any, _cls: Any = None) -> Any:
        return self.values.get(owner, 2.0)

    def __set__(self, owner: Any, value: Any) -> None:
        self.values[owner] = value


@kind
def a_dictionary_with_weak_keys() -> tuple[Program, Change]:
    class Owner:
        scale = Described()

    owner = Owner()
    return (lambda x: x * owner.scale), lambda: setattr(owner, "scale", 3.0)


@kind
def an_object_among_weak_values() -> tuple[Program, Change]:
    held = Held()
    table: Any = weakref.WeakValueDictionary({"held": held})
    return (lambda x: x * table["held"].scale), lambda: setattr(held, "scale", 3.0)


@kind
def a_set_of_weak_references() -> tuple[Program, Change]:
    held, other = Held(), Held()
    members: Any = weakref.WeakSet([held])
    return (lambda x: x * len(members)), lambda: members.add(other)


@kind
def a_chain_of_dictionaries() -> tuple[Program, Change]:
    first: dict[str, float] = {}
    chain = collections.ChainMap(first, {"scale": 2.0})
    return (lambda x: x * chain["scale"]), lambda: first.update(scale=3.0)


@kind
def an_empty_dictionary_that_is_merged_into() -> tuple[Program, Change]:
    table: dict[str, float] = {}
    return (lambda x: x * table.get("scale", 2.0)), lambda: table.update({"scale": 3.0})


@kind
def an_object_without_attributes_whose_dictionary_is_merged_into() -> tuple[Program, Change]:
    class Settings:
        pass

    settings = Settings()
    return (lambda x: x * getattr(settings, "scale", 2.0)), lambda: vars(settings).update(scale=3.0)


@kind
def an_empty_dictionary_among_many() -> tuple[Program, Change]:
    tables = [{"scale": 1.0} for _ in range(12)]
    last: dict[str, float] = {}

    def program(x: Tensor) -> Tensor:
        for table in (*tables, last):
            x = x * table.get("scale", 2.0)
        return x

    return program, lambda: last.update({"scale": 3.0})


@kind
def a_dictionary_by_its_bound_method() -> tuple[Program, Change]:
    table = {"scale": 2.0}
    get = table.get
    return (lambda x: x * get("scale", 5.0)), table.clear


@kind
def a_dictionary_by_its_views() -> tuple[Program, Change]:
    table = {"scale": 2.0}
    keys, values = table.keys(), table.values()
    return (lambda x: x * len(keys) + sum(values)), lambda: table.update(other=3.0)


@kind
def a_dictionary_behind_a_proxy() -> tuple[Program, Change]:
    table = {"scale": 2.0}
    proxy = types.MappingProxyType(table)
    return (lambda x: x * proxy["scale"]), lambda: table.update(scale=3.0)


@kind
def an_attribute_by_an_attrgetter() -> tuple[Program, Change]:
    owner, get = types.SimpleNamespace(held=Held()), operator.attrgetter("held.scale")
    return (lambda x: x * get(owner)), lambda: setattr(owner.held, "scale", 3.0)


@kind
def an_attribute_of_a_number() -> tuple[Program, Change]:
    number: Any = Number(2)
    number.scale = 2.0
    return (lambda x: x * number * number.scale), lambda: setattr(number, "scale", 3.0)


@kind
def an_attribute_of_a_text() -> tuple[Program, Change]:
    text: Any = Text("ab")
    text.scale = 2.0
    return (lambda x: x * len(text) * text.scale), lambda: setattr(text, "scale", 3.0)


@kind
def an_attribute_of_a_tensor() -> tuple[Program, Change]:
    weight: Any = torch.ones(2)
    weight.scale = 2.0
    return (lambda x: x * weight * weight.scale), lambda: setattr(weight, "scale", 3.0)


@kind
def an_attribute_of_a_parameter() -> tuple[Program, Change]:
    layer: Any = nn.Linear(2, 2, bias=False)
    layer.weight.scale = 2.0
    return (lambda x: x * layer.weight.scale), lambda: setattr(layer.weight, "scale", 3.0)


@kind
def a_bytearray() -> tuple[Program, Change]:
    buffer = bytearray(b"\x02")
    return (lambda x: x * buffer[0]), lambda: buffer.__setitem__(0, 3)


@kind
def a_bytearray_by_a_memoryview() -> tuple[Program, Change]:
    buffer = bytearray(b"\x02")
    view = memoryview(buffer)
    return (lambda x: x * view[0]), lambda: buffer.__setitem__(0, 3)


@kind
def an_array() -> tuple[Program, Change]:
    numbers = array.array("i", [2])
    return (lambda x: x * numbers[0]), lambda: numbers.__setitem__(0, 3)


@kind
def a_class_that_is_registered() -> tuple[Program, Change]:
    class Abstract(abc.ABC):  # noqa: B024 -- others are registered with it
        pass

    held = Held()
    program = lambda x: x * (2 if isinstance(held, Abstract) else 3)  # noqa: E731
    return program, lambda: Abstract.register(Held)


@kind
def a_module_that_is_imported_inside() -> tuple[Program, Change]:
    def module(scale: float) -> types.ModuleType:
        made = types.ModuleType("imported_inside")
        made.scale = scale  # type: ignore[attr-defined]
        return made

    sys.modules["imported_inside"] = module(2.0)

    def program(x: Tensor) -> Tensor:
        import imported_inside  # type: ignore[import-not-found]

        return x * imported_inside.scale

    return program, lambda: sys.modules.update(imported_inside=module(3.0))


@kind
def the_text_of_a_namespace() -> tuple[Program, Change]:
    space = types.SimpleNamespace(scale=2.0)
    return (lambda x: x * len(f"{space}")), lambda: setattr(space, "scale", 12.25)


@pytest.mark.parametrize("name", KINDS)
def test_a_change_is_seen(name: str) -> None:
    program, change = KINDS[name]()
    called = tm.jit(program)
    for _ in range(2):
        assert torch.equal(called(X), program(X))
    assert tm.cache_info(called).misses == 1, "traced again though nothing changed"
    before = program(X)
    change()
    assert not torch.equal(program(X), before)
    for _ in range(2):
        assert torch.equal(called(X), program(X))
    assert tm.cache_info(called).misses == 2


@pytest.mark.filterwarnings("ignore:.*is compiled again")
def test_an_attribute_of_an_argument() -> None:
    called = tm.jit(lambda x: x * x.scale)
    for scale in (2.0, 2.0, 3.0):
        x: Any = torch.ones(2)
        x.scale = scale
        assert torch.equal(called(x), x * scale)
    assert tm.cache_info(called).misses == 2


def test_an_attribute_that_the_program_sets_is_refused() -> None:
    def on_an_argument(x: Any) -> Tensor:
        x.seen = True
        return x * 2

    def on_a_result(x: Any) -> Tensor:
        made: Any = x * 2
        made.seen = True
        return made

    for program in (on_an_argument, on_a_result):
        with pytest.raises(tm.UnsupportedError, match="'seen'"):
            tm.jit(program)(torch.ones(2))


def test_the_id_of_an_argument_is_refused() -> None:
    memo: dict[int, Tensor] = {}
    with pytest.raises(tm.UnsupportedError, match=r"id of an argument.*test_state_behind_objects"):
        tm.jit(lambda x: memo.setdefault(id(x), x * 2))(X)


def test_a_default_that_can_be_written_to_is_one_object() -> None:
    def scenario(jit: Any) -> Any:
        def program(x: Tensor, log: list[int] = [], *, table: Any = {}) -> Any:  # noqa: B006
            log.append(1)
            table["calls"] = len(log)
            return x.sum().item() * len(log), log, table

        called = jit(program)
        found = [called(X), called(X)[:1]]
        return found, program.__defaults__, program.__kwdefaults__

    assert scenario(tm.jit) == scenario(lambda program: program)


@pytest.mark.filterwarnings("ignore:.*is compiled again")
def test_bound_methods_and_namedtuples_are_stored() -> None:
    State = collections.namedtuple("State", "total calls")

    class Machine:
        def __init__(self) -> None:
            self.step = self.up
            self.state = State(torch.zeros(2), 0)

        def up(self, x: Tensor) -> Tensor:
            self.step = self.down
            return x + 1

        def down(self, x: Tensor) -> Tensor:
            self.step = self.up
            return x - 1

        def __call__(self, x: Tensor) -> Tensor:
            self.state = State(self.state.total + x, self.state.calls + 1)
            return self.step(x)

    mine, eagers = Machine(), Machine()
    called = tm.jit(lambda x: mine(x))
    for calls in (1, 2, 3):
        assert torch.equal(called(X), eagers(X))
        assert type(mine.state) is State
        assert torch.equal(mine.state.total, eagers.state.total)
        assert mine.state.calls == calls
