"""Stand-ins outside of the thread that traces, and what PyTorch keeps on them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import tracemill as tm
from tracemill.compiler.errors import UnsupportedError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_computes_with_the_programs_tensors_is_refused() -> None:
    def program(x: torch.Tensor) -> Any:
        found: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: found.append(x * 2))
        thread.start()
        thread.join()
        return found[0]

    with pytest.raises(
        UnsupportedError, match=r"is called on x by a thread that the program starts"
    ):
        tm.jit(program, sharp_edges="allow")(torch.ones(2))


def doubled(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 2:
        return x * 2
    return x


@pytest.mark.filterwarnings("ignore:.*is compiled again", "ignore:.*is deprecated")
def test_torchscript_functions_run_under_symbolic_values() -> None:
    scripted = torch.jit.script(doubled)
    called = tm.jit(lambda x: scripted(x) + 1, cache="symbolic values")
    for size in (3, 3, 2, 5):
        x = torch.arange(float(size))
        torch.testing.assert_close(called(x), scripted(x) + 1)
