"""What a program is told of the classes of tensors: what eager tells."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tracemill as tm

PARAMETER = nn.Parameter(torch.ones(2))
HANDLERS: dict[Any, int] = {Tensor: 2, nn.Parameter: 3, int: 4, type: 5}


class Plain:
    pass


class Meta(type):
    pass


class Made(metaclass=Meta):
    pass


@functools.singledispatch
def dispatched(_value: Any) -> str:
    return "any"


dispatched.register(Tensor, lambda _tensor: "a tensor")
dispatched.register(nn.Parameter, lambda _tensor: "a parameter")


def is_class(value: Any) -> bool:
    return isinstance(value, type)


def matched(value: Any) -> str:
    match value:
        case nn.Parameter():
            return "a parameter"
        case Tensor():
            return "a tensor"
        case _:
            return "any"


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "its name": lambda x: (type(x).__name__, type(x).__qualname__, type(x).__module__),
    "which class": lambda x: (type(x) is Tensor, type(x) is nn.Parameter),
    "isinstance": lambda x: (isinstance(x, Tensor), isinstance(x, nn.Parameter)),
    "issubclass": lambda x: issubclass(type(x), nn.Parameter),
    "__class__": lambda x: (x.__class__ is Tensor, x.__class__.__name__),
    "as text": lambda x: f"{type(x)} {x.__class__}",
    "a table": lambda x: HANDLERS[type(x)],
    "a table of classes": lambda x: (HANDLERS[type(Plain)], HANDLERS[type(len("a"))]),
    "map": lambda x: [kind.__name__ for kind in map(type, [x, 1, [x]])],
    "single dispatch": lambda x: dispatched(x),
    "match": lambda x: matched(x),
    "other values": lambda x: (
        type(len("a")) is int,
        type(Plain()) is Plain,
        type(None) is type(x),
    ),
    "a class's class": lambda x: (type(Plain) is type, type(Made) is Meta, is_class(Made)),
    "a class made of it": lambda x: getattr(type("New", (Plain,), {"field": 3})(), "field", 0),
}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize(
    "value", [torch.ones(2), nn.Parameter(torch.ones(2))], ids=["tensor", "parameter"]
)
def test_the_answer_is_eagers(name: str, value: Tensor) -> None:
    question = QUESTIONS[name]
    jitted = tm.jit(lambda x: (question(x), question(PARAMETER), question(x * 2)))
    want = question(value), question(PARAMETER), question(value * 2)
    assert jitted(value) == want
    assert jitted(value) == want


def test_a_size_that_differs_from_call_to_call_is_an_int() -> None:
    def program(x: Tensor) -> Any:
        size = x.shape[0]
        return x * 2 if type(size) is int else x

    jitted = tm.jit(program, cache="symbolic values")
    for size in (3, 4):
        assert torch.equal(jitted(torch.ones(size)), torch.full((size,), 2.0))
    assert tm.cache_info(jitted).misses == 1


def test_a_generators_class() -> None:
    jitted = tm.jit(lambda generator: type(generator) is torch.Generator)
    assert jitted(torch.Generator()) is True


def test_type_is_pythons_again_afterwards() -> None:
    before = type
    tm.jit(lambda x: x * (2 if type(x) is Tensor else 3))(torch.ones(2))
    assert type is before


def test_another_class_for_a_tensor_is_refused() -> None:
    class Other(Tensor):
        pass

    def program(x: Tensor) -> Tensor:
        made = x + 1
        made.__class__ = Other
        return made

    with pytest.raises(tm.UnsupportedError, match="class of a tensor is changed to Other"):
        tm.jit(program)(torch.ones(2))
