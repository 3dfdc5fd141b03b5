"""The guides: every Python block runs, and prints what the text block after it says."""

from __future__ import annotations

import linecache
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

GUIDES = Path(__file__).parent.parent / "docs" / "guides"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("guide", sorted(GUIDES.glob("*.md")), ids=lambda path: path.stem)
def test_a_guide_is_true(
    guide: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    printed = ""
    blocks = BLOCK.findall(guide.read_text(encoding="utf-8"))
    assert any(language == "python" for language, _ in blocks)
    for number, (language, text) in enumerate(blocks):
        if language == "python":
            assert printed == "", "what a block prints must be shown below it"
            file = f"<{guide.name} {number}>"
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
            exec(compile(text, file, "exec"), module.__dict__)
            printed = capsys.readouterr().out
        elif language == "text":
            assert printed.strip() == text.strip()
            printed = ""
    assert printed == ""
