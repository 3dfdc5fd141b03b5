"""Walks over structures: leaves in order, and nothing rebuilt that does not change."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

import tracemill as tm
from tracemill.compiler.values import leaves, map_leaves, proxies, substitute

ATOMS = st.one_of(st.integers(), st.text(max_size=2), st.none(), st.booleans())
STRUCTURES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.tuples(inner, inner, inner).map(lambda parts: slice(*parts)),
    ),
    max_leaves=12,
)


@given(STRUCTURES)
def test_mapping_visits_the_leaves_in_order(value: Any) -> None:
    seen: list[Any] = []
    map_leaves(lambda leaf: seen.append(leaf) or leaf, value)
    assert seen == list(leaves(value))


@given(STRUCTURES)
def test_what_does_not_change_compares_equal(value: Any) -> None:
    assert map_leaves(lambda leaf: leaf, value) == value
    assert substitute(value, {}) == value


def test_structures_keep_their_classes() -> None:
    Point = collections.namedtuple("Point", "x y")

    @dataclasses.dataclass
    class Box:
        item: Any

    numbers: Any = (4, 5)
    max_of = torch.return_types.max(numbers)
    value = [Point(1, 2), Box(3), max_of, {"k": (6,)}]
    doubled = map_leaves(lambda leaf: leaf * 2, value)
    assert [type(item) for item in doubled] == [type(item) for item in value]
    assert list(leaves(doubled)) == [2, 4, 6, 8, 10, 12]


def test_proxies_are_replaced_wherever_they_are() -> None:
    x, y = tm.TensorProxy("x"), tm.TensorProxy("y")
    value = {"a": [x, 1], "b": slice(x, None, x)}
    assert substitute(value, {x: y}) == {"a": [y, 1], "b": slice(y, None, y)}
    assert list(proxies(value)) == [x, x, x]
