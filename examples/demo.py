"""Compile a small Llama, read the program at some of its stages, and see what it costs.

Run by `make demo`. Nothing is downloaded: the weights are random. Where `rich` is installed the
programs are coloured.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import tracemill as tm

try:
    from rich.console import Console
    from rich.syntax import Syntax
    from rich.table import Table
except ImportError:
    CONSOLE = None
else:
    CONSOLE = Console(highlight=False)

LAYERS = 4


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


def heading(text: str) -> None:
    if CONSOLE:
        CONSOLE.print()
        CONSOLE.rule(f"[bold]{text}", align="left")
    else:
        print(f"\n--- {text} " + "-" * max(70 - len(text), 0))


def show_program(text: str, lines: int) -> None:
    """Print the head of a program."""
    every = text.rstrip().splitlines()
    shown = "\n".join(every[:lines])
    if CONSOLE:
        CONSOLE.print(Syntax(shown, "python", background_color="default", word_wrap=True))
    else:
        print(shown)
    if len(every) > lines:
        print(f"  ... {len(every) - lines} more lines")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    if CONSOLE:
        table = Table(box=None, pad_edge=False)
        for n, column in enumerate(columns):
            table.add_column(column, justify="right" if n else "left")
        for row in rows:
            table.add_row(*row)
        CONSOLE.print(table)
        return
    cells = [list(columns), *map(list, rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(columns))]
    for row in cells:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([row[0].ljust(len(first)), *others]))


def readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value * 1e3:.2f} ms"
    return "" if value is None else str(value)


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
    show_program(tm.last_traces(fast)[-1].text("minimal"), 20)

    heading(f"A Llama of {LAYERS} layers")
    model = llama()
    tokens = torch.randint(0, 1000, (1, 16))
    compiled = tm.jit(model)
    result = compiled(tokens)
    assert torch.equal(result.logits, model(tokens).logits)
    print(f"The logits {tuple(result.logits.shape)} are those of eager, bit for bit.")

    traces = tm.last_traces(compiled)
    for title, trace, lines in [
        ("The prologue: what is taken from the model and checked", None, 24),
        ("The computation as it was acquired", traces[0], 30),
        ("The computation that runs", traces[-1], 44),
    ]:
        heading(title)
        chosen = trace or tm.last_prologue_traces(compiled)[-1]
        show_program(chosen.text("default" if trace is traces[-1] else "minimal"), lines)

    heading("What each pass did")
    report = tm.last_report(compiled)
    columns = list(report[0])
    show_table(columns, ([readable(row[column]) for column in columns] for row in report))

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
