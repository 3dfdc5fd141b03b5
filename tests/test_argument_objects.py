"""Arguments that are objects, with objects inside: they count by what they hold, and are written to at each call."""

from __future__ import annotations

import abc
import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import numpy
import pytest
import torch
from torch import Tensor, nn

import tracemill as tm
from tests import models
from tests.specialisations import ASKS_MORE

pytestmark = pytest.mark.filterwarnings("ignore:.*is compiled again")

X = torch.tensor([1.0, 2.0])
T = TypeVar("T")
Pair = namedtuple("Pair", "first second")
OtherPair = namedtuple("OtherPair", "first second")


class Leaf:
    def __init__(self, value: float = 1.0, *, ready: bool = True) -> None:
        self.weight = torch.full((2,), value)
        self.scale = 2.0
        self.ready = ready


class OtherLeaf(Leaf):
    pass


class Tree:
    def __init__(self, count: int = 2) -> None:
        self.leaves = [Leaf(float(index)) for index in range(count)]
        self.table: dict[str, Any] = {"first": Leaf(7.0), "flag": True}
        self.pair = Pair(Leaf(8.0), 3)
        self.last: Any = None
        self.log: list[Any] = []


class Slotted:
    __slots__ = ("__private", "inner", "tensors")

    def __init__(self) -> None:
        self.inner = Leaf()
        self.tensors = [torch.ones(2), torch.zeros(2)]
        self.__private = 2

    def private(self) -> int:
        return self.__private


class Abstract(abc.ABC, Generic[T]):
    @abc.abstractmethod
    def get(self) -> T: ...


class Concrete(Abstract[Tensor]):
    def __init__(self) -> None:
        self.inner = Leaf()

    def get(self) -> Tensor:
        return self.inner.weight


@dataclasses.dataclass
class Settings:
    leaf: Leaf
    sizes: list[int]
    name: str = "add"


class Table(dict[str, Any]):
    """A dict that has attributes."""


def content(value: Any, seen: dict[int, int] | None = None) -> Any:
    """A value in a form that compares: what it holds, and where one object stands twice."""
    seen = {} if seen is None else seen
    if isinstance(value, Tensor):
        return value.tolist(), value.dtype, value.requires_grad, _number(value, seen)
    if isinstance(value, tuple):
        return type(value), [content(item, seen) for item in value]
    if isinstance(value, numpy.ndarray):
        return value.tolist(), value.dtype, _number(value, seen)
    if isinstance(value, (int, float, str, type(None), type, bytearray)):
        return type(value), value
    number = _number(value, seen)
    if number < len(seen) - 1:
        return number
    if isinstance(value, (list, deque, set)):
        return type(value), number, [content(item, seen) for item in value]
    if isinstance(value, dict):
        items = [(content(key, seen), content(item, seen)) for key, item in value.items()]
        return type(value), number, items
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    slots = {name: getattr(value, name) for name in names if hasattr(value, name)}
    held = slots | getattr(value, "__dict__", {})
    return type(value), number, [(name, content(item, seen)) for name, item in held.items()]


def _number(value: Any, seen: dict[int, int]) -> int:
    return seen.setdefault(id(value), len(seen))


def compare(program: Callable[..., Any], makes: list[Callable[[], Any]]) -> list[int]:
    """Calls with what each of `makes` gives, twice, and compares values and effects with eager; entries after each."""
    called, entries = tm.jit(program), []
    for make in makes:
        for _ in range(2):
            mine, eagers = make(), make()
            result, expected = called(X, mine), program(X, eagers)
            assert content([result, mine]) == content([expected, eagers])
        entries.append(tm.cache_info(called).entries)
    return entries


def changed(make: Callable[[], Any], change: Callable[[Any], object]) -> Callable[[], Any]:
    """Makes what `make` does, with a change to it."""

    def made() -> Any:
        value = make()
        change(value)
        return value

    return made


def grow(x: Tensor, tree: Tree) -> Tensor:
    for leaf in tree.leaves:
        leaf.weight = leaf.weight * leaf.scale + x
        if leaf.ready:
            x = x + leaf.weight
    first = tree.table["first"]
    first.weight += x
    tree.log.append(x)
    tree.last = tree.leaves[0]
    tree.leaves.append(tree.pair.first)
    return x * len(tree.leaves) + tree.pair.second


CHANGES: dict[str, Callable[[Tree], object]] = {
    "a number": lambda tree: setattr(tree.leaves[1], "scale", 3.0),
    "a flag": lambda tree: setattr(tree.leaves[0], "ready", False),
    "the number of items": lambda tree: tree.leaves.append(Leaf()),
    "a class": lambda tree: tree.leaves.__setitem__(0, OtherLeaf()),
    "a class in a dict": lambda tree: tree.table.update(first=OtherLeaf()),
    "an item of a tuple": lambda tree: setattr(tree, "pair", Pair(Leaf(8.0), 4)),
    "another kind of tuple": lambda tree: setattr(tree, "pair", OtherPair(Leaf(8.0), 3)),
    "a shape": lambda tree: setattr(tree.leaves[0], "weight", torch.ones(1)),
    "a dtype": lambda tree: setattr(tree.leaves[0], "weight", torch.ones(2, dtype=torch.double)),
    "an attribute of its own": lambda tree: setattr(tree.leaves[0], "weight", 2.0),
    "one object in two places": lambda tree: tree.leaves.__setitem__(1, tree.leaves[0]),
    "one object in a list and a dict": lambda tree: tree.table.update(first=tree.leaves[0]),
    "one tensor in two places": lambda tree: setattr(
        tree.leaves[1], "weight", tree.leaves[0].weight
    ),
    "two views of one memory": lambda tree: setattr(
        tree.table["first"], "weight", tree.leaves[0].weight[:]
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_fresh_objects_of_equal_content_share_a_program(name: str) -> None:
    other = changed(Tree, CHANGES[name])
    assert compare(grow, [Tree, other, Tree]) == [1, 2, 2]
    assert compare(grow, [other, Tree, other]) == [1, 2, 2]


def test_the_checks_of_objects_are_lines_that_people_read(golden: Any) -> None:
    def program(x: Tensor, tree: Any) -> Tensor:
        for leaf in tree.leaves:
            leaf.weight = leaf.weight * x
        return tree.leaves[0].weight * tree.pair[1]

    called = tm.jit(program)
    tree = SimpleNamespace(leaves=[Leaf(), Leaf()], pair=(torch.ones(2), 2))
    called(X, tree)
    traces = [tm.last_prologue_traces(called)[-1], tm.last_epilogue_traces(called)[-1]]
    golden("\n\n".join(trace.text("minimal") for trace in traces), "objects")


def nested(x: Tensor, value: Any) -> Tensor:
    value.leaf.weight.mul_(2)
    value.sizes.append(len(value.name))
    return x * value.leaf.weight + value.sizes[0]


def lists_of_tensors(x: Tensor, value: Any) -> Tensor:
    value.tensors[0] = value.tensors[0] + x
    value.tensors.append(x * 2)
    value.tensors[1].add_(1)
    return sum(value.tensors)  # type: ignore[return-value]


def slots(x: Tensor, value: Any) -> Tensor:
    value.inner.scale = x * value.private()
    return lists_of_tensors(x, value) * value.inner.weight


def a_method(x: Tensor, value: Abstract[Tensor]) -> Tensor:
    value.inner.weight = value.get() + x  # type: ignore[attr-defined]
    return value.get() * x


def containers(x: Tensor, value: Any) -> Tensor:
    for held in (value.ordered, value.defaults, value.table):
        held["leaf"].weight = held["leaf"].weight + x
    value.queue.append(value.queue.popleft())
    value.table.extra = x
    return x * value.ordered["leaf"].weight + len(value.names)


def _containers() -> SimpleNamespace:
    table = Table(leaf=Leaf(3.0))
    return SimpleNamespace(
        ordered=OrderedDict(leaf=Leaf(1.0)),
        defaults=defaultdict(Leaf, leaf=Leaf(2.0)),
        table=table,
        queue=deque([Leaf(4.0), Leaf(5.0)]),
        names={"a", "b"},
    )


def cycles(x: Tensor, value: Any) -> Tensor:
    value.child.weight = value.child.parent.weight + x
    return value.child.parent.child.weight * x


def _cycles() -> Leaf:
    parent: Any = Leaf()
    parent.child = child = Leaf(2.0)
    child.__dict__["parent"] = parent
    return parent


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "a dataclass": (nested, lambda: Settings(Leaf(), [1])),
    "a dataclass in an object": (
        lambda x, value: nested(x, value.held),
        lambda: SimpleNamespace(held=Settings(Leaf(), [1])),
    ),
    "a namedtuple": (
        lambda x, value: nested(x, value.first),
        lambda: Pair(SimpleNamespace(leaf=Leaf(), sizes=[2], name="a"), 1),
    ),
    "slots": (slots, Slotted),
    "lists of tensors": (lists_of_tensors, Slotted),
    "an abstract, generic class": (a_method, Concrete),
    "containers": (containers, _containers),
    "a cycle": (cycles, _cycles),
    "an object in a list": (
        lambda x, value: lists_of_tensors(x, value[0]),
        lambda: [Slotted(), Slotted()],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_kinds_of_objects(name: str) -> None:
    program, make = PROGRAMS[name]
    assert compare(program, [make, make]) == [1, 1]


def test_an_object_that_the_program_has_itself_is_told_apart() -> None:
    own = Leaf(5.0)
    memo = {own: 3.0}

    def by_identity(x: Tensor, value: Any) -> Tensor:
        return x * 2 if value.held is own else x * value.held.scale

    def by_key(x: Tensor, value: Any) -> Tensor:
        return x * memo.get(value.held, 5.0)

    def by_attribute(x: Tensor, value: Any) -> Tensor:
        value.held.weight = value.held.weight + x
        return own.weight * x

    for program in (by_identity, by_key, by_attribute):
        for order in ((own, Leaf()), (Leaf(), own)):
            called = tm.jit(program)
            for held in (*order, *order):
                before = held.weight
                result, after = called(X, SimpleNamespace(held=held)), held.weight
                held.weight = before
                expected = program(X, SimpleNamespace(held=held))
                assert torch.equal(result, expected)
                assert torch.equal(after, held.weight)
            assert tm.cache_info(called).entries == 2


def test_an_argument_that_stands_in_an_object_too() -> None:
    def program(x: Tensor, value: Any) -> Tensor:
        return x + value.weight * 2

    other = Leaf(5.0)
    one = Leaf()
    one.weight = X
    for order in ((one, other), (other, one)):
        called = tm.jit(program)
        for value in (*order, *order):
            assert torch.equal(called(X, value), program(X, value))
        assert tm.cache_info(called).entries == 2


@dataclasses.dataclass
class Count:
    number: int = 1


SHARED: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "a list": (lambda: [1], lambda value: value.append(2)),
    "a dict": (lambda: {"a": 1}, lambda value: value.update(b=2)),
    "a dataclass": (Count, lambda value: setattr(value, "number", 2)),
    "a list of tensors": (lambda: [torch.ones(2)], lambda value: value[0].add_(1)),
    "a list in a list": (lambda: [[1]], lambda value: value[0].append(2)),
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("kind", ["argument", "object", "item", "own"])
def test_containers_that_stand_elsewhere_too(name: str, kind: str) -> None:
    make, write = SHARED[name]
    own: list[Any] = []

    def program(x: Tensor, value: Any, other: Any) -> Any:
        found = other
        if kind == "object":
            found = other.held
        elif kind == "item":
            found = other[0]
        elif kind == "own":
            found = own[0]
        write(value)
        return x * 2, value is found, found

    def arguments(*, shared: bool) -> tuple[Any, Any]:
        value = make()
        other = value if shared else make()
        own[:] = [other] if kind == "own" else []
        if kind in ("object", "item"):
            return value, SimpleNamespace(held=other) if kind == "object" else [other]
        return value, other if kind == "argument" else None

    for order in ((True, False), (False, True)):
        called = tm.jit(program)
        for shared in (*order, *order):
            result = called(X, *arguments(shared=shared))
            expected = program(X, *arguments(shared=shared))
            assert content(result) == content(expected)
        if kind != "own":  # whose objects count by identity
            assert tm.cache_info(called).entries == 2


def test_tensors_are_told_apart_by_identity() -> None:
    def program(x: Tensor, value: Any) -> Tensor:
        return x * 2 if value.weight is x else x * 3

    one, other = Leaf(), Leaf()
    one.weight = X
    for order in ((one, other), (other, one)):
        called = tm.jit(program)
        for value in (*order, *order):
            assert torch.equal(called(X, value), program(X, value))
        assert tm.cache_info(called).entries == 2


def test_two_arguments_that_share_an_object() -> None:
    def program(x: Tensor, one: Any, two: Any) -> Tensor:
        one.leaf.scale = 5.0
        one.leaf.weight.add_(x)
        return two.leaf.weight * two.leaf.scale

    def pair(*, shared: bool) -> tuple[Any, Any]:
        leaf = Leaf()
        return SimpleNamespace(leaf=leaf), SimpleNamespace(leaf=leaf if shared else Leaf())

    for order in ((True, False), (False, True)):
        called = tm.jit(program)
        for shared in (*order, *order):
            mine, eagers = pair(shared=shared), pair(shared=shared)
            assert torch.equal(called(X, *mine), program(X, *eagers))
            assert content(mine) == content(eagers)
        assert tm.cache_info(called).entries == 2


class Keeper:
    def __init__(self) -> None:
        self.last: Any = None
        self.log: list[Any] = []
        self.table: dict[Any, Any] = {}


def test_an_object_of_the_call_is_stored_returned_and_a_key() -> None:
    def run(jit: Callable[..., Any]) -> list[Any]:
        keeper = Keeper()

        def program(x: Tensor, tree: Tree) -> Any:
            keeper.last = tree.leaves[0]
            keeper.log.append(tree.leaves[1])
            keeper.table[tree.leaves[0]] = x
            return tree.leaves[1], x * tree.leaves[0].weight

        called, found = jit(program), []
        for _ in range(3):
            tree = Tree()
            one, two = tree.leaves
            returned, _ = called(X, tree)
            found.append((keeper.last is one, keeper.log[-1] is two, returned is two))
            found.append((len(keeper.table), keeper.table[one] is X))
        return found

    assert run(tm.jit) == run(lambda program: program)


def test_a_new_object_that_is_stored_twice_is_one() -> None:
    def program(x: Tensor, value: Any) -> Tensor:
        new = Leaf()
        new.weight = x * 2
        value.first, value.leaves = new, [new, Leaf()]
        value.log.append(new)
        return x * new.weight

    def make() -> Any:
        return SimpleNamespace(log=[])

    assert compare(program, [make, make]) == [1, 1]


def test_modules_inside_of_objects_count_as_themselves() -> None:
    def program(x: Tensor, value: Any) -> Tensor:
        return value.layer(x)

    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    called = tm.jit(program)
    for layer in (one, two, one, two):
        assert torch.equal(called(X, SimpleNamespace(layer=layer)), layer(X))
    assert tm.cache_info(called).entries == 2


# Key-value caches


def tokens(model: Any, ids: Tensor, **options: Any) -> list[list[int]]:
    return model.generate(
        ids, max_new_tokens=5, use_cache=True, pad_token_id=0, eos_token_id=None, **options
    ).tolist()


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("cache", "implementation", "entries"),
    [
        ("constant values", None, 5),  # the cache is longer at each step
        ("symbolic values", None, 2),  # all tokens of the prompt, then one after another
        ("constant values", "static", 2),
        ("symbolic values", "static", 2),
    ],
)
def test_generated_tokens_are_eagers(
    name: str, cache: str, implementation: str | None, entries: int
) -> None:
    model, _, _ = getattr(models, name)(layers=1)
    called = tm.jit(model, cache=cache)
    options: Any = {"do_sample": False, "cache_implementation": implementation}
    ids = torch.tensor([[3, 14, 15, 92]])
    for _ in range(3):  # with a fresh cache each
        assert tokens(called, ids, **options) == tokens(model, ids, **options)
        assert tm.cache_info(called).entries == entries


def test_one_program_decodes_prompts_of_all_lengths() -> None:
    model, _, _ = models.llama(layers=1)
    called = tm.jit(model, cache="symbolic values")
    for length in (4, 5, 7, 3):
        ids = torch.arange(1, length + 1)[None]
        assert tokens(called, ids, num_beams=2) == tokens(model, ids, num_beams=2)
    prompts = 4 if ASKS_MORE else 2  # where attention's sizes are specialised, one for each length
    assert tm.cache_info(called).entries <= prompts + 1


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@torch.no_grad()
def test_a_cache_that_makes_its_layers_during_the_call(cache: str, golden: Any) -> None:
    from transformers import DynamicCache

    model, _, _ = models.llama(layers=1, hidden=32)
    called, ids = tm.jit(model, cache=cache), torch.tensor([[3, 14, 15, 92]])
    for _ in range(3):
        mine, eagers = DynamicCache(), DynamicCache()
        for _ in range(3):
            result = called(ids, past_key_values=mine, use_cache=True)
            expected = model(ids, past_key_values=eagers, use_cache=True)
            assert torch.equal(result.logits, expected.logits)
            assert result.past_key_values is mine
            assert content(mine) == content(eagers)
    assert tm.cache_info(called).entries == (3 if cache == "constant values" else 2)
    first = tm.jit(model)
    first(ids, past_key_values=DynamicCache(), use_cache=True)
    golden(tm.last_epilogue_traces(first)[-1].text("minimal"), "new_layers")


def test_sizes_inside_of_objects_are_symbolic() -> None:
    def program(x: Tensor, tree: Any) -> Tensor:
        for leaf in tree.leaves:
            x = x * leaf.weight.shape[0] + leaf.weight.sum()
        tree.leaves[0].weight = torch.cat([tree.leaves[0].weight, x])
        return x

    def make(one: int, two: int) -> Any:
        first, second = Leaf(), Leaf()
        first.weight, second.weight = torch.arange(float(one)), torch.arange(float(two))
        return SimpleNamespace(leaves=[first, second])

    called = tm.jit(program, cache="symbolic values")
    for sizes in ((3, 4), (5, 6), (7, 7), (4, 9)):
        mine, eagers = make(*sizes), make(*sizes)
        assert torch.equal(called(X, mine), program(X, eagers))
        assert content(mine) == content(eagers)
    assert tm.cache_info(called).entries == 1
