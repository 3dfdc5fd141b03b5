"""Groups of lines that can run as one: whatever the program, they can be put into an order."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tracemill.passes.executor_fusion.partition import arranged, partition


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[set[int]], list[bool], list[int]]:
    size = draw(st.integers(1, 14))
    follows = [
        draw(st.sets(st.integers(0, line - 1), max_size=3)) if line else set[int]()
        for line in range(size)
    ]
    fusible = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    returned = draw(st.lists(st.integers(0, size - 1), unique=True, max_size=4))
    return follows, fusible, returned


FIRST_MERGED_TWICE = (
    [set[int](), set[int](), {1}, set[int](), {0, 2, 3}, {2, 3}],
    [True, True, False, True, True, True],
    list[int](),
)
"""The first line, whose number is falsy, is merged with a group that could be merged otherwise too."""


@example(FIRST_MERGED_TWICE)
@given(programs())
@settings(deadline=None)
def test_each_fusible_line_is_in_one_group_and_the_groups_have_an_order(
    program: tuple[list[set[int]], list[bool], list[int]],
) -> None:
    follows, fusible, returned = program
    groups = partition(follows, fusible, returned)
    assert sorted(line for group in groups for line in group) == [
        line for line, can in enumerate(fusible) if can
    ]
    order = arranged(follows, groups)
    place = {line: position for position, block in enumerate(order) for line in block}
    assert sorted(place) == list(range(len(follows)))
    for line, earlier in enumerate(follows):
        assert all(place[other] <= place[line] for other in earlier)


@given(programs())
@settings(deadline=None)
def test_no_two_groups_that_feed_each_other_could_be_one(
    program: tuple[list[set[int]], list[bool], list[int]],
) -> None:
    follows, fusible, returned = program
    groups = partition(follows, fusible, returned)
    for number, group in enumerate(groups):
        for other in groups[number + 1 :]:
            if _touch(follows, group, other):
                rest = [each for each in groups if each not in (group, other)]
                merged = tuple(sorted(group + other))
                assert not _can_be_arranged(follows, [*rest, merged])


def _touch(follows: Sequence[set[int]], one: Sequence[int], other: Sequence[int]) -> bool:
    return any(follows[line] & set(one) for line in other) or any(
        follows[line] & set(other) for line in one
    )


def _can_be_arranged(follows: Sequence[set[int]], groups: Sequence[tuple[int, ...]]) -> bool:
    try:
        arranged(follows, groups)
    except ValueError:
        return False
    return True


def test_a_chain_is_one_group() -> None:
    assert partition([set(), {0}, {1}], [True, True, True]) == [(0, 1, 2)]


def test_a_way_through_a_line_that_cannot_fuse_parts_two_groups() -> None:
    #  0 -> 1 (not fusible) -> 2, and 0 -> 2
    assert partition([set(), {0}, {0, 1}], [True, False, True]) == [(0,), (2,)]


def test_what_is_only_needed_late_is_computed_late() -> None:
    #  0 (not fusible) -> 1; 2 feeds only 3, which follows 1 through a line that cannot fuse
    follows: list[set[int]] = [set(), {0}, {1}, set(), {2, 3}]
    fusible = [False, True, False, True, True]
    assert partition(follows, fusible) == [(1,), (3, 4)]
    assert arranged(follows, [(1,), (3, 4)]) == [(0,), (1,), (2,), (3, 4)]


def test_results_of_one_level_are_computed_together() -> None:
    assert partition([set(), set(), set()], [True] * 3, returned=[0, 2]) == [(0, 2), (1,)]


def test_a_long_program_of_many_groups_takes_little_time() -> None:
    size = 6_000
    follows = [{line - 1} if line else set[int]() for line in range(size)]
    fusible = [line % 2 == 0 for line in range(size)]
    assert len(partition(follows, fusible)) == size // 2
