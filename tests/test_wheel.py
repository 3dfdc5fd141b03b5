"""The wheel, as somebody without the repository gets it.

The sources stand at the root of the repository and reach the package through symbolic links, so
what a checkout imports says nothing about what a wheel holds.
"""

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
FOLDERS = ("compiler", "executors", "passes", "printers")

PROBE = """
import sys
import torch
import tracemill as tm

def scaled(x):
  return (x + 1).sin() * 2

x = torch.arange(3.0)
fast = tm.jit(scaled)
assert torch.equal(fast(x), scaled(x))
assert "torch" in tm.last_traces(fast)[-1].text()
for name, module in sorted(sys.modules.items()):
  if name.split(".")[0] == "tracemill":
    print(module.__file__)
"""


def copy_checkout(target: Path) -> Path:
    """Copy what a wheel is built from, links as links, build leftovers left behind."""
    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, target)
    leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in (*FOLDERS, "src"):
        shutil.copytree(REPOSITORY / name, target / name, symlinks=True, ignore=leftovers)
    return target


def pip(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--no-input", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def build_wheel(checkout: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return pip("wheel", "--no-deps", "--no-build-isolation", "-w", target, checkout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = build_wheel(copy_checkout(folder / "checkout"), folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_holds_every_source_and_the_marker(wheel: Path) -> None:
    sources = {
        f"tracemill/{path.relative_to(REPOSITORY).as_posix()}"
        for folder in FOLDERS
        for path in (REPOSITORY / folder).rglob("*.py")
    }
    sources |= {f"tracemill/{path.name}" for path in REPOSITORY.glob("src/tracemill/*.py")}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("tracemill/")}
    assert held == sources | {"tracemill/py.typed"}


@pytest.mark.slow
def test_wheel_runs_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))
    # torch and the others are lent by links, since copies would be gigabytes; our own (editable)
    # installation is the one thing that must not be seen.
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "tracemill" not in entry.name and entry.name != "__pycache__":
            (site / entry.name).symlink_to(entry)

    done = pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    assert done.returncode == 0, done.stdout + done.stderr

    probe = tmp_path / "elsewhere" / "probe.py"
    probe.parent.mkdir()
    probe.write_text(PROBE, encoding="utf-8")
    done = subprocess.run([python, "-I", probe], cwd=probe.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    files = [Path(line).resolve() for line in done.stdout.splitlines()]
    assert files
    assert all(file.is_relative_to((site / "tracemill").resolve()) for file in files), files


@pytest.mark.slow
@pytest.mark.parametrize("lost", FOLDERS)
def test_checkout_without_a_link_does_not_build(lost: str, tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    (checkout / "src" / "tracemill" / lost).unlink()
    done = build_wheel(checkout, tmp_path)
    assert done.returncode != 0
    assert f"src/tracemill/{lost}" in done.stdout + done.stderr


def test_every_folder_is_listed() -> None:
    """A new sub-package must be named in pyproject.toml, or it is missing from the wheel."""
    folders = {
        ".".join(("tracemill", *path.parent.relative_to(REPOSITORY).parts))
        for folder in FOLDERS
        for path in (REPOSITORY / folder).rglob("__init__.py")
    }
    configuration = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    listed = configuration["tool"]["setuptools"]["packages"]
    assert set(listed) == folders | {"tracemill"}
