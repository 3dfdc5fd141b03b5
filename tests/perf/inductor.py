"""What Inductor's regions cost beside torch.compile: per call, in training, and for the first call.

    python -m tests.perf.inductor [--only NAME ...] [--seconds 10] [--json]

Everything but the first calls is measured in turns in one process; each first call runs in a process of its own, with an
empty cache of Inductor's ("cold") or one that a run before it has filled ("warm"). Imports are in nobody's time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TRACEMILL_VERIFY", "0")

import torch

import tracemill as tm
from tests.perf.interleaved import Times, as_json, measure, show

WAYS = ("tracemill", "torch.compile")
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def three_elements() -> Case:
    return lambda x, y: (x + y).sin() * 2, (torch.randn(3), torch.randn(3))


def three_hundred() -> Case:
    def product(x: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
        for factor in factors:
            x = x * factor
        return x

    return product, (torch.randn(3), [torch.randn(3) for _ in range(300)])


def model(kind: str, batch: int, length: int, *, train: bool = False) -> Case:
    """A model of four layers, hidden size 256; in training, a step is the loss and all gradients."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 1000, "use_cache": False}
    if kind == "llama":
        sizes |= {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
        made: Any = LlamaForCausalLM(
            LlamaConfig(**sizes, num_key_value_heads=4, intermediate_size=688)
        )
    else:
        sizes |= {"n_embd": 256, "n_layer": 4, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
        made = GPT2LMHeadModel(GPT2Config(**sizes, attn_pdrop=0.0))
    ids = torch.randint(0, 1000, (batch, length))
    return made.train(train), (ids, train)


def runner(called: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], object]:
    """One run of a case: a call, or for a model a forward or a training step."""
    if not isinstance(called, torch.nn.Module):
        return lambda: called(*args)
    ids, train = args

    def infer() -> object:
        with torch.no_grad():
            return called(input_ids=ids)

    def step() -> object:
        called.zero_grad()
        called(input_ids=ids, labels=ids).loss.backward()

    return step if train else infer


CASES: dict[str, Callable[[], Case]] = {
    "three elements": three_elements,
    "300 parameters": three_hundred,
    "llama 1x8": lambda: model("llama", 1, 8),
    "llama 1x8 training": lambda: model("llama", 1, 8, train=True),
    "gpt2 4x128": lambda: model("gpt2", 4, 128),
    "gpt2 4x128 training": lambda: model("gpt2", 4, 128, train=True),
    "llama 4x128": lambda: model("llama", 4, 128),
    "llama 4x128 training": lambda: model("llama", 4, 128, train=True),
}


def compiled(way: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(fn) if way == "torch.compile" else tm.jit(fn, executors=["inductor"])


def steady(name: str, seconds: float) -> dict[str, Times]:
    """The times of a case by each way and by eager, in turns."""
    torch.compiler.reset()
    fn, args = CASES[name]()
    runs = {"eager": runner(fn, args)}
    runs |= {way: runner(compiled(way, fn), args) for way in WAYS}
    for run in runs.values():
        run()
    started = time.perf_counter()
    runs["eager"]()
    rounds = max(7, min(101, int(seconds / (3 * max(time.perf_counter() - started, 0.01)))))
    return measure(runs, rounds=rounds)


def first_call(way: str, name: str) -> float:
    """The seconds of a case's first call, in this process."""
    from tracemill.compiler import torch_internals

    torch_internals.inductor()
    fn, args = CASES[name]()
    runner(fn, args)()
    run = runner(compiled(way, fn), args)
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def in_a_process(way: str, name: str, cache: str) -> float:
    command = [sys.executable, "-m", "tests.perf.inductor", "--one", way, name]
    environment = {"HF_HUB_OFFLINE": "1"} | os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def first_calls(name: str) -> dict[str, dict[str, Times]]:
    """The first calls of a case by each way, cold and then warm."""
    found: dict[str, dict[str, Times]] = {"cold": {}, "warm": {}}
    for way in WAYS:
        with tempfile.TemporaryDirectory() as cache:
            for state in found:
                found[state][way] = Times.of([in_a_process(way, name, cache)])
    return {f"first call of {name}, {state}": times for state, times in found.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[*CASES, "first calls"])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(first_call(*options.one)))
        return
    chosen = options.only or [*CASES, "first calls"]
    results = {name: steady(name, options.seconds) for name in chosen if name in CASES}
    if "first calls" in chosen:
        results |= first_calls("three elements") | first_calls("llama 1x8")
    if options.json:
        print(as_json(results))
        return
    for title, times in results.items():
        show(title, times, against="torch.compile")


if __name__ == "__main__":
    main()
