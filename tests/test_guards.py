"""State that a program reads: after a change, the next call gives eager's result; without one, nothing is traced."""

from __future__ import annotations

import collections
import contextvars
import copy
import dataclasses
import enum
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tracemill as tm

Program = Callable[..., Any]
Change = Callable[[], object]
KINDS: dict[str, Callable[[], tuple[Program, Change]]] = {}


def kind(build: Callable[[], tuple[Program, Change]]) -> Callable[[], tuple[Program, Change]]:
    """Registers a program with a change to the state that it reads."""
    KINDS[build.__name__] = build
    return build


class Color(enum.Enum):
    RED = 1.0
    BLUE = 2.0


class Settings:
    def __init__(self) -> None:
        self.scale = 2.0
        self.color = Color.RED
        self.names = ["a", "b"]


class Slotted:
    __slots__ = ("extra", "scale")

    def __init__(self) -> None:
        self.scale = 2.0


@dataclasses.dataclass
class Config:
    scale: float = 2.0
    inner: Settings = dataclasses.field(default_factory=Settings)


SCALE: Any = 2.0
SETTINGS = Settings()
TABLE: dict[Any, Any] = {"scale": 2.0}
SIZES = [1, 2]
CHOSEN = {1, 2}
VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("VARIABLE", default=2.0)
WEIGHT = torch.ones(2)
NUMBERS = np.array([2.0, 3.0])
OPERATION: Any = torch.sin
MODULE = types.ModuleType("read_by_programs")
MODULE.__file__ = __file__
MODULE.scale = 2.0  # type: ignore[attr-defined]
sys.modules["read_by_programs"] = MODULE


def _set(owner: Any, name: str, value: Any) -> Change:
    """A change that the test undoes."""

    def change() -> Change:
        before = getattr(owner, name, Settings)
        setattr(owner, name, value)
        undo = lambda: delattr(owner, name) if before is Settings else setattr(owner, name, before)  # noqa: E731
        return undo

    return change


_THIS = sys.modules[__name__]


@kind
def a_global() -> tuple[Program, Change]:
    return (lambda x: x * SCALE), _set(_THIS, "SCALE", 3.0)


@kind
def the_type_of_a_global() -> tuple[Program, Change]:
    return (lambda x: x.long() * SCALE), _set(_THIS, "SCALE", 2)


@kind
def the_sign_of_zero() -> tuple[Program, Change]:
    settings = Settings()
    settings.scale = 0.0
    return (lambda x: 1 / (x * settings.scale)), _set(settings, "scale", -0.0)


@kind
def a_global_function() -> tuple[Program, Change]:
    return (lambda x: OPERATION(x)), _set(_THIS, "OPERATION", torch.cos)


@kind
def a_builtin_hidden_by_a_global() -> tuple[Program, Change]:
    return (lambda x: x * max(2, 1)), _set(_THIS, "max", min)


@kind
def a_global_tensor() -> tuple[Program, Change]:
    return (lambda x: x * WEIGHT), _set(_THIS, "WEIGHT", torch.full((2,), 5.0))


@kind
def the_shape_of_a_tensor() -> tuple[Program, Change]:
    settings = Settings()
    settings.weight = torch.ones(3)  # type: ignore[attr-defined]
    return (lambda x: x * settings.weight.shape[0]), _set(settings, "weight", torch.ones(4))  # type: ignore[attr-defined]


@kind
def an_attribute_of_a_module_object() -> tuple[Program, Change]:
    return (lambda x: x * MODULE.scale), _set(MODULE, "scale", 3.0)


@kind
def a_module_imported_inside() -> tuple[Program, Change]:
    def program(x: torch.Tensor) -> torch.Tensor:
        import read_by_programs  # type: ignore[import-not-found]

        return x * read_by_programs.scale

    return program, _set(MODULE, "scale", 3.0)


@kind
def an_attribute_of_a_global() -> tuple[Program, Change]:
    return (lambda x: x * SETTINGS.scale), _set(SETTINGS, "scale", 3.0)


@kind
def an_attribute_by_name() -> tuple[Program, Change]:
    settings = Settings()
    return (lambda x, name="sc" + "ale": x * getattr(settings, name)), _set(settings, "scale", 3.0)


@kind
def an_attribute_that_appears() -> tuple[Program, Change]:
    settings = Settings()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * (3 if hasattr(settings, "late") else 2)

    return program, _set(settings, "late", True)


@kind
def a_slot() -> tuple[Program, Change]:
    slotted = Slotted()
    return (lambda x: x * slotted.scale), _set(slotted, "scale", 3.0)


@kind
def a_slot_that_appears() -> tuple[Program, Change]:
    slotted = Slotted()
    return (lambda x: x * getattr(slotted, "extra", 2.0)), _set(slotted, "extra", 3.0)


@kind
def a_field_inside_a_field() -> tuple[Program, Change]:
    config = Config()
    return (lambda x: x * config.inner.scale), _set(config.inner, "scale", 3.0)


@kind
def a_class_attribute() -> tuple[Program, Change]:
    class Owner:
        scale = 2.0

    owner = Owner()
    return (lambda x: x * owner.scale), _set(Owner, "scale", 3.0)


@kind
def a_class_attribute_that_appears() -> tuple[Program, Change]:
    class Base:
        scale = 2.0

    class Owner(Base):
        pass

    owner = Owner()
    return (lambda x: x * owner.scale), _set(Owner, "scale", 3.0)


@kind
def a_method() -> tuple[Program, Change]:
    class Owner:
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    owner = Owner()
    return (lambda x: owner.run(x)), _set(Owner, "run", lambda self, x: x * 3)


@kind
def the_class_of_an_object() -> tuple[Program, Change]:
    class One:
        scale = 2.0

    class Other:
        scale = 3.0

    holder = types.SimpleNamespace(item=One())
    return (lambda x: x * holder.item.scale), _set(holder, "item", Other())


@kind
def an_enum_member() -> tuple[Program, Change]:
    settings = Settings()
    return (lambda x: x * settings.color.value), _set(settings, "color", Color.BLUE)


@kind
def what_a_function_given_to_pytorch_reads() -> tuple[Program, Change]:
    scales = {"first": 2.0}

    def program(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.triplet_margin_with_distance_loss(
            x, x + 1, x - 3, distance_function=lambda a, b: ((a - b) * scales["first"]).sum(-1)
        )

    return program, _entry(scales, "first", 3.0)


@kind
def what_an_overridable_function_reads_after_a_value() -> tuple[Program, Change]:
    scales = {"first": 2.0}

    def overridable(x: torch.Tensor) -> torch.Tensor:
        if torch.overrides.has_torch_function((x,)):
            return torch.overrides.handle_torch_function(overridable, (x,), x)
        return x * scales["first"] if x.sum() > 0 else x

    return overridable, _entry(scales, "first", 3.0)


@kind
def a_cell() -> tuple[Program, Change]:
    scale = 2.0

    def change() -> Change:
        nonlocal scale
        scale = 3.0
        return lambda: None

    return (lambda x: x * scale), change


@kind
def a_default() -> tuple[Program, Change]:
    def program(x: torch.Tensor) -> torch.Tensor:
        return helper(x)

    def helper(x: torch.Tensor, scale: float = 2.0, *, shift: float = 1.0) -> torch.Tensor:
        return x * scale + shift

    return program, _set(helper, "__defaults__", (3.0,))


@kind
def a_keyword_default() -> tuple[Program, Change]:
    def program(x: torch.Tensor) -> torch.Tensor:
        return helper(x)

    def helper(x: torch.Tensor, *, shift: float = 1.0) -> torch.Tensor:
        return x + shift

    return program, _set(helper, "__kwdefaults__", {"shift": 2.0})


@kind
def a_function_attribute() -> tuple[Program, Change]:
    def helper(x: torch.Tensor) -> torch.Tensor:
        return x * helper.scale  # type: ignore[attr-defined]

    helper.scale = 2.0  # type: ignore[attr-defined]
    return (lambda x: helper(x)), _set(helper, "scale", 3.0)


@kind
def a_decorated_function() -> tuple[Program, Change]:
    settings = Settings()

    def decorate(function: Program) -> Program:
        @functools.wraps(function)
        def wrapper(x: torch.Tensor) -> torch.Tensor:
            return function(x) + 1

        return wrapper

    @decorate
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * settings.scale

    return program, _set(settings, "scale", 3.0)


@kind
def a_partial() -> tuple[Program, Change]:
    settings = Settings()
    program = functools.partial(lambda settings, x: x * settings.scale, settings)
    return program, _set(settings, "scale", 3.0)


@kind
def an_attribute_behind_a_property() -> tuple[Program, Change]:
    class Owner:
        hidden = 2.0

        @property
        def scale(self) -> float:
            return self.hidden

    owner = Owner()
    return (lambda x: x * owner.scale), _set(owner, "hidden", 3.0)


def _entry(table: Any, key: Any, value: Any) -> Change:
    def change() -> Change:
        before = dict(table) if isinstance(table, dict) else list(table)
        table[key] = value

        def undo() -> None:
            table.clear()
            table.update(before) if isinstance(table, dict) else table.extend(before)

        return undo

    return change


@kind
def an_entry() -> tuple[Program, Change]:
    return (lambda x: x * TABLE["scale"]), _entry(TABLE, "scale", 3.0)


@kind
def an_entry_that_appears() -> tuple[Program, Change]:
    return (lambda x: x * len(TABLE)), _entry(TABLE, "other", 3.0)


@kind
def an_entry_of_an_ordered_dict() -> tuple[Program, Change]:
    table = collections.OrderedDict(a=1, b=2)

    def change() -> Change:
        table.move_to_end("a")
        return lambda: None

    return (lambda x: x * next(iter(table.values()))), change


@kind
def an_item() -> tuple[Program, Change]:
    return (lambda x: x * SIZES[0]), _entry(SIZES, 0, 3)


@kind
def a_longer_list() -> tuple[Program, Change]:
    sizes = [1, 2]

    def change() -> Change:
        sizes.append(3)
        return lambda: None

    return (lambda x: x * sum(sizes)), change


@kind
def an_item_inside_a_tuple() -> tuple[Program, Change]:
    pair = ([1, 2], [3])
    return (lambda x: x * pair[0][0]), _entry(pair[0], 0, 3)


@kind
def a_deque() -> tuple[Program, Change]:
    items = collections.deque([1, 2])

    def change() -> Change:
        items.append(3)
        return lambda: None

    return (lambda x: x * items[-1]), change


@kind
def a_member_of_a_set() -> tuple[Program, Change]:
    chosen = {1, 2}

    def change() -> Change:
        chosen.add(3)
        return lambda: None

    return (lambda x: x * (3 if 3 in chosen else 2)), change


@kind
def a_context_variable() -> tuple[Program, Change]:
    def change() -> Change:
        token = VARIABLE.set(3.0)
        return lambda: VARIABLE.reset(token)

    return (lambda x: x * VARIABLE.get()), change


@kind
def a_numpy_array() -> tuple[Program, Change]:
    def change() -> Change:
        NUMBERS[0] = 5.0
        return lambda: NUMBERS.__setitem__(0, 2.0)

    return (lambda x: x * float(NUMBERS[0])), change


@kind
def an_attribute_of_a_distribution() -> tuple[Program, Change]:
    normal = torch.distributions.Normal(torch.zeros(2), torch.ones(2), validate_args=False)
    return (lambda x: normal.log_prob(x)), _set(normal, "loc", torch.full((2,), 5.0))


@kind
def an_attribute_that_appears_among_all() -> tuple[Program, Change]:
    settings = Settings()
    count = lambda: len(vars(settings))  # noqa: E731
    return (lambda x: x * count()), lambda: setattr(settings, "more", 1) or (lambda: None)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.norm = nn.LayerNorm(2)
        self.drop = nn.Dropout(0.5)
        self.shift: Any
        self.register_buffer("shift", torch.ones(2))
        self.scale = 2.0
        self.steps: list[Any] = [nn.Linear(2, 2), "tanh"]
        self.parts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.bias: Any
        self.register_parameter("bias", None)

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(self.first(x)))
        for part in self.parts:
            x = part(x)
        x = self.helper(self.steps[0](x)) + self.shift
        return x if self.bias is None else x + self.bias


def _net(change: Callable[[Net], object]) -> tuple[Program, Change]:
    net = Net().eval()

    def changed() -> Change:
        change(net)
        return lambda: None

    return net, changed


MODULE_CHANGES: dict[str, Callable[[Net], object]] = {
    "a hook on a part": lambda net: net.norm.register_forward_hook(lambda *_: torch.ones(1, 2)),
    "an attribute": lambda net: setattr(net, "scale", 3.0),
    "a submodule's attribute": lambda net: setattr(net.norm, "eps", 1.0),
    "a replaced submodule": lambda net: setattr(net, "first", nn.Identity()),
    "a replaced submodule of the same class": lambda net: setattr(net, "first", nn.Linear(2, 2)),
    "a submodule more": lambda net: net.parts.append(nn.Linear(2, 2)),
    "a submodule less": lambda net: net.parts.__delitem__(1),
    "a hook": lambda net: net.first.register_forward_hook(double_the_result),
    "a pre-hook of its own": lambda net: net.register_forward_pre_hook(double_the_argument),
    "a replaced parameter": lambda net: setattr(
        net.first, "weight", nn.Parameter(torch.ones(2, 2))
    ),
    "a parameter's data": lambda net: net.first.weight.data.fill_(2.0),
    "a parameter gone": lambda net: setattr(net.first, "bias", None),
    "a parameter that appears": lambda net: setattr(net, "bias", nn.Parameter(torch.ones(2))),
    "a replaced buffer": lambda net: setattr(net, "shift", torch.full((2,), 7.0)),
    "another dtype": lambda net: setattr(net, "shift", torch.ones(2, dtype=torch.float64)),
    "a forward of the object's own": lambda net: setattr(net.first, "forward", lambda x: x * 3),
    "a method of the object's own": lambda net: setattr(net, "helper", lambda x: x * 4),
    "a module in a list": lambda net: net.steps.__setitem__(0, nn.Identity()),
    "its class": lambda net: setattr(net.first, "__class__", Triple),
}


def double_the_argument(_module: nn.Module, args: Any) -> Any:
    return (args[0] * 2,)


def double_the_result(_module: nn.Module, _args: Any, result: Any) -> Any:
    return result * 2


class Triple(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 3


for _name, _change in MODULE_CHANGES.items():
    KINDS[f"module: {_name}"] = functools.partial(_net, _change)


@pytest.mark.parametrize("name", KINDS)
def test_a_change_is_seen(name: str) -> None:
    program, change = KINDS[name]()
    x = torch.tensor([[1.0, 2.0]])
    with torch.no_grad():
        jitted = tm.jit(program)
        torch.testing.assert_close(jitted(x), program(x))
        torch.testing.assert_close(jitted(x), program(x))
        assert tm.cache_info(jitted).misses == 1, "traced again though nothing changed"
        undo = change()
        try:
            expected = program(x)
            torch.testing.assert_close(jitted(x), expected, equal_nan=True)
            torch.testing.assert_close(jitted(x), expected, equal_nan=True)
            assert tm.cache_info(jitted).misses <= 2, "traced again though nothing changed"
        finally:
            undo()  # type: ignore[operator]


def test_the_change_back_finds_the_first_program() -> None:
    net = Net()
    jitted = tm.jit(net)
    x = torch.ones(1, 2)
    with torch.no_grad():
        for _ in range(3):
            net.train()
            jitted(x)
            net.eval()
            torch.testing.assert_close(jitted(x), net(x))
    assert tm.cache_info(jitted) == (4, 2, 2)


def test_a_parametrization_follows_its_mode() -> None:
    mine = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))
    eagers = copy.deepcopy(mine)
    jitted = tm.jit(mine)
    x = torch.ones(1, 2)
    with torch.no_grad():
        for training in (False, False, True, True, False):
            for layer in (mine, eagers):
                layer.train(training)
            torch.testing.assert_close(jitted(x), eagers(x), rtol=0, atol=0)
            for name, value in eagers.state_dict().items():
                torch.testing.assert_close(mine.state_dict()[name], value, rtol=0, atol=0)
    assert tm.cache_info(jitted).misses == 2


@pytest.mark.filterwarnings("ignore:.*is compiled again")
def test_a_function_counts_its_calls_in_an_attribute_of_its_own() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        program.calls = getattr(program, "calls", 0) + 1  # type: ignore[attr-defined]
        return x * program.calls  # type: ignore[attr-defined]

    jitted = tm.jit(program)
    x = torch.ones(2)
    for calls in (1, 2, 3):
        assert torch.equal(jitted(x), x * calls)


def test_an_array_that_is_written_to_and_read_as_a_tensor_is_refused() -> None:
    array = np.zeros(2, dtype=np.float32)

    def program(x: torch.Tensor) -> torch.Tensor:
        array[0] += 1
        return x + torch.from_numpy(array)

    with pytest.raises(tm.MutationError, match="writes to a numpy array, array, that it also"):
        tm.jit(program)(torch.ones(2))
    assert array[0] == 0


def test_what_is_not_mentioned_does_not_matter() -> None:
    net = Net().eval()
    jitted = tm.jit(net)
    x = torch.ones(1, 2)
    with torch.no_grad():
        jitted(x)
        net.unrelated = 3  # type: ignore[assignment]
        net.first.unrelated = "text"  # type: ignore[assignment]
        jitted(x)
        net.unrelated = 4  # type: ignore[assignment]
        jitted(x)
    assert tm.cache_info(jitted).misses == 1


class Argument:
    def __init__(self, scale: float) -> None:
        self.scale = scale


def test_an_object_as_argument_counts_by_its_class_and_attributes() -> None:
    jitted = tm.jit(lambda x, argument: x * argument.scale)
    x = torch.ones(2)
    for scale in (2.0, 2.0, 3.0, 2.0):
        torch.testing.assert_close(jitted(x, Argument(scale)), x * scale)
    assert tm.cache_info(jitted).misses == 2

    class Other(Argument):
        @property
        def scale(self) -> float:
            return 5.0

        @scale.setter
        def scale(self, value: float) -> None:
            pass

    torch.testing.assert_close(jitted(x, Other(2.0)), x * 5)


def test_an_argument_that_changes_is_seen() -> None:
    jitted = tm.jit(lambda x, argument: x * argument.scale)
    argument = Argument(2.0)
    x = torch.ones(2)
    torch.testing.assert_close(jitted(x, argument), x * 2)
    argument.scale = 3.0
    torch.testing.assert_close(jitted(x, argument), x * 3)


def test_a_value_that_changes_at_each_call_is_named_in_a_warning() -> None:
    settings = Settings()
    jitted = tm.jit(lambda x: x * settings.scale)
    x = torch.ones(2)
    jitted(x)
    settings.scale = 3.0
    jitted(x)
    settings.scale = 4.0
    with pytest.warns(UserWarning, match="settings: its attributes"):
        torch.testing.assert_close(jitted(x), x * 4)


def test_each_check_is_a_line_that_says_where_the_value_comes_from(
    golden: Callable[[str, str], None],
) -> None:
    net = Net().eval()
    settings = Settings()
    with torch.no_grad():
        jitted = tm.jit(lambda x: net(x) * settings.scale * SCALE + SETTINGS.scale)
        jitted(torch.ones(1, 2))
    golden(tm.last_prologue_traces(jitted)[-1].text("minimal"), "prologue")


class Counting(nn.Module):
    """Its result depends on a counter that it counts up itself."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


def test_a_counter_that_the_result_depends_on_stays_right_past_the_limit() -> None:
    module = Counting()
    jitted = tm.jit(module, entries=3)
    x = torch.ones(2)
    jitted(x)
    jitted(x)
    with pytest.warns(UserWarning, match=r"Counting is compiled again.*: its attributes"):
        assert torch.equal(jitted(x), x * 3)
    for call in range(4, 8):  # it is said once
        assert torch.equal(jitted(x), x * call)
    assert module.calls == 7
    assert tm.cache_info(jitted) == (0, 7, 3)


def test_past_the_limit_the_entry_goes_that_was_not_used_for_longest() -> None:
    jitted = tm.jit(lambda x: x * 2, entries=2)
    for size in (1, 2, 1, 3, 1, 2):
        jitted(torch.ones(size))
    assert tm.cache_info(jitted) == (2, 4, 2)


def test_two_states_that_take_turns_are_two_entries_and_no_warning() -> None:
    settings = Settings()
    jitted = tm.jit(lambda x: x * settings.scale)
    x = torch.ones(2)
    for call in range(8):
        settings.scale = float(call % 2)
        torch.testing.assert_close(jitted(x), x * settings.scale)
    assert tm.cache_info(jitted) == (6, 2, 2)


def test_an_argument_that_is_another_at_each_call_is_named_in_a_warning() -> None:
    jitted = tm.jit(lambda x, step: x * step)
    x = torch.ones(2)
    for step in range(8):
        assert torch.equal(jitted(x, step), x * step)
    with pytest.warns(UserWarning, match="another kind of argument 'step'"):
        jitted(x, 8)
    assert torch.equal(jitted(x, 9), x * 9)


def test_a_limit_is_at_least_one_entry() -> None:
    with pytest.raises(tm.OptionError, match="entries must be at least 1, not 0"):
        tm.jit(Counting(), entries=0)


def test_globals_of_code_that_has_no_file() -> None:
    names: dict[str, Any] = {"scale": 2.0}
    exec("def run(x):\n  return x * scale", names)
    jitted = tm.jit(names["run"])
    x = torch.ones(3)
    assert torch.equal(jitted(x), x * 2)
    names["scale"] = 3.0
    assert torch.equal(jitted(x), x * 3)


def test_globals_of_a_module_that_has_no_file() -> None:
    module: Any = types.ModuleType("made_by_hand")
    module.scale = 2.0
    jitted = tm.jit(lambda x: x * module.scale)
    x = torch.ones(3)
    assert torch.equal(jitted(x), x * 2)
    module.scale = 3.0
    assert torch.equal(jitted(x), x * 3)
