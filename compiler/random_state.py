"""The states of PyTorch's own generators: read and put back.

The generators are asked themselves: an interpretation stands in for PyTorch's functions.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch

Generator = torch.Generator
_cpu = torch.default_generator

RandomState = tuple[torch.Tensor, Sequence[torch.Tensor], Sequence[tuple[Any, torch.Tensor]]]
"""The state of the CPU's generator, of each CUDA device's, and of other generators."""


def random_state(generators: Sequence[torch.Generator] = ()) -> RandomState:
    """The states now, those of `generators` included."""
    cuda = [generator.get_state() for generator in _cuda_generators()]
    return _cpu.get_state(), cuda, [(generator, generator.get_state()) for generator in generators]


def _cuda_generators() -> Sequence[torch.Generator]:
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()


def set_random_state(state: RandomState) -> None:
    """Puts states back."""
    cpu, cuda, others = state
    _cpu.set_state(cpu)
    for generator, own in zip(_cuda_generators(), cuda, strict=False):
        generator.set_state(own)
    for generator, own in others:
        generator.set_state(own)


def same_random_state(one: RandomState, two: RandomState) -> bool:
    """Whether two states, of the same generators, are equal."""
    first = [one[0], *one[1], *(own for _, own in one[2])]
    second = [two[0], *two[1], *(own for _, own in two[2])]
    return len(first) == len(second) and all(map(torch.equal, first, second))


@contextmanager
def kept_random_state(generators: Sequence[torch.Generator] = ()) -> abc.Generator[None]:
    """Draws in the block leave the states as they are."""
    before = random_state(generators)
    try:
        yield
    finally:
        set_random_state(before)
