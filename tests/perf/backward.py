"""What training costs: one call with its backward beside eager and torch.compile, and the first call of a Llama.

    python -m tests.perf.backward [--json] [--first-call] [--layers 16]

The small program is `(x + y).sin() * 2` on three elements, summed, forward and backward. `--first-call` measures, each
in a process of its own, the first training call (loss and all gradients) of a Llama: tracemill against
`torch.compile(backend="aot_eager")`'s, which traces forward and backward as tracemill does and generates no code.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TRACEMILL_VERIFY", "0")

import torch

import tracemill as tm
from tests.perf.interleaved import as_json, in_turns, measure, show

WAYS = ("eager", "tracemill", "aot_eager")


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y).sin() * 2


def variants(*, compiled: bool = True) -> dict[str, Callable[[], object]]:
    """The ways to run the small program forward and backward, each run once already."""
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)

    def trained(called: Callable[..., torch.Tensor]) -> Callable[[], object]:
        def run() -> object:
            x.grad = y.grad = None
            called(x, y).sum().backward()
            return x.grad

        return run

    ways: dict[str, Callable[..., torch.Tensor]] = {"eager": program, "tracemill": tm.jit(program)}
    if compiled:
        ways["torch.compile"] = torch.compile(program)
    found = {name: trained(called) for name, called in ways.items()}
    for run in found.values():
        run()
    return found


def first_call(way: str, layers: int) -> float:
    """The seconds from a model to its first gradients, measured in this process."""
    from tests.models import llama

    torch.set_num_threads(1)

    def compiled(model: torch.nn.Module) -> Callable[..., Any]:
        if way == "eager":
            return model
        if way == "aot_eager":
            return torch.compile(model, backend="aot_eager")
        return tm.jit(model, sharp_edges="allow")

    def train(called: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        result = called(*args, **kwargs)
        (result if isinstance(result, torch.Tensor) else result[0]).square().sum().backward()

    model, args, kwargs = llama(layers=layers, hidden=128)
    train(model, *args, **kwargs)  # what eager makes on first use is in nobody's time
    train(compiled(torch.nn.Linear(1, 1)), torch.ones(1))  # nor are imports
    started = time.perf_counter()
    train(compiled(model), *args, **kwargs)
    return time.perf_counter() - started


def in_a_process(way: str, layers: int) -> float:
    """Measure in a fresh process."""
    command = [sys.executable, "-m", "tests.perf.backward", "--one", way, "--layers", str(layers)]
    environment = {"TRACEMILL_VERIFY": "0", "HF_HUB_OFFLINE": "1"} | os.environ
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--first-call", action="store_true")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(first_call(options.one, options.layers)))
        return
    torch.set_num_threads(1)
    if options.first_call:
        title = f"first training call, Llama, {options.layers} layers"
        runs = {way: functools.partial(in_a_process, way, options.layers) for way in WAYS}
        results, against = {title: in_turns(runs, rounds=options.rounds or 3)}, "aot_eager"
    else:
        title = "(x + y).sin() * 2 on three elements, summed, forward and backward"
        results, against = (
            {title: measure(variants(), rounds=options.rounds or 51)},
            "torch.compile",
        )
    if options.json:
        print(as_json(results))
    else:
        show(title, results[title], against=against)


if __name__ == "__main__":
    main()
