"""The states of PyTorch's own generators: read and put back.

PyTorch's functions are bound here before an interpretation can stand in for them.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch

Generator = torch.Generator
_cpu_state, _set_cpu_state = torch.get_rng_state, torch.set_rng_state
_cuda_states, _set_cuda_states = torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all

RandomState = tuple[torch.Tensor, Sequence[torch.Tensor], Sequence[tuple[Any, torch.Tensor]]]
"""The state of the CPU's generator, of each CUDA device's, and of other generators."""


def random_state(generators: Sequence[torch.Generator] = ()) -> RandomState:
    """The states now, those of `generators` included."""
    cuda = _cuda_states() if torch.cuda.is_initialized() else ()
    return _cpu_state(), cuda, [(generator, generator.get_state()) for generator in generators]


def set_random_state(state: RandomState) -> None:
    """Puts states back."""
    cpu, cuda, others = state
    _set_cpu_state(cpu)
    if cuda:
        _set_cuda_states(cuda)
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
