"""What the traces kept for inspection cost in memory.

    python -m tests.perf.memory [--layers 64] [--hidden 128]

The difference between a jitted Llama that keeps the traces of all passes and the same with the last alone, as Python's
own allocator counts it.
"""

from __future__ import annotations

import argparse
import gc
import tracemalloc
from collections.abc import Sequence

import torch

import tracemill as tm
from tests.models import llama


def size_of_traces(layers: int, hidden: int) -> int:
    """The bytes that the traces of all passes but the last cost, without gradients."""
    model, args, kwargs = llama(layers=layers, hidden=hidden)
    with torch.no_grad():
        tm.jit(model)(*args, **kwargs)  # what is remembered for all is in nobody's account
        tracemalloc.start()
        try:
            fast = tm.jit(model)
            fast(*args, **kwargs)
            with_all = _held()
            fast.__tracemill__.history.keep_last()
            return with_all - _held()
        finally:
            tracemalloc.stop()


def _held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    options = parser.parse_args(argv)
    size = size_of_traces(options.layers, options.hidden)
    print(f"traces of a Llama of {options.layers} layers: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
