"""Which tensors are one object: an argument that is one of the program's own, and `is` between tensors."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tracemill as tm

pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again")

Jit = Callable[[Any], Any]
KNOWN = torch.ones(3)


def new() -> Tensor:
    return torch.ones(3)


@pytest.fixture(params=["constant values", "symbolic values"])
def assert_as_eager(request: pytest.FixtureRequest) -> Callable[[Callable[[Jit], list[Any]]], None]:
    def check(scenario: Callable[[Jit], list[Any]]) -> None:
        def jit(program: Any) -> Any:
            return tm.jit(program, cache=request.param)

        want, got = scenario(lambda program: program), scenario(jit)
        assert list(map(_plain, got)) == list(map(_plain, want))

    return check


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(new())

    def forward(self, x: Tensor) -> Tensor:
        return x * 10 if x is self.weight else x * 2


@dataclass
class Pair:
    first: Tensor
    second: Tensor


@pytest.mark.parametrize("own_first", [True, False])
def test_an_argument_is_a_parameter(assert_as_eager: Any, own_first: bool) -> None:
    def scenario(jit: Jit) -> list[Any]:
        module = Scaled()
        called = jit(module)
        other = nn.Parameter(new())
        given = [module.weight, other] if own_first else [other, module.weight]
        found = [called(x) for x in (*given, *given)]
        for result in found:
            result.sum().backward()
        return [*found, module.weight.grad, other.grad]

    assert_as_eager(scenario)


def test_an_argument_is_a_global_that_nothing_is_computed_with(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        called = jit(lambda x: x + 1 if x is KNOWN else x - 1)
        return [called(x) for x in (new(), KNOWN, new(), KNOWN)]

    assert_as_eager(scenario)


def test_the_other_tensor_is_replaced(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        owner = SimpleNamespace(last=new())
        before = owner.last
        called = jit(lambda x: x + 1 if x is owner.last else x - 1)
        found = [called(before), called(new())]
        owner.last = new()
        return [*found, called(before), called(owner.last)]

    assert_as_eager(scenario)


def test_a_program_stores_what_it_compares_with(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        owner = SimpleNamespace(last=None)

        def program(x: Tensor) -> Tensor:
            again = x is owner.last
            owner.last = x
            return x + 1 if again else x - 1

        called = jit(program)
        one, two = new(), new()
        return [called(x) for x in (one, one, two, one, one, two, two)]

    assert_as_eager(scenario)


def test_an_argument_is_among_the_items_of_a_list(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        known, one = [new()], new()
        called = jit(lambda x: [any(x is item for item in known), len(known)])
        found = [*called(one), *called(known[0])]
        known.append(one)
        return [*found, *called(one), *called(known[0]), *called(new())]

    assert_as_eager(scenario)


def test_an_argument_is_among_the_items_of_another(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        called = jit(lambda items, x: [x is item for item in items])
        one, two = new(), new()
        given = [([one, two], new()), ([one, two], one), ([one, two], two), ([one, one], new())]
        return [called(*each) for each in given]

    assert_as_eager(scenario)


@pytest.mark.parametrize("kind", [Pair, lambda *pair: SimpleNamespace(pair=pair)])
def test_tensors_inside_of_arguments_are_one(assert_as_eager: Any, kind: Any) -> None:
    def program(pair: Any, x: Tensor) -> list[bool]:
        first, second = pair.pair if hasattr(pair, "pair") else (pair.first, pair.second)
        return [first is second, second is x, x is first, first is KNOWN]

    def scenario(jit: Jit) -> list[Any]:
        called = jit(program)
        one, two = new(), new()
        pairs = [(one, two), (one, one), (KNOWN, two), (two, KNOWN), (KNOWN, KNOWN)]
        return [called(kind(*pair), x) for pair in pairs for x in (new(), one, two, KNOWN)]

    assert_as_eager(scenario)


def test_two_tensors_of_the_program_become_one_and_two_again(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        owner = SimpleNamespace(left=new(), right=new())
        called = jit(lambda x: x * 2 if owner.left is owner.right else x)
        found = [called(new())]
        owner.right = owner.left
        found.append(called(new()))
        owner.right = new()
        return [*found, called(new())]

    assert_as_eager(scenario)


def test_an_argument_is_what_the_program_writes_to(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        total = torch.ones(4)

        def program(x: Tensor) -> Tensor:
            total.add_(1)
            return x * 2

        called = jit(program)
        given = [torch.ones(4), total, torch.ones(4), total[:], total.view(2, 2)[0], total]
        return [*(called(x).clone() for x in given), total]

    assert_as_eager(scenario)


def test_an_argument_is_a_key_of_a_dict(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        one, two = new(), torch.zeros(3)
        table = {one: 2, two: 3}
        called = jit(lambda x: x + table.get(x, 7))
        return [called(x) for x in (new(), one, two, new(), one)]

    assert_as_eager(scenario)


def test_an_argument_is_a_key_of_another_argument(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        one, two = new(), new()
        called = jit(lambda table, x: x + table.get(x, 7))
        tables = [{one: 2, two: 3}, {two: 2, one: 3}]
        return [called(dict(table), x) for table in tables for x in (new(), one, two)]

    assert_as_eager(scenario)


def test_keys_are_part_of_a_key_or_of_a_table_of_the_standard_library(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        one = new()
        pairs, table = {(one, 1): 2}, UserDict({one: 5})
        called = jit(lambda x: x + pairs.get((x, 1), 7) + table.get(x, 1))
        return [called(x) for x in (new(), one, new(), one)]

    assert_as_eager(scenario)


def test_a_key_is_replaced_where_the_program_looks_for_it(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        owner = SimpleNamespace(key=new())
        key, table = owner.key, {owner.key: 4}
        called = jit(lambda x: x + table.get(owner.key, 7))
        found = [called(new())]
        owner.key = new()
        found.append(called(new()))
        owner.key = key
        return [*found, called(new()), called(key)]

    assert_as_eager(scenario)


def test_an_argument_is_a_member_of_a_set(assert_as_eager: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        one, two = new(), new()
        seen = {one}
        called = jit(lambda x: x + 1 if x in seen else x - 1)
        found = [called(x) for x in (new(), one, two)]
        seen.add(two)
        return [*found, *(called(x) for x in (new(), one, two))]

    assert_as_eager(scenario)


def test_the_prologue_says_where_an_argument_is_found_again() -> None:
    module = Scaled()
    called = tm.jit(module)
    called(module.weight)
    text = str(tm.last_prologue_traces(called)[-1])
    assert ' is x or mismatch("weight: the same tensor as x")' in text
    called(nn.Parameter(new()))
    text = str(tm.last_prologue_traces(called)[-1])
    assert 'weight is not x or mismatch("weight: its own object")' in text


@pytest.mark.parametrize("own", [KNOWN, nn.Parameter(KNOWN)])
def test_what_compares_with_constants_alone_checks_no_more(own: Tensor) -> None:
    held = [own]

    def program(x: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
        return x if mask is None and "scale" not in options and held else x * 2

    called = tm.jit(program)
    called(new())
    assert "distinct" not in str(tm.last_prologue_traces(called)[-1])
