"""State that a program reaches without naming it: kept results, dispatch, computed names, what libraries hold."""

from __future__ import annotations

import functools
import math
import string
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tracemill as tm

X = torch.tensor([1.0, 2.0])
pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again")
THIS = sys.modules[__name__]
SCALE = 2.0


def alike(scenario: Callable[[Callable[..., Any]], list[Any]]) -> None:
    """A scenario, which jits and calls a program and changes state in between, gives what it gives in eager."""
    assert scenario(tm.jit) == scenario(lambda program: program)


@pytest.mark.parametrize("maxsize", [None, 1, 128, 0])
def test_a_kept_result_is_used_until_the_cache_is_cleared(maxsize: int | None) -> None:
    def scenario(jit: Any) -> list[Any]:
        state, log = {"scale": 2.0}, list[int]()

        @functools.lru_cache(maxsize=maxsize)
        def helper(n: int) -> float:
            log.append(n)
            return state["scale"] * n

        called, found = jit(lambda x, n: x * helper(n)), list[Any]()
        for change in (None, None, "state", "another", "clear", None, "outside", None):
            if change == "state":
                state["scale"] += 1
            elif change == "another":
                found.append(called(X, 5).tolist())
            elif change == "clear":
                helper.cache_clear()
            elif change == "outside":
                helper.cache_clear()
                state["scale"] += 1
                helper(3)
            found.append((called(X, 3).tolist(), list(log)))
        return found

    alike(scenario)


def test_a_kept_list_is_read_at_each_call() -> None:
    def scenario(jit: Any) -> list[Any]:
        helper = functools.cache(lambda: [2.0])
        called = jit(lambda x: x * helper()[0])
        found = [called(X).tolist(), called(X).tolist()]
        helper()[0] = 3.0
        return [*found, called(X).tolist()]

    alike(scenario)


def test_a_call_that_finds_its_result_is_traced_once() -> None:
    helper = functools.cache(lambda n: n * 2)
    helper(3)
    called = tm.jit(lambda x: x * helper(3))
    for _ in range(3):
        called(X)
    helper(4)
    called(X)
    assert tm.cache_info(called).misses == 1


def test_a_type_that_single_dispatch_learns_later() -> None:
    def scenario(jit: Any) -> list[Any]:
        @functools.singledispatch
        def helper(_kind: Any, x: Tensor) -> Tensor:
            return x * 2

        class Owner:
            @functools.singledispatchmethod
            def method(self, _kind: Any, x: Tensor) -> Tensor:
                return x * 2

        owner, found = Owner(), list[Any]()
        called = jit(lambda x, kind: (helper(kind, x), owner.method(kind, x)))
        for learn in (None, int, str):
            if learn is not None:
                helper.register(learn, lambda _kind, x: x * 5)
                learning: Any = Owner.__dict__["method"]
                learning.register(learn, lambda _self, _kind, x: x * 7)
            for kind in (3, "text", 4.0):
                found.append([x.tolist() for x in called(X, kind)])
        return found

    alike(scenario)


OWNERS: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    "an object and its classes": lambda: _instance(),
    "a class": lambda: _alone(type("Owner", (), {})),
    "a module": lambda: _alone(types.ModuleType("made_by_hand")),
}


def _alone(owner: Any) -> tuple[Any, list[Any]]:
    return owner, [owner]


def _instance() -> tuple[Any, list[Any]]:
    base = type("Base", (), {})
    cls = type("Owner", (base,), {})
    owner = cls()
    return owner, [base, cls, owner]


@pytest.mark.parametrize("name", OWNERS)
def test_an_attribute_by_a_computed_name(name: str) -> None:
    def scenario(jit: Any) -> list[Any]:
        owner, places = OWNERS[name]()
        parts = ["sc", "ale"]
        called = jit(lambda x: x * getattr(owner, "".join(parts), 1.0))
        found = [called(X).tolist()]
        for place in places:
            for value in (2.0, 3.0):
                setattr(place, "scale", value)  # noqa: B010
                found.append(called(X).tolist())
        for place in reversed(places):
            delattr(place, "scale")
            found.append(called(X).tolist())
        return found

    alike(scenario)


def test_a_global_by_a_computed_name(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ["SC", "ALE"]
    called = tm.jit(lambda x: x * globals()["".join(parts)])
    assert torch.equal(called(X), X * 2)
    monkeypatch.setattr(THIS, "SCALE", 3.0)
    assert torch.equal(called(X), X * 3)


def test_a_name_that_is_asked_for_and_absent_is_traced_once() -> None:
    owner: Any = type("Owner", (), {"scale": 2.0})()
    parts = ["ot", "her"]
    called = tm.jit(lambda x: x * (owner.scale if hasattr(owner, "".join(parts)) else 5.0))
    for _ in range(2):
        assert torch.equal(called(X), X * 5)
    owner.unrelated = 1
    called(X)
    assert tm.cache_info(called).misses == 1
    owner.other = 1
    assert torch.equal(called(X), X * 2)


LIBRARIES: dict[str, tuple[Callable[[Tensor], Any], Any, str, Any]] = {
    "a flag of torch.backends": (
        lambda x: x * (2 if torch.backends.opt_einsum.enabled else 3),
        torch.backends.opt_einsum,
        "enabled",
        False,
    ),
    "a text of torch.backends": (
        lambda x: x * (2 if torch.backends.opt_einsum.strategy == "auto" else 3),
        torch.backends.opt_einsum,
        "strategy",
        "greedy",
    ),
    "a function of torch.nn.functional": (
        lambda x: F.relu(x - 1.5),
        F,
        "relu",
        lambda x, inplace=False: x * 10,
    ),
    "a function of math": (lambda x: x * math.sqrt(4.0), math, "sqrt", lambda _x: 7.0),
    "a class of torch.nn": (lambda x: x * nn.Identity().training, nn, "Identity", nn.Dropout),
    "a forward of torch.nn": (
        nn.Sequential(nn.Identity()),
        nn.Identity,
        "forward",
        lambda _self, x: x * 3,
    ),
    "an attribute of the user's": (lambda x: x * getattr(torch, "mine", 2), torch, "mine", 3),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_a_library_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, owner, attribute, value = LIBRARIES[name]
    called = tm.jit(program)
    for _ in range(2):
        assert torch.equal(called(X), program(X))
    assert tm.cache_info(called).misses == 1
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, value, raising=False)
        assert torch.equal(called(X), program(X))
    assert torch.equal(called(X), program(X))


def test_a_method_of_tensors_that_is_replaced_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    called = tm.jit(lambda x: x.mine())
    for by in (2, 3):
        monkeypatch.setattr(Tensor, "mine", lambda self, by=by: self * by, raising=False)
        assert torch.equal(called(X), X * by)


def test_getattr_is_pythons_again_afterwards() -> None:
    before = getattr, hasattr, setattr, delattr
    tm.jit(lambda x: x * getattr(torch, "pi"))(X)  # noqa: B009
    assert (getattr, hasattr, setattr, delattr) == before


class Named:
    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.width = 3


def by_constant(owner: Any, text: str) -> str:
    return "{.mode}".format(owner)  # noqa: UP032


def by_mapping(owner: Any, text: str) -> str:
    return "{owner.mode:>{owner.width}}".format_map({"owner": owner})


def by_argument(owner: Any, text: str) -> str:
    return text.format(owner)


def by_formatter(owner: Any, text: str) -> str:
    return string.Formatter().format(text, owner)


@pytest.mark.parametrize("shown", [by_constant, by_mapping, by_argument, by_formatter])
def test_attributes_that_a_formatted_text_asks_for_are_checked(shown: Any) -> None:
    owner = Named("a")
    called = tm.jit(lambda x, text: x * len(shown(owner, text)))
    assert called(torch.ones(1), "{0.mode}").item() == len(shown(owner, "{0.mode}"))
    owner.mode = "abcd"
    assert called(torch.ones(1), "{0.mode}").item() == 4
    owner.width = 9
    assert called(torch.ones(1), "{0.mode}").item() == len(shown(owner, "{0.mode}"))


@pytest.mark.filterwarnings("ignore:.*is compiled again")
def test_subclasses_that_a_program_asks_for_are_checked() -> None:
    class Base:
        pass

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * len(Base.__subclasses__())

    called, kinds = tm.jit(program), []
    for count in range(3):
        assert called(torch.ones(1)).item() == called(torch.ones(1)).item() == count
        kinds.append(type(f"Kind{count}", (Base,), {}))
    text = str(tm.last_prologue_traces(called)[-1])
    assert "Base.__subclasses__())) == subclasses_as_traced or mismatch(" in text
