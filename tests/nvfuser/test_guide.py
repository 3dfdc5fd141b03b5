"""The definition that the guide shows is the one that nvFuser prints."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.test_guides import BLOCK, GUIDES, run


def test_the_guide_shows_the_definition_that_nvfuser_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks `py`, followed by one of `none`, need nvFuser; other tests pass over them."""
    blocks = BLOCK.findall((GUIDES / "nvfuser.md").read_text(encoding="utf-8"))
    shown = [
        pair for pair in pairwise(blocks) if [language for language, _ in pair] == ["py", "none"]
    ]
    assert shown
    for (_, text), (_, printed) in shown:
        before = blocks[: blocks.index(("py", text))]
        run("nvfuser.md", [*before, ("python", text), ("text", printed)], capsys, monkeypatch)
