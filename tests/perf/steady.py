"""Throughput and memory of models that are compiled already: a forward, and a training step.

    python -m tests.perf.steady [MODEL ...] [--train] [--hidden 256] [--rounds 15] [--json]

Models: gpt2, llama, bert and vit, two layers each. The memory is the most that PyTorch's CPU allocator held during one
call beyond what it held before, as PyTorch's profiler counts it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tests import models
from tests.perf.interleaved import measure, show
from tests.perf.peers import AGAINST, ready

MODELS: dict[str, Callable[..., models.Built]] = {
    "gpt2": models.gpt2,
    "llama": models.llama,
    "bert": models.bert,
    "vit": models.vit,
}


def ways(
    model: str, *, train: bool, hidden: int = 256, among: Sequence[str] | None = None
) -> dict[str, Callable[[], object]]:
    """The ways to run a model, or to train it by one step."""
    module, args, kwargs = MODELS[model](hidden=hidden)
    if not train:

        def infer(called: Callable[..., Any]) -> object:
            with torch.no_grad():
                return called(*args, **kwargs)

        return ready(module, infer, among)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6)

    def step(called: Callable[..., Any]) -> object:
        optimizer.zero_grad()
        result = called(*args, **kwargs)
        (result if isinstance(result, torch.Tensor) else result[0]).square().mean().backward()
        return optimizer.step()

    return ready(module, step, among)


def peak_memory(call: Callable[[], object]) -> int:
    """The most bytes that were allocated at once during a call, beyond those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    held = most = 0
    profiler: Any = seen.profiler
    for event in profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=[], metavar="MODEL")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for model in options.models or MODELS:
        found = ways(model, train=options.train, hidden=options.hidden)
        times = measure(found, rounds=options.rounds, seconds=0.05)
        memory = {name: peak_memory(call) for name, call in found.items()}
        results[model] = {
            name: {**asdict(time), "peak_bytes": memory[name]} for name, time in times.items()
        }
        if not options.json:
            show(
                f"{model}, {'training step' if options.train else 'forward'}",
                times,
                against=AGAINST,
            )
            print("  peak MB:", {name: round(size / 1e6, 2) for name, size in memory.items()})
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
