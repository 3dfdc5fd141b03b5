"""What a training step keeps for its backward: eager, tracemill, and AOTAutograd's min-cut partitioner.

    python -m tests.perf.saved_bytes [--hidden 128] [--length 64] [--json]

Bytes of memory between forward and backward, each storage once, without the inputs' and parameters'
own, for one block of GPT-2 (with dropout) and one of Llama.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

os.environ.setdefault("TRACEMILL_VERIFY", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

import tracemill as tm


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    return {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors
    }


def _bytes(kept: Iterable[torch.Tensor], free: Iterable[torch.Tensor]) -> int:
    own = _storages(free)
    return sum(size for key, size in _storages(kept).items() if key not in own)


def _free(model: nn.Module, args: Sequence[Any]) -> list[torch.Tensor]:
    given = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return [*model.parameters(), *model.buffers(), *given]


def saved_by_eager(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """The bytes that autograd keeps for eager."""
    return _hooked(model, args, kwargs, _free(model, args))


def _hooked(
    called: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], free: Any
) -> int:
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = called(*args, **kwargs)
    size = _bytes(kept, free)
    del result
    return size


def saved_by_tracemill(
    model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[int, int]:
    """The bytes that autograd keeps for tracemill, without and with rematerialisation."""
    free = _free(model, args)
    found: list[int] = []
    for disabled in (("rematerialisation",), ()):
        jitted = tm.jit(model, disable_passes=disabled, sharp_edges="allow")
        jitted(*args, **kwargs)
        found.append(_hooked(jitted, args, kwargs, free))
    return found[0], found[1]


def saved_by_aot(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """The bytes that autograd keeps for AOTAutograd's min-cut partitioner."""
    # What is compared with has no public name.
    from torch._dynamo.backends.common import aot_autograd  # noqa: TID251
    from torch._functorch.partitioners import (  # noqa: TID251
        min_cut_rematerialization_partition,
    )

    def as_it_is(graph: Any, inputs: Any) -> Any:
        return graph

    backend = aot_autograd(fw_compiler=as_it_is, partition_fn=min_cut_rematerialization_partition)
    compiled = torch.compile(model, backend=backend)
    compiled(*args, **kwargs)
    return _hooked(compiled, args, kwargs, _free(model, args))


class _First(nn.Module):
    """A module that returns the first of another one's outputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = self.inner(*args, **kwargs)
        return result if isinstance(result, torch.Tensor) else result[0]


def blocks(
    hidden: int, length: int
) -> dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
    """One block of each model, with hidden states that require grad as they do inside of a model."""
    from tests.models import gpt2, llama

    def states() -> torch.Tensor:
        return torch.randn(2, length, hidden, requires_grad=True)

    gpt2_model: Any = gpt2(layers=1, hidden=hidden)[0]
    llama_model: Any = llama(layers=1, hidden=hidden)[0]
    positions = torch.arange(length)[None]
    with torch.no_grad():
        rotary = llama_model.model.rotary_emb(states(), positions)
    return {
        "GPT-2 block": (_First(gpt2_model.transformer.h[0]).train(), (states(),), {}),
        "Llama block": (
            _First(llama_model.model.layers[0]).train(),
            (states(),),
            {"position_embeddings": rotary},
        ),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    results: dict[str, dict[str, int]] = {}
    for name, (model, args, kwargs) in blocks(options.hidden, options.length).items():
        without, with_ = saved_by_tracemill(model, args, kwargs)
        results[name] = {
            "eager": saved_by_eager(model, args, kwargs),
            "tracemill without rematerialisation": without,
            "tracemill": with_,
            "AOTAutograd's min-cut": saved_by_aot(model, args, kwargs),
        }
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for title, sizes in results.items():
        print(f"\n{title}: bytes kept for the backward")
        for way, size in sizes.items():
            print(f"  {way:36} {size:>12,}  {size / sizes['eager']:>6.2f}")


if __name__ == "__main__":
    main()
