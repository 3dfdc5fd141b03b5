"""What the prologue of a Llama costs, beside an eager forward and Dynamo's guards for the same model.

    python -m tests.perf.guards [--layers 16] [--hidden 128] [--batch 2] [--length 64] [--json]

The prologue is timed as it runs at each call, in front of a program that does nothing: PyTorch's settings, the fetching
of all parameters, the checks of their metadata and of the Python state. Dynamo's guards are timed on the entry that its
own call has, as it checks them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

# The passes verify each trace in tests; here that would only slow the start.
os.environ.setdefault("TRACEMILL_VERIFY", "0")

import torch

import tracemill as tm
from tests.models import llama
from tests.perf.interleaved import as_json, measure, show
from tracemill.compiler.codegen import code_of
from tracemill.compiler.joined import joined
from tracemill.compiler.specialise import printer_for


def variants(layers: int, hidden: int, batch: int, length: int) -> dict[str, Callable[[], object]]:
    """The ways to time, each run once already."""
    module, args, kwargs = llama(layers=layers, hidden=hidden, batch=batch, length=length)
    jitted = tm.jit(module)
    for _ in range(2):  # an entry is the latest from its first hit on
        jitted(*args, **kwargs)
    guards = dynamo_guards(module, args, kwargs)  # which writes to tables when it compiles
    entry = jitted.__tracemill__.latest
    for _ in range(2):
        jitted(*args, **kwargs)
    code = code_of(entry.checks, printer_for("default"))
    names = [parameter.name for parameter in jitted.__tracemill__.form.parameters]
    prologue = joined(code, lambda *inputs: None, None, names)
    found: dict[str, Callable[[], object]] = {
        "eager forward": lambda: module(*args, **kwargs),
        "prologue": lambda: prologue(*args, **kwargs),
        "prologue after a write": lambda: entry.prologue(*args, **kwargs),
    }
    if guards is None:
        print("Dynamo's guards left out: its entry was not found")
    else:
        found["Dynamo's guards"] = guards
    return found


def dynamo_guards(
    module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
) -> Callable[[], object] | None:
    """A check of all guards of `torch.compile` for this call; None where this PyTorch hides them."""
    from torch._dynamo.eval_frame import (  # noqa: TID251 -- what is compared with
        _debug_get_cache_entry_list,
    )

    compiled: Any = torch.compile(module, backend="eager")
    compiled(*args, **kwargs)
    frames: list[tuple[Any, dict[str, Any]]] = []

    def profiler(frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call" and _debug_get_cache_entry_list(frame.f_code):
            frames.append((frame.f_code, dict(frame.f_locals)))

    sys.setprofile(profiler)
    try:
        module(*args, **kwargs)
    finally:
        sys.setprofile(None)
    checks: list[Callable[[], object]] = []
    for code, values in frames:
        for entry in _debug_get_cache_entry_list(code):
            root: Any = entry.guard_manager.root
            if root.check(values):
                checks.append(lambda root=root, values=values: root.check(values))
    return (lambda: [check() for check in checks]) if checks else None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    with torch.no_grad():
        sizes = (options.layers, options.hidden, options.batch, options.length)
        times = measure(variants(*sizes), rounds=options.rounds)
    if options.json:
        print(as_json({"guards": times}))
        return
    show(f"a Llama of {options.layers} layers", times, against="eager forward")


if __name__ == "__main__":
    main()
