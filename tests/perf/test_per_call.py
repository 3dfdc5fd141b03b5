"""`make bench`: the ways to call a small function, timed by pytest-benchmark."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.perf.per_call import variants

pytest.importorskip("pytest_benchmark")


@pytest.mark.parametrize("way", ["eager", "generated program", "tracemill"])
def test_per_call(way: str, benchmark: Callable[..., object]) -> None:
    with torch.no_grad():
        benchmark(variants(compiled=False)[way])
