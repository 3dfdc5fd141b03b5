"""The guides: every Python block runs, and prints what the text block after it says; what pages name is there."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch

REPOSITORY = Path(__file__).parent.parent
GUIDES = REPOSITORY / "docs" / "guides"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`((?:compiler|docs|examples|executors|passes|printers|src|tests)/[\w./]*)`")
LINK = re.compile(r"\]\(([\w./]+)(?:#[\w-]+)?\)")


@pytest.mark.parametrize("guide", sorted(GUIDES.glob("*.md")), ids=lambda path: path.stem)
def test_a_guide_is_true(
    guide: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if guide.stem == "symbolic_values" and torch.__version__ < "2.13":
        pytest.skip("shows the checks of sizes that PyTorch 2.13 asks for")
    blocks = BLOCK.findall(guide.read_text(encoding="utf-8"))
    assert any(language == "python" for language, _ in blocks)
    run(guide.name, blocks, capsys, monkeypatch)


def run(
    name: str,
    blocks: Sequence[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs blocks of Python as one program, and compares what each prints with the block of text after it."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    printed = ""
    for number, (language, text) in enumerate(blocks):
        if language == "python":
            assert printed == "", "what a block prints must be shown below it"
            file = f"<{name} {number}>"
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
            exec(compile(text, file, "exec"), module.__dict__)
            printed = capsys.readouterr().out
        elif language == "text":
            assert printed.strip() == text.strip()
            printed = ""
    assert printed == ""


@pytest.mark.parametrize(
    "page",
    [*sorted(REPOSITORY.glob("docs/**/*.md")), *sorted(REPOSITORY.glob("*.md"))],
    ids=lambda page: page.relative_to(REPOSITORY).as_posix(),
)
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lost = [name for name in FILE.findall(text) if not (REPOSITORY / name).exists()]
    links = LINK.findall(BLOCK.sub("", text))
    lost += [link for link in links if not (page.parent / link).exists()]
    assert not lost


def test_the_index_leads_to_every_guide() -> None:
    listed = re.findall(r"^guides/(\w+)$", (GUIDES.parent / "index.md").read_text("utf-8"), re.M)
    assert sorted(listed) == sorted(path.stem for path in GUIDES.glob("*.md"))
