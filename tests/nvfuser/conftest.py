"""All tests of this folder need nvFuser, and are skipped where it is not installed."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tracemill.executors.nvfuser.library import HOW_TO_INSTALL, is_available


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
    from tests.nvfuser.harness import COMPILER

    COMPILER.close()
