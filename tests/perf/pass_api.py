"""What the pass API costs: the first call of a Llama with and without twenty passes that do nothing.

    python -m tests.perf.pass_api [--layers 16] [--hidden 128] [--rounds 11] [--json]

Both kinds of doing nothing are measured: giving back the trace, and giving a copy of it. The oracle has its answers
already, so that the passes weigh as much as they ever do.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass

os.environ.setdefault("TRACEMILL_VERIFY", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import tracemill as tm
from tests.models import llama
from tests.perf.interleaved import as_json, in_turns, show

PASSES = 20


@dataclass(frozen=True)
class Nothing(tm.Pass):
    """Gives back what it is given."""

    stage = "dce"

    def apply(self, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
        return trace


@dataclass(frozen=True)
class Copies(tm.Pass):
    """Gives a trace of the same lines."""

    stage = "dce"

    def apply(self, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
        return trace.replace()


def many(kind: type[tm.Pass]) -> list[tm.Pass]:
    """Twenty passes of a kind, each under a name of its own."""
    return [
        make_dataclass(
            kind.__name__,
            [],
            bases=(kind,),
            namespace={"name": f"{kind.__name__}_{n}"},
            frozen=True,
        )()
        for n in range(PASSES)
    ]


def first_call(passes: Sequence[tm.Pass], layers: int, hidden: int) -> float:
    """Return the seconds of CPU time from the model to its first result: other processes disturb these least."""
    model, args, kwargs = llama(layers=layers, hidden=hidden)
    started = time.process_time()
    tm.jit(model, passes=passes)(*args, **kwargs)
    return time.process_time() - started


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    kinds = {
        "no pass": [],
        f"{PASSES} that give back the trace": many(Nothing),
        f"{PASSES} that copy the trace": many(Copies),
    }
    runs = {
        name: functools.partial(first_call, passes, options.layers, options.hidden)
        for name, passes in kinds.items()
    }
    for run in runs.values():
        run()
    title = f"first call, Llama, {options.layers} layers, hidden {options.hidden}"
    results = {title: in_turns(runs, rounds=options.rounds)}
    if options.json:
        print(as_json(results))
    else:
        show(title, results[title], against="no pass")


if __name__ == "__main__":
    main()
