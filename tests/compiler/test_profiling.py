"""The profile hook that watches a program: away for tracemill's and PyTorch's work, there for the user's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from tracemill.compiler.profiling import profiled, unprofiled


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """The names of the functions that a hook sees."""
    names: list[str] = []

    def hook(frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        yield names
    finally:
        sys.setprofile(before)


def ours() -> None:
    pass


def theirs() -> None:
    pass


def test_the_hook_sees_what_is_the_user_s_alone(seen: list[str]) -> None:
    with unprofiled():
        ours()
        with unprofiled():
            ours()
            with profiled():
                theirs()
                with profiled():
                    theirs()
                theirs()
            ours()
    theirs()
    assert "ours" not in seen
    assert seen.count("theirs") == 4


def test_an_error_brings_the_hook_back(seen: list[str]) -> None:
    with pytest.raises(KeyError), unprofiled(), profiled():
        raise KeyError
    theirs()
    assert "theirs" in seen


def test_without_a_hook_nothing_happens() -> None:
    before = sys.getprofile()
    sys.setprofile(None)
    try:
        with profiled(), unprofiled(), profiled():
            assert sys.getprofile() is None
    finally:
        sys.setprofile(before)
