"""TRACEMILL_PRINT and TRACEMILL_DUMP: what is printed and written as passes run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import tracemill as tm

X = torch.ones(3)


def doubled(x: torch.Tensor) -> torch.Tensor:
    x.cos()  # for dce to remove
    return torch.sin(x) * 2


@pytest.fixture
def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What goes to stderr while a function is compiled under a value of TRACEMILL_PRINT."""

    def compiled(asked: str, **options: Any) -> str:
        monkeypatch.setenv("TRACEMILL_PRINT", asked)
        fast = tm.jit(doubled, **options)
        assert torch.equal(fast(X), doubled(X))
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    return compiled


def test_a_stage_is_printed_as_it_is_made(
    printed: Callable[..., str], golden: Callable[[str, str], None]
) -> None:
    text = printed("dce:minimal")
    golden("\n# ".join(part for part in text.split("\n# ") if "computation" in part), "dce")
    assert "doubled: prologue after dce, stage dce" in text


def test_a_printer_is_chosen_and_several_are_asked_for(printed: Callable[..., str]) -> None:
    text = printed("acquire, cse:verbose")
    assert "computation after acquire" in text
    assert "computation after cse" in text
    assert "after dce," not in text
    assert "torch.ops.aten.sin.default" in text
    assert printed("proxy_renaming").count(" after proxy_renaming, ") == 2
    assert printed("*:minimal").count("computation after") > 4


def test_without_a_printer_the_text_is_by_the_function_s_own(printed: Callable[..., str]) -> None:
    assert '"cpu f32[3]"' in printed("dce")
    assert '"cpu f32[3]"' not in printed("dce", printer="minimal")


def test_nothing_is_printed_when_it_is_not_asked_for(
    printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed("dce")
    monkeypatch.delenv("TRACEMILL_PRINT")
    tm.jit(doubled)(X)
    assert capsys.readouterr().err == ""
    assert not tm.PLUGINS.manager.has_plugin("TRACEMILL_PRINT")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("dse", "TRACEMILL_PRINT: unknown stage or pass 'dse'; the known ones are interpretation"),
        ("dce:loud", "unknown printer 'loud'"),
    ],
)
def test_what_is_unknown_is_an_error(
    asked: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEMILL_PRINT", asked)
    for _ in range(2):
        with pytest.raises(tm.OptionError, match=message):
            tm.jit(doubled)(X)


def test_a_printer_that_fails_is_named_and_the_program_runs(printed: Callable[..., str]) -> None:
    class Failing(tm.Printer):
        name = "failing"

        def beside(self, bsym: tm.BoundSymbol, trace: tm.Trace) -> str:
            raise ZeroDivisionError("no ink")

    text = printed("dce", printer={"dce": Failing(), "*": "default"})
    assert "# printer 'failing'" in text
    assert "no ink" in text
    assert "torch.sin(x)" in text


# TRACEMILL_DUMP


@dataclass(frozen=True)
class Fails(tm.Pass):
    """Cannot do its work."""

    name = "fails"
    stage = "dce"
    after = ("cse",)

    def apply(self, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
        raise ZeroDivisionError


def test_every_pass_and_trace_gets_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dump"
    monkeypatch.setenv("TRACEMILL_DUMP", str(folder))
    fast = tm.jit(doubled, printer="minimal")
    fast(X)
    (made,) = folder.iterdir()
    assert made.name == "000_doubled"
    names = [report.name for report in tm.last_report(fast)]
    wanted = [
        f"{n:02}_{name}_{role}.py"
        for n, name in enumerate(names)
        for role in ("computation", "prologue")
    ]
    assert sorted(path.name for path in made.glob("*.py")) == wanted
    for n, trace in enumerate(tm.last_traces(fast)):
        text = (made / f"{n:02}_{names[n]}_computation.py").read_text()
        assert text == str(trace)
        compile(text, "dumped", "exec")


def test_neighbours_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEMILL_DUMP", str(tmp_path))
    tm.jit(doubled)(X)
    (made,) = tmp_path.iterdir()
    (difference,) = made.glob("*_dce_computation.diff")
    lines = difference.read_text().splitlines()
    assert [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")] == [
        "-  t0 = torch.Tensor.cos(x)"
    ]
    index = (made / "index.txt").read_text()
    assert "_dce_computation.py  3 -> 2 operations: -1 torch.Tensor.cos" in index
    assert "_claim_prologue.py" in index
    assert "operations, left alone" in index
    assert not list(made.glob("*_claim_computation.diff"))


def test_each_compilation_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEMILL_DUMP", str(tmp_path))
    fast = tm.jit(doubled)
    fast(X)
    fast(X)  # a hit
    fast(torch.ones(4))
    tm.jit(lambda x: x + 1)(X)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "000_doubled",
        "001_doubled",
        "002__lambda_",
    ]


def test_what_was_made_before_an_error_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEMILL_DUMP", str(tmp_path))
    with pytest.raises(tm.PassError):
        tm.jit(doubled, passes=[Fails()])(X)
    (made,) = tmp_path.iterdir()
    assert list(made.glob("*_cse_computation.py"))
    assert "/ cse" in (made / "index.txt").read_text()
