"""Comparisons of state: strict where Python's == is not, quick where nothing was written."""

from __future__ import annotations

import collections
import enum
import functools
import gc
import math
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm
from tracemill.compiler.contents import counts_by_content
from tracemill.compiler.state_checks import (
    ABSENT,
    ItemsCheck,
    ModulesCheck,
    TableCheck,
    TensorLike,
    same,
)
from tracemill.passes.interpretation.python.snapshot import Snapshot


class Color(enum.Enum):
    RED = 1
    ALSO_ONE = "1"


class Equal:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("a check called the user's __eq__")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        (0.0, -0.0, False),
        (math.nan, float("nan"), True),
        (complex(0.0, -0.0), complex(0.0, 0.0), False),
        ("ab", "".join(["a", "b"]), True),
        ([1, (2, 3)], [1, (2, 3)], True),
        ([1], [True], False),
        ([1], (1,), False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ({1, 2}, {2, 1}, True),
        ({1}, {True}, False),
        (Color.RED, Color.RED, True),
        (Color.RED, Color.ALSO_ONE, False),
        (Equal(), Equal(), False),
        (functools.partial(max, 1), functools.partial(max, 1), True),
        (torch.ones(2), torch.ones(2), False),
        (torch.ones(2), TensorLike(torch.zeros(2)), True),
        (torch.ones(2), TensorLike(torch.zeros(3)), False),
        (None, TensorLike(torch.zeros(3)), False),
    ],
)
def test_same(one: Any, other: Any, expected: bool) -> None:
    assert same(one, other) is expected


def test_a_table_is_compared_again_after_a_write() -> None:
    table = {"a": 1, "b": 2}
    check = TableCheck(table, {"a": 1}, frozenset({"a", "late"}))
    version = check.version
    table["unrelated"] = 3
    assert check.check(table)
    assert check.version != version
    table["late"] = 1
    assert not check.check(table)
    assert check.why(table) == "its keys"
    del table["late"]
    table["a"] = True
    assert check.why(table) == "'a'"
    assert not check.check(collections.OrderedDict(a=1))


def test_a_whole_table_keeps_its_order() -> None:
    table = {"a": 1, "b": 2}
    check = TableCheck(table, dict(table), None)
    assert check.check({"a": 1, "b": 2})
    assert not check.check({"b": 2, "a": 1})
    assert not check.check({"a": 1})


def test_items() -> None:
    check = ItemsCheck(list, [1, "a", None])
    assert check.check([1, "a", None])
    assert not check.check([True, "a", None])
    assert not check.check([1, "a"])
    assert not check.check((1, "a", None))


def test_modules() -> None:
    linear = nn.Linear(2, 2, bias=False)
    check = ModulesCheck(
        [linear], [linear._parameters], [linear._forward_hooks], [(linear._parameters, "bias")]
    )
    assert check.check()
    handle = linear.register_forward_hook(lambda *_: None)
    assert not check.check()
    handle.remove()
    assert check.check()
    linear.register_parameter("late", None)
    assert not check.check()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Equal(), True),
        (Color.RED, False),
        (nn.Linear(1, 1), False),
        (max, False),
        (object(), False),
    ],
)
def test_arguments_that_count_by_content(value: Any, expected: bool) -> None:
    assert counts_by_content(value) is expected


class Owner:
    def __init__(self) -> None:
        self.items = [1, 2]
        self.table = {"a": 1}
        self.name = "owner"


def test_a_snapshot_says_what_changed_and_puts_it_back() -> None:
    owner = Owner()
    snapshot = Snapshot()
    snapshot.visit(owner)
    assert snapshot.changes() == {}
    owner.items.append(3)
    owner.table["b"] = 2
    del owner.table["a"]
    owner.name = "other"
    owner.late = True  # type: ignore[attr-defined]
    changes = snapshot.changes()
    found = {type(view).__name__: changed for view, changed in changes.items()}
    assert found == {
        "Attributes": {"name": "other", "late": True},
        "Items": {2: 3},
        "Entries": {"a": ABSENT, "b": 2},
    }
    for view, changed in changes.items():
        view.put_back(changed)
    assert vars(owner) == {"items": [1, 2], "table": {"a": 1}, "name": "owner"}


def test_what_the_program_made_is_no_root() -> None:
    class Made:
        def __init__(self) -> None:
            self.inside = 3

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * Made().inside

    jitted = tm.jit(program)
    jitted(torch.ones(2))
    assert "inside" not in tm.last_prologue_traces(jitted)[-1].text("minimal")


def test_the_jitted_function_frees_what_its_checks_held() -> None:
    def program_of(net: nn.Module) -> Any:
        return tm.jit(lambda x: net(x).sum())

    net = nn.Sequential(nn.Linear(2, 2))
    jitted = program_of(net)
    with torch.no_grad():
        jitted(torch.ones(1, 2))
    held = weakref.ref(net[0])
    del net, jitted
    gc.collect()
    assert held() is None
