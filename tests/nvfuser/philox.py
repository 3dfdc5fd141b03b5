"""The random numbers that nvFuser draws: Philox, ten rounds, counted as nvFuser counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

Tensor = torch.Tensor

LOW = 0xFFFFFFFF


def numbers(seed: int, subsequence: Tensor, offset: int) -> list[Tensor]:
    """Four numbers of 32 bits, as int64, for each subsequence of a seed, at an offset that counts such fours."""
    keys = [seed & LOW, seed >> 32 & LOW]
    counter = [
        torch.full_like(subsequence, offset & LOW),
        torch.full_like(subsequence, offset >> 32 & LOW),
        subsequence & LOW,
        subsequence >> 32 & LOW,
    ]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]  # the bits of uint64
        counter = [
            (second >> 32 & LOW) ^ counter[1] ^ keys[0],
            second & LOW,
            (first >> 32 & LOW) ^ counter[3] ^ keys[1],
            first & LOW,
        ]
        keys = [keys[0] + 0x9E3779B9 & LOW, keys[1] + 0xBB67AE85 & LOW]
    return counter


def uniform(sizes: Sequence[int], seed: int, offset: int, dtype: torch.dtype) -> Tensor:
    """Numbers from zero to one: four of single precision of each call, or two of double precision."""
    drawn, at = _drawn(sizes, seed, offset, dtype)
    return torch.stack(drawn).gather(0, at).reshape(tuple(sizes))


def normal(sizes: Sequence[int], seed: int, offset: int, dtype: torch.dtype) -> Tensor:
    """Numbers of mean zero and deviation one, each pair made of two uniform ones."""
    drawn, at = _drawn(sizes, seed, offset, dtype)
    pairs = list(zip(drawn[::2], drawn[1::2], strict=True))
    made = [
        (-2 * one.log()).sqrt() * wave(other * 2 * math.pi)
        for one, other in pairs
        for wave in (torch.sin, torch.cos)
    ]
    return torch.stack(made).gather(0, at).reshape(tuple(sizes))


def _drawn(
    sizes: Sequence[int], seed: int, offset: int, dtype: torch.dtype
) -> tuple[list[Tensor], Tensor]:
    """What one call makes for each element, and which of it is the element's."""
    double = dtype == torch.float64
    each = 2 if double else 4
    positions = torch.arange(math.prod(sizes))
    words = numbers(seed, positions // each, offset)
    if double:
        words = [words[0] ^ words[1] << 21, words[2] ^ words[3] << 21]
    width = 53 if double else 32
    scaled = [word.to(dtype) * 2.0**-width + 2.0 ** -(width + 1) for word in words]
    return [number.where(number != 1, 0) for number in scaled], (positions % each).unsqueeze(0)
