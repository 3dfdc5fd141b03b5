"""What can be jitted, and how calls bind their arguments: every result is eager's."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import tracemill as tm


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


@dataclasses.dataclass
class Batch:
    tokens: torch.Tensor
    scale: float = 2.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.fc(x) * scale + self.shift

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(self.forward(x))


def assert_same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def x3() -> torch.Tensor:
    return torch.arange(3.0)


# What can be jitted


def test_a_function_and_its_second_call() -> None:
    jf = tm.jit(lambda x, y: (x + y).sin() * 2)
    x, y = torch.randn(3), torch.randn(3)
    for _ in range(2):
        assert_same(jf(x, y), (x + y).sin() * 2)
    assert tm.cache_info(jf) == (1, 1, 1)


def test_a_decorator_with_options_keeps_the_name_and_the_docstring() -> None:
    @tm.jit(printer="minimal")
    def double(x: torch.Tensor) -> torch.Tensor:
        """Twice x."""
        return x * 2

    assert (double.__name__, double.__doc__) == ("double", "Twice x.")
    assert_same(double(x3()), x3() * 2)


def test_a_bound_method_and_a_decorated_one() -> None:
    class Scaler:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def plain(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

        @tm.jit
        def jitted(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    two, three = Scaler(2.0), Scaler(3.0)
    assert_same(tm.jit(two.plain)(x3()), x3() * 2)
    assert_same(two.jitted(x3()), x3() * 2)
    assert_same(three.jitted(x3()), x3() * 3)


def test_partials_and_wrapped_functions() -> None:
    def scaled(x: torch.Tensor, factor: float, *, shift: float) -> torch.Tensor:
        return x * factor + shift

    @functools.wraps(scaled)
    def wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
        return scaled(*args, **kwargs)

    assert_same(tm.jit(functools.partial(scaled, factor=2.0, shift=1.0))(x3()), x3() * 2 + 1)
    assert_same(tm.jit(functools.partial(scaled, x3()))(3.0, shift=0.5), x3() * 3 + 0.5)
    jf = tm.jit(wrapper)
    assert_same(jf(x3(), 2.0, shift=1.0), x3() * 2 + 1)
    assert [proxy.name for proxy in tm.last_traces(jf)[0].args] == ["x"]


def test_a_torch_function_itself() -> None:
    assert_same(tm.jit(torch.add)(x3(), x3(), alpha=2), x3() * 3)


def test_a_callable_object() -> None:
    class Doubler:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    assert_same(tm.jit(Doubler())(x3()), x3() * 2)


@pytest.mark.parametrize("make", [Affine, lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU())])
def test_a_module(make: Any) -> None:
    module = make()
    jm = tm.jit(module)
    for _ in range(2):
        assert_same(jm(x3()), module(x3()))


# Jitted modules


def test_a_jitted_module_is_the_original_in_everything_but_its_call() -> None:
    module = Affine()
    jm = tm.jit(module)
    assert list(jm.state_dict()) == list(module.state_dict()) == ["shift", "fc.weight", "fc.bias"]
    assert all(a is b for a, b in zip(jm.parameters(), module.parameters(), strict=True))
    assert repr(jm) == repr(module)
    assert isinstance(jm, Affine)
    assert jm.fc is module.fc
    jm.eval()
    assert not module.training
    jm.register_buffer("extra", torch.ones(1))
    assert module.extra is jm.extra
    assert_same(jm.twice(x3()), module.twice(x3()))


def test_a_replaced_parameter_is_seen() -> None:
    module = Affine()
    jm = tm.jit(module)
    jm(x3())
    module.fc.weight = nn.Parameter(torch.zeros(3, 3))
    assert_same(jm(x3()), module(x3()))
    module.load_state_dict({name: torch.ones_like(t) for name, t in module.state_dict().items()})
    assert_same(jm(x3()), module(x3()))


def test_a_shared_parameter_appears_once_until_it_is_shared_no_more() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    module = Tied()
    jm = tm.jit(module)
    assert_same(jm(x3()), module(x3()))
    assert [proxy.name for proxy in tm.last_traces(jm)[-1].args] == ["x", "a_weight"]
    module.b.weight = nn.Parameter(torch.eye(3) * 2)
    assert_same(jm(x3()), module(x3()))


def test_a_jitted_module_can_be_copied_and_pickled() -> None:
    jm = tm.jit(Affine(), printer="minimal")
    copied, unpickled = copy.deepcopy(jm), pickle.loads(pickle.dumps(jm))
    for other in (copied, unpickled):
        assert other.fc.weight is not jm.fc.weight
        assert_same(other(x3()), jm(x3()))
        assert tm.cache_info(other).entries == 1


def test_tensors_of_globals_closures_and_objects_are_inputs_named_by_path() -> None:
    weight = torch.randn(3)

    class Holder:
        def __init__(self) -> None:
            self.table = {"w": torch.randn(3)}

    holder = Holder()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * weight + holder.table["w"]

    jf = tm.jit(program)
    assert_same(jf(x3()), program(x3()))
    names = [proxy.name for proxy in tm.last_traces(jf)[0].args]
    assert names[:2] == ["x", "weight"]
    weight = torch.randn(3)
    holder.table["w"] = torch.randn(3)
    assert_same(jf(x3()), program(x3()))


# Arguments


def test_keywords_defaults_and_variadic_parameters() -> None:
    def program(
        x: Any, y: Any = 2.0, /, *rest: Any, k: Any, flag: bool = False, **others: Any
    ) -> Any:
        total = x * y + sum(rest) + k
        return total + others["z"] if flag else total

    jf = tm.jit(program)
    calls: list[Any] = [
        ((x3(),), {"k": 1.0}),
        ((x3(), 3.0), {"k": 1.0}),
        ((x3(), 3.0, x3(), 4), {"k": x3()}),
        ((x3(), 3.0), {"k": 1.0, "flag": True, "z": x3()}),
    ]
    for _ in range(2):
        for args, kwargs in calls:
            assert_same(jf(*args, **kwargs), program(*args, **kwargs))
    assert tm.cache_info(jf) == (4, 4, 4)


@pytest.mark.parametrize("name", ["input", "type", "list", "torch_", "inf", "nan", "len"])
def test_parameters_may_have_the_names_of_builtins(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def program({name}, rest):\n  return [{name} * 2, {{'k': rest[0] + {name}}}]", namespace)
    jf = tm.jit(namespace["program"])
    for _ in range(2):
        assert_same(jf(**{name: x3(), "rest": [x3()]}), namespace["program"](x3(), [x3()]))


STRUCTURES: dict[str, Any] = {
    "nested": lambda: ([x3(), (x3() + 1, {"z": x3(), "a": None})],),
    "dict order": lambda: ({"z": x3(), "a": x3() * 2, "m": 1},),
    "named tuple": lambda: (Pair(x3(), [1.5, x3()]),),
    "dataclass": lambda: (Batch(x3()),),
    "frozen dataclass": lambda: ({"f": Frozen(x3())},),
    "ordered dict": lambda: (collections.OrderedDict(b=x3(), a=x3()),),
    "deque": lambda: (collections.deque([x3(), x3()]),),
    "numbers": lambda: ((1, 1.5, True, None, 2j),),
    "settings": lambda: (
        (torch.float64, torch.device("cpu"), "text", b"bytes", slice(1, 3, None)),
    ),
    "nothing": lambda: ((), [], {}),
}


@pytest.mark.parametrize("make", STRUCTURES.values(), ids=STRUCTURES)
def test_structures_go_in_and_come_out(make: Any) -> None:
    def program(*args: Any) -> Any:
        return tm_map(lambda leaf: leaf + 1 if isinstance(leaf, torch.Tensor) else leaf, args)

    jf = tm.jit(program)
    want = program(*make())
    for _ in range(2):
        got = jf(*make())
        assert type(got) is type(want)
        assert repr(got) == repr(want)
    assert tm.cache_info(jf) == (1, 1, 1)


def test_a_model_output_is_an_argument_as_it_is_a_result() -> None:
    """A dataclass and a dict at once, whose keys are those of its fields that are not None."""
    outputs = pytest.importorskip("transformers.modeling_outputs")

    def program(given: Any) -> Any:
        hidden = given.last_hidden_state * 2
        return type(given)(last_hidden_state=hidden, attentions=(given[0], given["attentions"][0]))

    jf = tm.jit(program)
    for _ in range(2):
        given = outputs.BaseModelOutput(last_hidden_state=x3(), attentions=(x3(),))
        got, want = jf(given), program(given)
        assert repr(got) == repr(want)
    assert tm.cache_info(jf) == (1, 1, 1)


def tm_map(fn: Any, value: Any) -> Any:
    """Maps over the structures above in plain Python, as a user's program would."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(tm_map(fn, item) for item in value))
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value)(tm_map(fn, item) for item in value)
    if isinstance(value, dict):
        return type(value)((key, tm_map(fn, item)) for key, item in value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return type(value)(**{f.name: tm_map(fn, getattr(value, f.name)) for f in fields})
    return fn(value)


def test_an_input_returned_unchanged_and_a_tensor_returned_twice_are_the_same_objects() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x + y
        return x, z, [z, y], {"x": x}

    jf = tm.jit(program)
    for _ in range(2):
        x, y = torch.randn(3), torch.randn(3)
        a, z, (again, b), c = jf(x, y)
        assert a is x
        assert b is y
        assert c["x"] is x
        assert z is again


def test_one_tensor_given_twice_and_then_two() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x is y, x + y

    jf = tm.jit(program)
    x, y = torch.ones(3), torch.zeros(3)
    for args in [(x, x), (x, y), (y, y), (x, y)]:
        assert_same(jf(*args), program(*args))


def test_an_object_that_the_program_made_is_made_anew_at_each_call() -> None:
    class Cache:
        def __init__(self, x: torch.Tensor) -> None:
            self.layers = [x * 2]
            self.length = 3

    jf = tm.jit(lambda x: Cache(x))
    first, second = jf(x3()), jf(x3() + 1)
    assert type(second) is Cache
    assert second is not first
    assert second.length == 3
    assert_same((first.layers, second.layers), ([x3() * 2], [(x3() + 1) * 2]))


# Specialisations


def test_each_kind_of_input_has_an_entry_and_old_ones_hit_again() -> None:
    def program(x: torch.Tensor, n: Any = 1) -> torch.Tensor:
        return x * n + x.shape[0]

    jf = tm.jit(program)
    calls: list[Any] = [
        (x3(),),
        (torch.ones(4),),
        (torch.ones(2, 2).t(),),
        (torch.ones(3, dtype=torch.float64),),
        (torch.ones(6)[::2],),
        (x3(), 2),
        (x3(), 2.0),
        (x3(), True),
        (x3(), -0.0),
        (x3(), 0.0),
        (x3(), float("nan")),
        (x3(), torch.ones(3)),
    ]
    for turn in range(2):
        for args in calls:
            assert_same(jf(*args), program(*args))
        assert tm.cache_info(jf) == (turn * len(calls), len(calls), len(calls))


def test_the_cache_modes() -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    unchecked = tm.jit(program, cache="same input")
    assert_same(unchecked(x3(), 2), x3() * 2)
    assert_same(unchecked(x3() + 1, 2), (x3() + 1) * 2)
    assert tm.cache_info(unchecked) == (1, 1, 1)
    never = tm.jit(program, cache="no caching")
    for _ in range(2):
        assert_same(never(x3(), 2), x3() * 2)
    assert tm.cache_info(never) == (0, 2, 0)


def test_a_jitted_function_called_in_a_jitted_function_is_inlined() -> None:
    inner = tm.jit(lambda x: x * 2)
    outer = tm.jit(lambda x: inner(x) + 1)
    assert_same(outer(x3()), x3() * 2 + 1)
    assert tm.cache_info(inner).entries == 0
    names = [bsym.sym.name for bsym in tm.last_traces(outer)[0].bound_symbols]
    assert names == ["torch.Tensor.mul", "torch.Tensor.add"]


class Output(collections.OrderedDict):  # type: ignore[type-arg]
    """A dict whose keys are attributes too, as libraries have."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Many(list):  # type: ignore[type-arg]
    pass


def test_dicts_and_lists_of_a_users_class_go_in_and_come_out() -> None:
    def program(given: Output, many: Many) -> tuple[Output, Many]:
        return Output(b=given.a + 1, a=given["a"]), Many([many[0] * 2])

    jf = tm.jit(program)
    for _ in range(2):
        out, many = jf(Output(a=x3()), Many([x3()]))
        assert (type(out), type(many), list(out)) == (Output, Many, ["b", "a"])
        assert_same((out.b, many[0]), (x3() + 1, x3() * 2))
    assert tm.cache_info(jf).entries == 1


def test_every_call_is_a_hit_or_a_miss_also_when_a_path_turns_out_to_be_another() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x * 3

    jf = tm.jit(program)
    for value in (1.0, -1.0, 1.0, 1.0, -1.0):
        assert_same(jf(torch.full((2,), value)), program(torch.full((2,), value)))
    assert tm.cache_info(jf) == (3, 2, 2)


def test_the_last_traces_are_those_of_the_entry_that_ran_last() -> None:
    def program(x: torch.Tensor, n: Any) -> torch.Tensor:
        return x * n

    jf = tm.jit(program)
    for n in (2, 3, 2, 2):
        jf(x3(), n)
        assert f"(x, {n})" in str(tm.last_traces(jf)[-1])
    with pytest.raises(TypeError):
        jf(x3(), "text")
    jf(x3(), 2)
    assert "(x, 2)" in str(tm.last_traces(jf)[-1])
