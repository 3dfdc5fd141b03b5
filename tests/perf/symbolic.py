"""What symbolic values cost beside constant ones: the first call, and each call after it.

    python -m tests.perf.symbolic [--json]

The first call of `(x + y).sin() * 2` and of a Llama, with and without gradients, in a process where PyTorch has been asked
before (warm), under constant and under symbolic values, in CPU time; then one call of the small function.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence

# The passes verify each trace in tests; here that would only slow the start.
os.environ.setdefault("TRACEMILL_VERIFY", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import tracemill as tm
from tests.models import llama
from tests.perf.interleaved import Times, as_json, in_turns, measure, show

MODES = ("constant values", "symbolic values")


def small(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y).sin() * 2


def first_small(mode: str, *, grad: bool) -> float:
    """CPU seconds of the first call of the small function, and of its backward."""
    x, y = torch.randn(3, requires_grad=grad), torch.randn(3)
    jitted = tm.jit(small, cache=mode)
    begun = time.thread_time()
    out = jitted(x, y)
    if grad:
        out.sum().backward()
    return time.thread_time() - begun


def first_llama(mode: str, *, grad: bool, layers: int = 4) -> float:
    """CPU seconds of a Llama's first call, and of its backward."""
    model, args, kwargs = llama(layers=layers)
    jitted = tm.jit(model, cache=mode)
    with torch.set_grad_enabled(grad):
        model(*args, **kwargs)  # what eager makes on first use is in nobody's time
        begun = time.thread_time()
        out = jitted(*args, **kwargs)
        if grad:
            out.logits.sum().backward()
        return time.thread_time() - begun


def first_calls(rounds: int) -> dict[str, dict[str, Times]]:
    """The times of first calls, constant and symbolic in turns."""
    found: dict[str, dict[str, Times]] = {}
    programs: dict[str, Callable[..., float]] = {
        "three elements": first_small,
        "Llama": first_llama,
    }
    for name, run in programs.items():
        for grad in (False, True):
            title = f"first call, {name}, {'with' if grad else 'without'} gradients"
            runs = {mode: _run(run, mode, grad=grad) for mode in MODES}
            for once in runs.values():
                once()
            found[title] = in_turns(runs, rounds=rounds)
    return found


def _run(run: Callable[..., float], mode: str, *, grad: bool) -> Callable[[], float]:
    return lambda: run(mode, grad=grad)


def per_call(rounds: int) -> dict[str, Times]:
    """The times of later calls of the small function."""
    x, y = torch.randn(3), torch.randn(3)
    variants: dict[str, Callable[[], object]] = {}
    for mode in MODES:
        jitted = tm.jit(small, cache=mode)
        jitted(x, y)
        variants[mode] = _call(jitted, x, y)
    return measure(variants, rounds=rounds)


def _call(jitted: Callable[..., object], *args: torch.Tensor) -> Callable[[], object]:
    return lambda: jitted(*args)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    results = first_calls(options.rounds)
    results["per call, three elements"] = per_call(options.rounds * 5)
    if options.json:
        print(as_json(results))
        return
    for title, times in results.items():
        show(title, times, against=MODES[0])


if __name__ == "__main__":
    main()
