"""The command line: what can be listed and shown, and what is said of arguments that mean nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tracemill as tm
from tracemill.__main__ import main, value_of

SOURCES = Path(tm.__file__).parent.parent

PROGRAMS = """
import torch

def scaled(x, by, *, mode="sum"):
  unused = x.cos()
  return getattr(x * by, mode)()

def branching(x):
  return x + 1 if x.sum() > 0 else x - 1

def broken(x):
  return x.reshape(7)

class Net(torch.nn.Linear):
  def __init__(self):
    super().__init__(3, 2)

net = Net()

def hidden():
  raise TypeError("the program's own")
"""


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shown_programs.py").write_text(PROGRAMS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shown_programs", raising=False)


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out


def test_plugins_lists_everything_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert heads == [
        "stage interpretation",
        "stage proxy_renaming",
        "stage dce",
        "stage autograd_split",
        "stage executor_fusion",
        "printers",
        "executors",
    ]
    listed = [line.split()[0] for line in lines if line.startswith(" ")]
    for names in (tm.passes.names(), tm.printers.names(), tm.executors.names()):
        assert set(names) <= set(listed)
    assert listed.index("dce") < listed.index("cse")
    (dce,) = [line for line in lines if line.startswith("  dce ")]
    _, owner, text = dce.split(None, 2)
    assert owner == "tracemill"
    assert text.startswith("Removes what no output")


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tracemill", "show", "torch:sin", "--input", "cpu f32[2]"],
        env={"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "torch.sin(" in done.stdout


def test_show_prints_what_runs(
    capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    text = show(capsys, "shown_programs:scaled", "--input", "cpu f32[2, 3]", "--input", "2.5")
    golden(text, "scaled")


def test_show_prints_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["shown_programs:scaled", "--input", "cpu f64[2]", "--input", "2"]
    before = show(capsys, *arguments, "--stage", "proxy_renaming")
    after = show(capsys, *arguments, "--stage", "dce", "--printer", "minimal")
    assert "torch.Tensor.cos(x)" in before
    assert "cos" not in after
    assert "#" not in after


def test_show_prints_the_prologue_and_the_backward(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["shown_programs:net", "--input", "cpu f32[4, 3]"]
    assert "def prologue(" in show(capsys, *arguments, "--trace", "prologue")
    assert "def backward(" in show(capsys, *arguments, "--grad", "--trace", "backward")
    assert "def computation(" in show(capsys, "shown_programs:Net", "--input", "cpu f32[4, 3]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shown_programs"], "'shown_programs' is not of the form module:function"),
        (["shown_programs:scald"], "has no attribute 'scald'"),
        (["no_such_module:f"], "No module named 'no_such_module'"),
        (["shown_programs:PROGRAM"], "has no attribute"),
        (["shown_programs:torch.pi"], "is a float, not a callable"),
        (["shown_programs:scaled"], "missing 2 required positional arguments"),
        (["shown_programs:net", "--input", "cpu f99[2]"], "unknown dtype; the known ones are b"),
        (["shown_programs:net", "--input", "x y"], "neither a tensor type such as"),
        (["shown_programs:net", "--input", "mars f32[2]"], "mars"),
        (["shown_programs:net", "--input", "cpu f32[3]", "--trace", "epilogue"], "no epilogue"),
        (["shown_programs:net", "--input", "cpu f32[3]", "--printer", "loud"], "unknown printer"),
    ],
)
def test_arguments_that_mean_nothing_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tracemill: ")
    assert message in captured.err


def test_what_the_program_raises_is_its_own() -> None:
    with pytest.raises(TypeError, match="the program's own"):
        main(["show", "shown_programs:hidden"])
    with pytest.raises(RuntimeError, match="shape"):
        main(["show", "shown_programs:broken", "--input", "cpu f32[2]"])


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("cpu f32[2, 3]", torch.float32, (2, 3)),
        ("cpu bf16[]", torch.bfloat16, ()),
        ("cpu i64[0]", torch.int64, (0,)),
        ("cpu b8[1]", torch.bool, (1,)),
        ("meta c64[4, 1]", torch.complex64, (4, 1)),
    ],
)
def test_a_type_as_traces_print_it_is_a_tensor(
    text: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = value_of(text, requires_grad=True)
    assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape)
    assert tensor.requires_grad is dtype.is_floating_point
    assert tm.TensorProxy.like(tensor).type_string == text


@pytest.mark.parametrize("text", ["3", "2.5", "True", "None", "'text'", "[1, (2, 3)]", "{'a': 1}"])
def test_anything_else_is_a_python_literal(text: str) -> None:
    assert repr(value_of(text)) == text
