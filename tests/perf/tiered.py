"""What a program costs while it is compiled in the background: calls of a Llama beside eager's, in turns.

    python -m tests.perf.tiered [--seconds 120]

A core must be free for the worker. "worst" is the longest call while the compiled code is loaded.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence

os.environ.setdefault("TRACEMILL_VERIFY", "0")

import torch

import tracemill as tm
from tests.perf.inductor import model, runner


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="how long to wait at most")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    fn, args = model("llama", 4, 128)
    eager, tiered = runner(fn, args), runner(tm.jit(fn, executors="tiered"), args)
    eager()
    began = time.perf_counter()
    tiered()
    print(f"first call: {time.perf_counter() - began:.2f} s")
    executor = tm.executors.get("tiered")
    calls: list[tuple[float, float]] = []
    theirs: list[float] = []
    ready: float | None = None
    while time.perf_counter() - began < (options.seconds if ready is None else ready + 5):
        for run, times in ((tiered, None), (eager, theirs)):
            started = time.perf_counter()
            run()
            taken = time.perf_counter() - started
            if times is None:
                calls.append((started - began, taken))
            else:
                times.append(taken)
        if ready is None and executor.wait(0):
            ready = time.perf_counter() - began
    if ready is None:
        raise SystemExit("nothing was ready in time; is a C++ compiler installed?")
    typical = statistics.median(theirs)
    before = [taken / typical for at, taken in calls if at < ready]
    slow = [(at, taken) for at, taken in calls if at < ready + 1 and taken > 1.5 * typical]
    print(f"ready after {ready:.1f} s; eager takes {typical * 1e3:.1f} ms")
    print(
        f"relative to eager: median while compiling {statistics.median(before):.2f}, worst", end=" "
    )
    print(f"{max(before):.2f}; {len(slow)} calls above 1.5, {sum(t for _, t in slow):.2f} s in all")
    after = [taken / typical for at, taken in calls if at > ready + 1]
    print(f"after the change-over: {statistics.median(after):.2f}")


if __name__ == "__main__":
    main()
