"""Compile a small Llama, read the program at some of its stages, and see what it costs.

Run by `make demo`. Nothing is downloaded: the weights are random. Where `rich` is installed the
programs are coloured.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import tracemill as tm

RICH = importlib.util.find_spec("rich") is not None
LAYERS = 4
STATEMENT = re.compile(r"  [^ #)]")


def three_elements(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y).sin() * 2


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
    ).eval()


def llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return LlamaForCausalLM(config).eval()


# Printing.


@functools.cache
def console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def heading(text: str) -> None:
    if RICH:
        console().print()
        console().rule(f"[bold]{text}", align="left")
    else:
        print(f"\n--- {text} " + "-" * max(70 - len(text), 0))


def show_program(text: str, lines: int = 20) -> None:
    """Print a program's head: where a long list of parameters begins, and its first statements."""
    every = text.rstrip().splitlines()
    start = next(n for n, line in enumerate(every) if line.startswith("def ")) + 1
    body = next(n for n, line in enumerate(every) if n >= start and STATEMENT.match(line))
    parts = [*every[:start], *elided(every[start:body], 4), *elided(every[body:], lines)]
    shown = "\n".join(parts)
    if RICH:
        from rich.syntax import Syntax

        coloured = Syntax("", "python", background_color="default").highlight(shown)
        console().print(coloured, soft_wrap=True, end="")
    else:
        print(shown)


def elided(lines: Sequence[str], kept: int) -> list[str]:
    left_out = len(lines) - kept
    return [*lines[:kept], f"  # ... {left_out} more lines"] if left_out > 1 else list(lines)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    if RICH:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for n, column in enumerate(columns):
            table.add_column(column, justify="right" if n else "left")
        for row in rows:
            table.add_row(*row)
        console().print(table)
        return
    cells = [list(columns), *map(list, rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(columns))]
    for row in cells:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([row[0].ljust(len(first)), *others]))


# Times.


def seconds(call: Callable[[], object], calls: int = 1) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def in_turns(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Return the medians of both, run in turns: what disturbs the machine disturbs both."""
    calls = max(int(0.005 / seconds(first, 3)), 1)
    turns = [(seconds(first, calls), seconds(second, calls)) for _ in range(41)]
    one, other = zip(*turns, strict=True)
    return statistics.median(one), statistics.median(other)


def times(name: str, program: Callable[..., Any], *args: torch.Tensor) -> list[str]:
    """One row: the first call, then a later one in eager and compiled."""
    program(*args)  # what PyTorch itself prepares on a first call is in nobody's time
    compiled = tm.jit(program)
    first = seconds(lambda: compiled(*args))
    eager, later = in_turns(lambda: program(*args), lambda: compiled(*args))
    return [
        name,
        f"{first * 1e3:.1f} ms",
        f"{eager * 1e6:.1f} us",
        f"{later * 1e6:.1f} us",
        f"{later / eager:.2f}",
    ]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

    heading("A function, and the program that runs for it")
    x, y = torch.randn(3), torch.randn(3)
    fast = tm.jit(three_elements)
    assert torch.equal(fast(x, y), three_elements(x, y))
    show_program(tm.last_traces(fast)[-1].text("minimal"))

    heading(f"A Llama of {LAYERS} layers")
    model = llama()
    tokens = torch.randint(0, 1000, (1, 16))
    compiled = tm.jit(model)
    result = compiled(tokens)
    assert torch.equal(result.logits, model(tokens).logits)
    print(f"The logits {tuple(result.logits.shape)} are those of eager, bit for bit.")

    traces = tm.last_traces(compiled)
    heading("The prologue: what is taken from the model and checked")
    show_program(tm.last_prologue_traces(compiled)[-1].text("minimal"))
    heading("The computation as it was acquired")
    show_program(traces[0].text("minimal"))
    heading("The computation that runs, as far as the first layer's attention")
    show_program(traces[-1].text("default"), 60)

    heading("What each pass did")
    report = tm.last_report(compiled)
    columns, *rows = report.table
    show_table(columns, rows)

    heading("Times, one thread")
    show_table(
        ["", "first call", "eager", "tracemill", "ratio"],
        [
            times("(x + y).sin() * 2, 3 elements", three_elements, x, y),
            times("MLP 64 -> 256 -> 64, 8 rows", mlp(), torch.randn(8, 64)),
            times(f"Llama, {LAYERS} layers, 16 tokens", llama(), tokens),
        ],
    )


if __name__ == "__main__":
    main()
