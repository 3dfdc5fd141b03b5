"""What a first call costs: models and long functions, for inference and training, beside Dynamo and AOTAutograd.

    python -m tests.perf.first_call [PROGRAM ...] [--train] [--hidden 128] [--rounds 3] [--json]

Programs are "llama 16", "gpt2 4", "operations 1000" and the like. Every measurement runs in a process of its own, so that
none finds what another has remembered. tracemill is compared with `torch.compile(backend="eager")`, which is Dynamo alone,
and for training with "aot_eager", which traces the backward too; neither generates code. "again" is a second program of the
same shape, in a process where PyTorch has been asked before.
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

import torch

from tests.models import gpt2, llama
from tests.perf.interleaved import Samples, as_json, show, times_of, told
from tests.perf.peers import OURS, peers

WAYS = ("eager", OURS, f"{OURS}, again")
PROGRAMS = (
    "llama 4",
    "llama 16",
    "llama 64",
    "gpt2 4",
    *(f"operations {count}" for count in (10, 100, 1_000, 10_000)),
)


def peer(*, train: bool) -> str:
    """The way that traces as much as tracemill does, and generates no code."""
    return "torch.compile aot_eager" if train else "torch.compile eager"


def build(program: str, hidden: int) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A program and a call's arguments."""
    kind, size = program.split()
    if kind == "operations":
        return (
            functools.partial(_operations, int(size)),
            (torch.randn(3, requires_grad=torch.is_grad_enabled()),),
            {},
        )
    models: dict[str, Callable[..., Any]] = {"llama": llama, "gpt2": gpt2}
    return models[kind](layers=int(size), hidden=hidden)


def _operations(count: int, x: Any) -> Any:
    for _ in range(count // 4):
        x = ((x + 1).sin() * 2).tanh()
    return x


def first_call(way: str, program: str, hidden: int, *, train: bool) -> float:
    """The seconds from a program to its first result, or its first gradients, measured in this process."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(train)
    compiled = peers()[way.removesuffix(", again")]

    def run(called: Callable[..., Any], args: Any, kwargs: Any) -> None:
        result = called(*args, **kwargs)
        if train:
            (result if isinstance(result, torch.Tensor) else result[0]).square().sum().backward()

    def timed() -> float:
        fn, args, kwargs = build(program, hidden)
        run(fn, args, kwargs)  # what eager makes on first use is in nobody's time
        gc.collect()  # nor what an earlier program left behind
        started = time.perf_counter()
        run(compiled(fn), args, kwargs)
        return time.perf_counter() - started

    # Nobody pays for imports, or for what is prepared once in a process.
    run(compiled(torch.nn.Linear(1, 1)), (torch.ones(1),), {})
    if way.endswith("again"):
        timed()
    return timed()


def in_a_process(way: str, program: str, hidden: int, *, train: bool) -> float:
    """Measures in a fresh process."""
    command = [sys.executable, "-m", "tests.perf.first_call", program, "--one", way]
    command += ["--hidden", str(hidden), *(["--train"] if train else [])]
    environment = {"TRACEMILL_VERIFY": "0", "HF_HUB_OFFLINE": "1"} | os.environ
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def samples(program: str, *, train: bool, hidden: int = 128, rounds: int = 3) -> Samples:
    """Seconds of first calls, each in a process of its own."""
    ways = (*WAYS, peer(train=train))
    return told(
        {way: functools.partial(in_a_process, way, program, hidden, train=train) for way in ways},
        rounds=rounds,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="*", default=["llama 16", "llama 32", "llama 64"])
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        seconds = first_call(options.one, options.programs[0], options.hidden, train=options.train)
        print(json.dumps(seconds))
        return
    results = {}
    for program in options.programs:
        title = f"first call, {program}, {'training' if options.train else 'inference'}"
        found = samples(program, train=options.train, hidden=options.hidden, rounds=options.rounds)
        results[title] = times_of(found)
        if not options.json:
            show(title, results[title], against=peer(train=options.train))
    if options.json:
        print(as_json(results))


if __name__ == "__main__":
    main()
