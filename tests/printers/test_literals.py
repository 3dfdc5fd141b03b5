"""Members of enumerations in a text: by name where they have one."""

from __future__ import annotations

import enum

import torch

import tracemill as tm


class Parts(enum.Flag):
    FIRST = 1
    SECOND = 2


def test_several_flags_at_once_are_bound_by_name() -> None:
    jitted = tm.jit(lambda x, parts: x * (3 if parts & Parts.SECOND else 2))
    x = torch.ones(2)
    for parts, factor in ((Parts.FIRST, 2), (Parts.FIRST | Parts.SECOND, 3), (Parts(0), 2)) * 2:
        assert torch.equal(jitted(x, parts), x * factor)
    assert tm.cache_info(jitted).misses == 3
