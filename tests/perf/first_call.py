"""What the first call of a Llama costs: tracemill against Dynamo alone.

    python -m tests.perf.first_call [--layers 16 32 64] [--hidden 128] [--rounds 3] [--json]

Every measurement runs in a process of its own, so that none finds what another has remembered:
`torch.compile(backend="eager")` (Dynamo's tracing and guards, no code generation), tracemill, and
eager for comparison. "again" is a second module of the same shape, jitted in the same process.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.perf.interleaved import Times, as_json, in_turns, show

WAYS = ("eager", "tracemill", "tracemill again", "Dynamo")


def first_call(way: str, layers: int, hidden: int) -> float:
    """Return the seconds from the model to its first result, measured in this process."""
    import torch

    import tracemill as tm
    from tests.models import llama

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

    def compiled(model: torch.nn.Module) -> Callable[..., Any]:
        if way == "eager":
            return model
        if way == "Dynamo":
            return torch.compile(model, backend="eager")
        return tm.jit(model)

    def timed() -> float:
        model, args, kwargs = llama(layers=layers, hidden=hidden)
        model(*args, **kwargs)  # what eager makes on first use is in nobody's time
        gc.collect()  # nor what an earlier model left behind
        started = time.perf_counter()
        compiled(model)(*args, **kwargs)
        return time.perf_counter() - started

    # Neither pays for its imports, or for what it prepares once in a process.
    compiled(torch.nn.Linear(1, 1))(torch.ones(1))
    if way == "tracemill again":
        timed()
    return timed()


def in_a_process(way: str, layers: int, hidden: int) -> float:
    """Measure in a fresh process."""
    command = [sys.executable, "-m", "tests.perf.first_call", "--one", way]
    command += ["--layers", str(layers), "--hidden", str(hidden)]
    environment = {"TRACEMILL_VERIFY": "0", "HF_HUB_OFFLINE": "1"} | os.environ
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(first_call(options.one, options.layers[0], options.hidden)))
        return
    results: dict[str, dict[str, Times]] = {}
    for layers in options.layers:
        runs = {way: functools.partial(in_a_process, way, layers, options.hidden) for way in WAYS}
        title = f"first call, Llama, {layers} layers, hidden {options.hidden}"
        results[title] = in_turns(runs, rounds=options.rounds)
        if not options.json:
            show(title, results[title], against="Dynamo")
    if options.json:
        print(as_json(results))


if __name__ == "__main__":
    main()
