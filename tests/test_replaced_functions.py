"""Functions whose code, defaults or place in a class is another from one call to the next: the program follows."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm

Program = Callable[..., Any]
Change = Callable[[], object]
KINDS: dict[str, Callable[[], tuple[Program, Change]]] = {}


def kind(build: Callable[[], tuple[Program, Change]]) -> Callable[[], tuple[Program, Change]]:
    """Registers a program with a change after which it computes something else."""
    KINDS[build.__name__.replace("_", " ")] = build
    return build


def scaled(x: torch.Tensor, by: float = 2.0, *, plus: float = 0.0) -> torch.Tensor:
    return x * by + plus


def fresh(function: Any) -> Any:
    """A function of its own with the code of another."""
    made = FunctionType(function.__code__, globals(), function.__name__, function.__defaults__)
    made.__kwdefaults__ = dict(function.__kwdefaults__ or {}) or None
    return made


def scaling() -> type:
    """A class that scales by every method that Python calls without naming it."""

    class Scales:
        def __new__(cls, by: Any = 2.0) -> Any:
            return object.__new__(cls)

        def __init__(self, by: Any = 2.0) -> None:
            self.by = by

        def __mul__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

        def __len__(self) -> int:
            return 2

        def __bool__(self) -> bool:
            return True

        def __getattr__(self, name: str) -> float:
            return 2.0

        def __enter__(self) -> float:
            return self.by

        def __exit__(self, *_: object) -> None:
            pass

    return Scales


SPECIAL: dict[str, tuple[Program, Program]] = {
    "__mul__": (lambda x, scales: scales * x, lambda self, x: x * 3),
    "__len__": (lambda x, scales: x * len(scales), lambda self: 3),
    "__bool__": (lambda x, scales: x * (2 if scales else 3), lambda self: False),
    "__getattr__": (lambda x, scales: x * scales.whatever, lambda self, name: 3.0),
    "__init__": (
        lambda x, scales: x * type(scales)(2.0).by,
        lambda self, by: setattr(self, "by", 3.0),
    ),
    "__new__": (lambda x, scales: x * type(scales)(2.0).by, lambda cls, by: scaling()(3.0)),
}


@kind
def the_code_of_a_function_that_the_program_calls() -> tuple[Program, Change]:
    called = fresh(scaled)
    other = lambda x, by, *, plus: x * 3  # noqa: E731
    return (lambda x: called(x)), lambda: setattr(called, "__code__", other.__code__)


@kind
def the_code_of_the_program_itself() -> tuple[Program, Change]:
    program = fresh(scaled)
    other = lambda x, by, *, plus: x * 3  # noqa: E731
    return program, lambda: setattr(program, "__code__", other.__code__)


@kind
def the_code_of_a_method() -> tuple[Program, Change]:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    other = lambda self, x: x * 3  # noqa: E731
    return Module(), lambda: setattr(Module.forward, "__code__", other.__code__)


@kind
def the_forward_of_a_class_of_modules() -> tuple[Program, Change]:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    return Module(), lambda: setattr(Module, "forward", lambda self, x: x * 3)


@kind
def the_forward_of_the_module_itself() -> tuple[Program, Change]:
    module = nn.Identity()
    return module, lambda: setattr(module, "forward", lambda x, by=3: x * by)


@kind
def a_default_of_the_program_itself() -> tuple[Program, Change]:
    program = fresh(scaled)
    return program, lambda: setattr(program, "__defaults__", (3.0,))


@kind
def a_keyword_default_of_the_program_itself() -> tuple[Program, Change]:
    program = fresh(scaled)
    return program, lambda: program.__kwdefaults__.update(plus=1.0)


@kind
def the_defaults_of_a_function_that_the_program_calls() -> tuple[Program, Change]:
    called = fresh(scaled)
    return (lambda x: called(x)), lambda: setattr(called, "__defaults__", (3.0,))


@kind
def the_keyword_defaults_of_a_function_that_the_program_calls() -> tuple[Program, Change]:
    called = fresh(scaled)
    return (lambda x: called(x)), lambda: setattr(called, "__kwdefaults__", {"plus": 1.0})


@kind
def a_method_of_a_metaclass() -> tuple[Program, Change]:
    class Meta(type):
        def scale(cls) -> float:
            return 2.0

    class Scaled(metaclass=Meta):
        pass

    return (lambda x: x * Scaled.scale()), lambda: setattr(Meta, "scale", lambda cls: 3.0)


def _special(name: str) -> tuple[Program, Change]:
    program, other = SPECIAL[name]
    cls = scaling()
    scales = cls()
    return (lambda x: program(x, scales)), lambda: setattr(cls, name, other)


for _name in SPECIAL:
    KINDS[_name] = lambda name=_name: _special(name)


@pytest.mark.parametrize("name", KINDS)
def test_the_next_call_runs_what_is_there_now(name: str) -> None:
    program, change = KINDS[name]()
    jitted = tm.jit(program)
    x = torch.ones(2)
    before = program(x)
    for _ in range(3):
        assert torch.equal(jitted(x), before)
    assert tm.cache_info(jitted).misses == 1, "traced again though nothing changed"
    change()
    after = program(x)
    assert not torch.equal(after, before)
    for _ in range(3):
        assert torch.equal(jitted(x), after)
    assert tm.cache_info(jitted).misses == 2


def test_a_program_with_other_parameters_takes_other_arguments() -> None:
    program = fresh(scaled)
    jitted = tm.jit(program)
    x = torch.ones(2)
    jitted(x)
    other = lambda x, by, factor=5.0: x * by * factor  # noqa: E731
    program.__code__, program.__defaults__ = other.__code__, other.__defaults__
    program.__kwdefaults__ = None
    assert torch.equal(jitted(x, 2.0), x * 10)
    assert torch.equal(jitted(x, 2.0, 3.0), x * 6)
    with pytest.raises(TypeError, match="takes from 2 to 3 positional arguments but 4 were given"):
        jitted(x, 2.0, 3.0, 4.0)


def mismatch(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def same(x: torch.Tensor) -> torch.Tensor:
    return x + 2


def test_functions_may_be_called_like_those_of_a_prologue() -> None:
    jitted = tm.jit(lambda x: mismatch(x) + same(x) + (1, 2.0).index(1))
    for _ in range(3):
        assert torch.equal(jitted(torch.zeros(2)), torch.full((2,), 3.0))
    assert "import mismatch as mismatch_1" in str(tm.last_prologue_traces(jitted)[-1])
