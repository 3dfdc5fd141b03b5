"""What one call of a small function costs beside what it computes.

    python -m tests.perf.per_call [--json]

`(x + y).sin() * 2` on three elements: in eager, as the generated program called directly, through
tracemill and, where a C++ compiler is at hand, through torch.compile.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

# The passes verify each trace in tests; here that would only slow the start.
os.environ.setdefault("TRACEMILL_VERIFY", "0")

import torch

import tracemill as tm
from tests.perf.interleaved import as_json, measure, show


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y).sin() * 2


def variants(*, compiled: bool = True) -> dict[str, Callable[[], object]]:
    """The ways to call the program, each called once already."""
    x, y = torch.randn(3), torch.randn(3)
    jitted = tm.jit(program)
    jitted(x, y)
    # The minimal text: other printers add a decorator that turns gradients off, which costs a
    # microsecond and which a jitted function's call does without.
    namespace: dict[str, Any] = {}
    exec(tm.last_traces(jitted)[-1].text("minimal"), namespace)
    generated = namespace["computation"]
    found: dict[str, Callable[[], object]] = {
        "eager": lambda: program(x, y),
        "generated program": lambda: generated(x, y),
        "tracemill": lambda: jitted(x, y),
    }
    if compiled:
        with_torch = torch.compile(program)
        try:
            with_torch(x, y)
        except Exception as error:
            print(f"torch.compile left out: {type(error).__name__}")
        else:
            found["torch.compile"] = lambda: with_torch(x, y)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=101)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    results = {}
    for title, grad in (("no_grad", False), ("grad mode on, no input requires grad", True)):
        with torch.set_grad_enabled(grad):
            results[title] = measure(variants(), rounds=options.rounds)
    if options.json:
        print(as_json(results))
        return
    for title, times in results.items():
        show(f"(x + y).sin() * 2 on three elements, {title}", times, against="eager")
        beyond = times["tracemill"].median - times["generated program"].median
        print(f"  tracemill beyond the generated program: {beyond * 1e6:.2f} us")


if __name__ == "__main__":
    main()
