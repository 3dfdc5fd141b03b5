"""Programs over Python state: values, and the state afterwards, are eager's at each call, with changes in between."""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import enum
import functools
import random
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import tracemill as tm

Called = Callable[..., Any]
Case = tuple[Called, Callable[[], Any], Sequence[Callable[[Called], Any]]]
"""A program, what to look at besides its result, and the calls, each given the program or its jitted form."""

CASES: dict[str, Callable[[], Case]] = {}
pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again")


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def numbers(start: float = 1.0) -> Tensor:
    return torch.arange(3.0) + start


def nothing() -> None:
    return None


@case
def counted_in_a_closure() -> Case:
    calls = 0

    def program(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x * calls

    return program, lambda: calls, [lambda called: called(numbers())] * 3


@case
def set_and_then_counted() -> Case:
    state = types.SimpleNamespace(count=0, calls=0)

    def program(x: Tensor) -> Tensor:
        state.count = 5
        state.count += 1
        state.calls += 1
        return x * 2

    def after(count: int) -> Callable[[Called], Any]:
        def call(called: Called) -> Any:
            state.count = count
            return called(numbers())

        return call

    return program, lambda: vars(state), [after(count) for count in (0, 6, 3, 6)]


@case
def a_list_that_is_read_and_appended_to() -> Case:
    log: list[int] = []

    def program(x: Tensor) -> Tensor:
        log.append(len(log))
        return x + len(log)

    return program, lambda: log, [lambda called: called(numbers())] * 3


@case
def a_cache_in_a_dict() -> Case:
    cache: dict[str, Tensor] = {}

    def program(x: Tensor, key: str) -> Tensor:
        if key not in cache:
            cache[key] = x * 2
        return cache[key] + x

    keys = ("a", "a", "b", "a")
    calls = [lambda called, k=key, i=i: called(numbers(i), k) for i, key in enumerate(keys)]
    return program, lambda: cache, calls


@case
def a_window_of_the_last_inputs() -> Case:
    window: collections.deque[Tensor] = collections.deque(maxlen=2)

    def program(x: Tensor) -> Tensor:
        window.append(x * 2)
        return torch.stack(list(window)).sum(0)

    return (
        program,
        lambda: list(window),
        [lambda called, i=i: called(numbers(i)) for i in range(4)],
    )


@case
def counters_of_the_standard_library() -> Case:
    seen: collections.Counter[str] = collections.Counter()
    lists: collections.defaultdict[str, list[int]] = collections.defaultdict(list)

    def program(x: Tensor, key: str) -> Tensor:
        seen[key] += 1
        lists[key].append(seen[key])
        return x * seen[key]

    keys = ("a", "b", "a")
    return program, lambda: (seen, lists), [lambda c, k=key: c(numbers(), k) for key in keys]


@case
def an_average_that_begins_as_none() -> Case:
    class Average(nn.Module):
        average: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.average = x if self.average is None else self.average * 0.9 + x * 0.1
            return self.average

    module = Average()
    return (
        module,
        lambda: module.average,
        [lambda called, i=i: called(numbers(i)) for i in range(3)],
    )


@case
def a_buffer_registered_at_the_first_call() -> Case:
    class Lazy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "first"):
                self.register_buffer("first", x.clone())
            return torch.add(x, self.get_buffer("first"))

    module = Lazy()
    return (
        module,
        lambda: dict(module.named_buffers()),
        [lambda called, i=i: called(numbers(i)) for i in range(3)],
    )


@case
def a_property_and_its_setter() -> Case:
    class Scaled:
        factor = 2

        @property
        def scale(self) -> int:
            return self.factor * 2

        @scale.setter
        def scale(self, value: int) -> None:
            self.factor = value + 1

    owner = Scaled()

    def program(x: Tensor) -> Tensor:
        before = x * owner.scale
        owner.scale = 7
        return before + owner.scale

    return program, lambda: owner.factor, [lambda called: called(numbers())] * 3


@case
def attributes_by_getattr() -> Case:
    class Dynamic:
        def __init__(self) -> None:
            self.table = {"scale": 2}

        def __getattr__(self, name: str) -> int:
            return self.table[name]  # a KeyError for what is not there, unlike most classes

    owner = Dynamic()

    def changed(called: Called) -> Any:
        owner.table["scale"] = 5
        return called(numbers())

    return (lambda x: x * owner.scale), nothing, [lambda called: called(numbers()), changed]


@case
def an_attribute_that_hides_its_class() -> Case:
    class Settings:
        scale = 2

    settings = Settings()

    def hidden(called: Called) -> Any:
        settings.scale = 3
        return called(numbers())

    def shown(called: Called) -> Any:
        del settings.scale
        Settings.scale = 5
        return called(numbers())

    return (lambda x: x * settings.scale), nothing, [lambda c: c(numbers()), hidden, shown]


@case
def enumerations_and_dataclasses() -> Case:
    class Mode(enum.Enum):
        UP = 1
        DOWN = 2

    @dataclasses.dataclass
    class Config:
        mode: Mode
        total: Tensor

    config = Config(Mode.UP, torch.zeros(3))

    def program(x: Tensor) -> Tensor:
        config.total = config.total + x
        return x + 1 if config.mode is Mode.UP else x - 1

    def down(called: Called) -> Any:
        config.mode = Mode.DOWN
        return called(numbers())

    return program, lambda: config.total, [lambda called: called(numbers()), down, down]


@case
def a_weak_reference() -> Case:
    class Owner:
        scale = 2.0

    owner = Owner()
    reference: Any = weakref.ref(owner)

    def changed(called: Called) -> Any:
        owner.scale = 3.0
        return called(numbers())

    return (lambda x: x * reference().scale), nothing, [lambda called: called(numbers()), changed]


@case
def methods_and_functions_replaced() -> Case:
    class Up:
        def apply(self, x: Tensor) -> Tensor:
            return x + 1

    class Twice:
        def apply(self, x: Tensor) -> Tensor:
            return x * 2

    holder = types.SimpleNamespace(owner=Up())

    def other_class(called: Called) -> Any:
        holder.owner = Twice()
        return called(numbers())

    def other_method(called: Called) -> Any:
        Twice.apply = lambda self, x: x * 7
        return called(numbers())

    calls = [lambda called: called(numbers()), other_class, other_method]
    return (lambda x: holder.owner.apply(x)), nothing, calls


@case
def a_dict_in_another_order() -> Case:
    table = {"a": numbers(), "b": numbers(2)}

    def program(x: Tensor) -> Tensor:
        for key, value in table.items():
            x = x + value if key == "a" else x * value
        return x

    def reordered(called: Called) -> Any:
        table["a"] = table.pop("a")
        return called(numbers())

    return program, nothing, [lambda called: called(numbers()), reordered]


@case
def lists_that_are_arguments() -> Case:
    def program(items: list[Tensor]) -> int:
        items.append(items[0] * 2)
        items[0] = items[0] + 1
        return len(items)

    def call(called: Called, *items: Tensor) -> Any:
        given = list(items)
        return called(given), given

    return program, nothing, [lambda c: call(c, numbers()), lambda c: call(c, numbers(), numbers())]


@case
def an_argument_that_is_returned() -> Case:
    def program(state: dict[str, Tensor]) -> Any:
        state["y"] = state["x"] * 2
        return state, [state["x"]]

    def call(called: Called, start: float) -> Any:
        given = {"x": numbers(start)}
        returned, others = called(given)
        assert returned is given
        others.append(numbers())
        return returned

    return program, nothing, [lambda c: call(c, 1.0), lambda c: call(c, 2.0)]


@case
def generators_of_numpy_and_python() -> Case:
    drawn, other = numpy.random.default_rng(0), random.Random(0)

    def program(x: Tensor) -> Tensor:
        return x * drawn.random() + other.random()

    return program, lambda: (drawn.random(), other.random()), [lambda c: c(numbers())] * 3


@case
def a_deep_copy() -> Case:
    settings = {"weights": [numbers()]}

    def program(x: Tensor) -> Tensor:
        copied = copy.deepcopy(settings)
        copied["weights"][0] += 1
        return x * copied["weights"][0]

    return program, lambda: settings, [lambda called: called(numbers())] * 2


@case
def text_of_tensors() -> Case:
    def program(x: Tensor) -> Any:
        return str(x), f"{x.sum():.2f}", x + 1

    return program, nothing, [lambda called, i=i: called(numbers(i)) for i in (1, 1, 2)]


@case
def partials_and_their_keywords() -> Case:
    factors = [2]
    program = functools.partial(lambda x, factors: x * factors[0], factors=factors)

    def changed(called: Called) -> Any:
        factors[0] = 3
        return called(numbers())

    return program, nothing, [lambda called: called(numbers()), changed]


@case
def loops_over_a_tensors_value() -> Case:
    def program(x: Tensor) -> Any:
        steps = 0
        while x.sum() < 100:
            x, steps = x * 2, steps + 1
        return x, steps

    return program, nothing, [lambda called, i=i: called(numbers(i)) for i in (1, 30, 1)]


class Made(collections.OrderedDict[str, Any]):
    """Makes what it holds the class of, as registries do."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


class Double(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


REGISTRY = Made(double=Double)


@case
def a_dict_that_makes_what_it_gives() -> Case:
    return lambda x: REGISTRY["double"](x), nothing, [lambda called: called(numbers())] * 2


@case
def modules_of_others_who_compile() -> Case:
    """A graph of torch.fx, and what torch.compile makes of a module, are modules like the user's own."""
    inner = Double()
    graph, compiled = torch.fx.symbolic_trace(Double()), torch.compile(inner, backend="eager")

    def doubled(called: Called, factor: int) -> Any:
        graph.weight = nn.Parameter(torch.ones(3) * factor)
        inner.factor = factor
        return called(numbers()).detach()

    def program(x: Tensor) -> Tensor:
        return graph(x) * graph.weight + compiled(x)

    calls = [lambda called, factor=factor: doubled(called, factor) for factor in (2, 3, 3)]
    return program, nothing, calls


@case
def an_error_and_then_none() -> Case:
    log: list[str] = []

    def program(x: Tensor, fails: bool) -> Tensor:
        log.append("called")
        if fails:
            raise ValueError("as asked")
        return x + len(log)

    def failing(called: Called) -> Any:
        with pytest.raises(ValueError, match="as asked"):
            called(numbers(), True)

    return program, nothing, [lambda called: called(numbers(), False)] * 2 + [failing]


@case
def arguments_of_the_process() -> Case:
    def program(x: Tensor) -> Tensor:
        return x * len(sys.argv) + ("a_module" in sys.modules) + sys.maxsize * 0

    def added(called: Called) -> Any:
        sys.argv.append("more")
        try:
            return called(numbers())
        finally:
            sys.argv.pop()

    def replaced(called: Called) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["a"] * 5)
            patch.setitem(sys.modules, "a_module", types.ModuleType("a_module"))
            return called(numbers())

    def plain(called: Called) -> Any:
        return called(numbers())

    return program, nothing, [plain, plain, added, plain, replaced, plain]


@case
def members_of_an_enumeration() -> Case:
    class Mode(enum.Enum):
        SCALED = types.SimpleNamespace(factor=2)
        PLAIN = 1

    Mode.PLAIN.names = ["a"]  # type: ignore[attr-defined]

    def program(x: Tensor) -> Tensor:
        return x * Mode.SCALED.value.factor + len(Mode.PLAIN.names)  # type: ignore[attr-defined]

    def scaled(called: Called) -> Any:
        Mode.SCALED.value.factor += 1
        return called(numbers())

    def named(called: Called) -> Any:
        Mode.PLAIN.names.append("b")  # type: ignore[attr-defined]
        return called(numbers())

    return program, nothing, [lambda called: called(numbers())] * 2 + [scaled, named]


@case
def a_class_that_is_registered_later() -> Case:
    class Base(abc.ABC):  # noqa: B024
        pass

    value = Double()

    def registered(called: Called) -> Any:
        Base.register(Double)
        return called(numbers())

    def program(x: Tensor) -> Tensor:
        return x * (2 if isinstance(value, Base) else 3)

    return program, nothing, [lambda called: called(numbers())] * 2 + [registered]


@case
def results_by_their_tensors() -> Case:
    memory: dict[Any, Tensor] = {}
    seen: set[Tensor] = set()
    first, second = numbers(), numbers(2.0)

    def program(x: Tensor) -> Tensor:
        if x not in memory:
            memory[x] = memory[x, 1] = x * 2
        seen.add(x)
        return memory[x] + memory[x, 1] * len(seen)

    def look() -> Any:
        return len(memory), list(memory.values()), first in memory, second in seen

    calls = [lambda called, x=x: called(x) for x in (first, first, second, first, second, second)]
    return program, look, calls


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_state_are_eagers(name: str, cache: str) -> None:
    def followed(compiled: Callable[[Called], Called]) -> list[Any]:
        program, state, calls = CASES[name]()
        called = compiled(program)
        return [copy.deepcopy((call(called), state())) for call in calls]

    want = followed(lambda program: program)
    got = followed(functools.partial(tm.jit, cache=cache))
    assert _told(got) == _told(want)


def _told(value: Any) -> Any:
    """Values that compare: tensors as their type and numbers."""
    if isinstance(value, Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return [(key, _told(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_told(item) for item in value]
    return value


def test_a_view_of_a_parameter_that_one_call_leaves_the_next_may_write_to() -> None:
    class Holder:
        pass

    def run(compile: Callable[[Any], Any]) -> list[list[float]]:
        holder: Any = Holder()
        holder.held, holder.weight = torch.ones(4), torch.nn.Parameter(torch.arange(4.0))

        def program() -> None:
            holder.held.mul_(0.5)
            holder.held = holder.weight.split(2)[0]

        called = compile(program)
        with torch.no_grad():
            for _ in range(4):
                called()
        return [holder.held.tolist(), holder.weight.tolist()]

    assert run(tm.jit) == run(lambda program: program)
