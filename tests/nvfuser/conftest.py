"""All tests of this folder need nvFuser, and are skipped where it is not installed."""

from __future__ import annotations

from collections.abc import Generator
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import torch

from tests.nvfuser import compiling
from tests.nvfuser.harness import COMPILER, ON_GPU
from tracemill.executors.nvfuser.library import HOW_TO_INSTALL, is_available


def pytest_report_header() -> list[str]:
    """Which nvFuser is tested, and on what."""
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    lines = [f"PyTorch {torch.__version__} ({cuda}), {_nvfuser()}"]
    return [*lines, f"nvFuser's definitions are {_how_run()}"] if is_available() else lines


def _nvfuser() -> str:
    packages = [
        f"{name} {version(name)}" for name in packages_distributions().get("nvfuser_direct", ())
    ]
    if not packages:
        return "no nvFuser: its tests are skipped"
    return " ".join(packages) + ("" if is_available() else " does not load: its tests are skipped")


def _how_run() -> str:
    if ON_GPU:
        return f"run by nvFuser on {torch.cuda.get_device_name()}"
    obstacle = compiling.obstacle()
    compiled = f"not compiled ({obstacle})" if obstacle else "compiled for a GPU that is not there"
    return f"run by PyTorch on the CPU, one operation after the other, and {compiled}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    mine = [item for item in items if item.path.is_relative_to(here)]
    if mine and not is_available():
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=HOW_TO_INSTALL))


@pytest.fixture(autouse=True, scope="session")
def compiling_process() -> Generator[None]:
    """Ends the process that compiles definitions, where one was started."""
    yield
    COMPILER.close()
