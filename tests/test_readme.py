"""The README's program prints what the README says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_program_prints_the_trace_below_it(tmp_path: Path) -> None:
    program, printed = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    file = tmp_path / "program.py"
    file.write_text(program, "utf-8")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, str(file), "exec"), {"__name__": "__main__"})
    assert out.getvalue().strip() == printed.strip()


def test_its_commands_are_the_makefiles() -> None:
    commands = re.findall(r"^    make (\w+)", README.read_text("utf-8"), re.MULTILINE)
    makefile = (README.parent / "Makefile").read_text("utf-8")
    assert commands == ["demo", "test"]
    assert all(re.search(rf"^{command}:", makefile, re.MULTILINE) for command in commands)
