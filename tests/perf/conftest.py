"""What a saved run says of where it was measured, besides what pytest-benchmark says by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.hookimpl(optionalhook=True)  # where pytest-benchmark is not installed there is no such hook
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    machine_info["torch"] = torch.__version__
