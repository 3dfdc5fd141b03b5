"""Partition: groups of lines that can run as one, as few as there can be, and the order that they then stand in.

Lines are numbers here, and `follows[n]` the earlier lines that line `n` must come after.

A fusible line's level counts how often the way to it leaves the fusible lines and comes back. No way leads from a level
out and back to the same level, so lines of one level can always run as one. They do where one follows the other, and
where the caller gets what they make, which lives to the end anyway; others would only lengthen the lives of values.
Then groups are merged with those they feed, as long as no way leads from one to the other through a third.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from networkx.utils import UnionFind

Group = tuple[int, ...]


def partition(
    follows: Sequence[Collection[int]],
    fusible: Sequence[bool],
    returned: Iterable[int] = (),
) -> list[Group]:
    """Groups of fusible lines, each in order; single lines are groups too.

    returned: the lines whose results the caller gets.
    """
    levels = _levels(follows, fusible)
    joined: UnionFind[int] = UnionFind(line for line, can in enumerate(fusible) if can)
    for line, earlier in enumerate(follows):
        for other in earlier:
            if fusible[line] and fusible[other] and levels[line] == levels[other]:
                joined.union(line, other)
    last: dict[int, int] = {}
    for line in returned:
        if fusible[line]:
            joined.union(line, last.setdefault(levels[line], line))
    return _Merging(follows, [tuple(sorted(group)) for group in joined.to_sets()]).groups()


def _levels(follows: Sequence[Collection[int]], fusible: Sequence[bool]) -> list[int]:
    levels: list[int] = []
    for line, earlier in enumerate(follows):
        levels.append(
            max(
                (levels[other] + (fusible[other] and not fusible[line]) for other in earlier),
                default=0,
            )
        )
    return levels


class _Merging:
    """Merges groups with those they feed.

    A node is a group or a line outside of groups, known by its first line.
    """

    def __init__(self, follows: Sequence[Collection[int]], groups: Sequence[Group]) -> None:
        self._members = {group[0]: group for group in groups}
        node_of = {line: group[0] for group in groups for line in group}
        node_of = [node_of.get(line, line) for line in range(len(follows))]
        self._into: dict[int, set[int]] = {node: set() for node in node_of}
        self._out_of: dict[int, set[int]] = {node: set() for node in node_of}
        for line, earlier in enumerate(follows):
            for other in earlier:
                if node_of[line] != node_of[other]:
                    self._into[node_of[line]].add(node_of[other])
                    self._out_of[node_of[other]].add(node_of[line])

    def groups(self) -> list[Group]:
        waiting = deque(sorted(self._members))
        while waiting:
            node = waiting.popleft()
            if node in self._members:
                merged = (self._merge(pair) for pair in self._pairs(node))
                kept = next((each for each in merged if each is not None), None)
                if kept is not None:
                    waiting.appendleft(kept)
        return sorted(self._members.values())

    def _pairs(self, node: int) -> list[tuple[int, int]]:
        """What the node may be merged with: (feeding, fed)."""
        feeding = [(other, node) for other in sorted(self._into[node]) if other in self._members]
        fed = [(node, other) for other in sorted(self._out_of[node]) if other in self._members]
        return feeding + fed

    def _merge(self, pair: tuple[int, int]) -> int | None:
        """The node that both have become; None where a way leads from one to the other through a third."""
        feeding, fed = pair
        if self._leads_around(feeding, fed):
            return None
        members = tuple(sorted(self._members.pop(feeding) + self._members.pop(fed)))
        kept, gone = (feeding, fed) if members[0] == feeding else (fed, feeding)
        self._members[kept] = members
        for there, back in ((self._into, self._out_of), (self._out_of, self._into)):
            for other in there.pop(gone):
                back[other].discard(gone)
                if other != kept:
                    back[other].add(kept)
                    there[kept].add(other)
            there[kept].discard(gone)
        return kept

    def _leads_around(self, feeding: int, fed: int) -> bool:
        """Whether a way leads from one to the other besides the direct one; such ways tend to be short."""
        seen = {fed}
        ways = deque(self._out_of[feeding] - seen)
        while ways:
            node = ways.popleft()
            if node in seen:
                continue
            seen.add(node)
            if fed in self._out_of[node]:
                return True
            ways.extend(self._out_of[node])
        return False


def arranged(follows: Sequence[Collection[int]], groups: Iterable[Group]) -> list[Group]:
    """All lines in an order that can run, each group at one place; lines outside of groups stand alone.

    What can run next and stood first goes first, a group as late as its last line.
    """
    group_of = {line: group for group in groups for line in group}
    blocks = {group_of.get(line, (line,)) for line in range(len(follows))}
    block_of = {line: block for block in blocks for line in block}
    before = {
        block: {block_of[other] for line in block for other in follows[line]} - {block}
        for block in blocks
    }
    after: dict[Group, list[Group]] = {block: [] for block in blocks}
    for block, earlier in before.items():
        for other in earlier:
            after[other].append(block)
    missing = {block: len(earlier) for block, earlier in before.items()}
    ready = [(block[-1], block) for block, count in missing.items() if not count]
    heapq.heapify(ready)
    order: list[Group] = []
    while ready:
        _, block = heapq.heappop(ready)
        order.append(block)
        for other in after[block]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (other[-1], other))
    if len(order) != len(blocks):
        raise ValueError("groups that each need another's results first")
    return order
