"""What one call costs beside what it computes, with and without gradients.

    python -m tests.perf.per_call [PROGRAM ...] [--grad] [--rounds 101] [--json]

Programs: a function of two tensors of three elements, one of twenty inputs, one of a deep structure, a module of 300
parameters, and a small network; and, of a function with 128 specialisations, the oldest and the newest beside the only one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import tracemill as tm
from tests.models import tensors_in
from tests.perf.interleaved import as_json, measure, show
from tests.perf.peers import AGAINST, OURS, ready

Built = tuple[Callable[..., Any], tuple[Any, ...]]

SPECIALISATIONS = 128


def three_elements() -> Built:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y).sin() * 2

    return program, (torch.randn(3), torch.randn(3))


def twenty_inputs() -> Built:
    def program(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.stack(tensors).sin()

    return program, tuple(torch.randn(3) for _ in range(20))


def deep_structure() -> Built:
    def program(batch: dict[str, Any]) -> torch.Tensor:
        inner = batch["more"]["inner"]
        return batch["x"] + inner[0][1]["y"] * inner[1][0]

    x, y, z = torch.randn(3), torch.randn(3), torch.randn(3)
    return program, ({"x": x, "more": {"inner": [(1, {"y": y}), (z, None)], "k": "v"}},)


class Many(nn.Module):
    """A module of 300 parameters, all in one operation."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(4)) for _ in range(300))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, *self.weights]).sin()


def many_parameters() -> Built:
    return Many(), (torch.randn(4),)


def small_network() -> Built:
    layers = nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    return nn.Sequential(*layers), (torch.randn(8, 16),)


PROGRAMS: dict[str, Callable[[], Built]] = {
    build.__name__: build
    for build in (three_elements, twenty_inputs, deep_structure, many_parameters, small_network)
}


def ways(
    program: str, *, grad: bool, among: Sequence[str] | None = None
) -> dict[str, Callable[[], object]]:
    """The ways to call a program, or to train it by one step; "generated program": its text, called directly."""
    torch.manual_seed(0)
    fn, args = PROGRAMS[program]()
    inputs = tensors_in(args)
    leaves = [tensor.requires_grad_(grad) for tensor in inputs]
    if isinstance(fn, nn.Module):
        leaves += [parameter.requires_grad_(grad) for parameter in fn.parameters()]

    def train(called: Callable[..., Any]) -> None:
        for leaf in leaves:
            leaf.grad = None
        called(*args).sum().backward()

    if grad:
        return ready(fn, train, among)
    found = ready(fn, lambda called: called(*args), among)
    if program == "three_elements":
        text: dict[str, Any] = {}
        jitted = tm.jit(fn)
        jitted(*args)
        # The minimal text: others add a decorator that turns gradients off, which a call does without.
        exec(tm.last_traces(jitted)[-1].text("minimal"), text)
        generated = text["computation"]
        found["generated program"] = lambda: generated(*args)
    return found


def prologue() -> Callable[[], object]:
    """The checks alone of the module of 300 parameters."""
    fn, args = many_parameters()
    jitted = tm.jit(fn)
    for _ in range(2):
        jitted(*args)
    checks = jitted.__tracemill__.latest.checks.callable()
    return lambda: checks(*args)


def specialisations() -> dict[str, Callable[[], object]]:
    """Calls of a function that has one specialisation, and of one that has 128."""

    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        return (x + n).sin() * 2

    x = torch.randn(3)
    one, many = tm.jit(program), tm.jit(program)
    for _ in range(2):
        one(x, 0)
        for n in range(SPECIALISATIONS):
            many(x, n)
    return {
        "the only one": lambda: one(x, 0),
        "oldest of 128": lambda: many(x, 0),
        "newest of 128": lambda: many(x, SPECIALISATIONS - 1),
        "two of 128 in turns": lambda: (many(x, 0), many(x, 1)),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="*", default=[], metavar="PROGRAM")
    parser.add_argument("--grad", action="store_true")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    results = {
        program: measure(ways(program, grad=options.grad), rounds=options.rounds)
        for program in options.programs or PROGRAMS
    }
    if options.json:
        print(as_json(results))
        return
    for program, times in results.items():
        show(program + (", forward and backward" if options.grad else ""), times, against=AGAINST)
        if "generated program" in times:
            beyond = times[OURS].median - times["generated program"].median
            print(f"  tracemill beyond the generated program: {beyond * 1e6:.2f} us")


if __name__ == "__main__":
    main()
