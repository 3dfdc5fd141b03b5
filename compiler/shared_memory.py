"""The check that what a program writes to shares no memory with its other inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Apart:
    """Checks that pieces of memory which are written to lie apart from each other and from other inputs.

    `check(*tensors)` is given one tensor of each written piece, then the others. pieces: how many bytes before the
    tensor's first element each written piece begins, and its length in bytes. others: the lengths of the others. A length
    of None is that of the tensor.
    """

    __slots__ = ("_ends", "_starts", "_written")

    def __init__(
        self, pieces: Sequence[tuple[int, int | None]], others: Sequence[int | None]
    ) -> None:
        self._written = len(pieces)
        self._starts = [-before for before, _ in pieces] + [0] * len(others)
        self._ends = [
            None if length is None else length - before
            for before, length in (*pieces, *((0, length) for length in others))
        ]

    def check(self, *tensors: torch.Tensor) -> bool:
        """Whether they lie apart."""
        spans: list[tuple[int, int, bool]] = []
        for index, tensor in enumerate(tensors):
            first = tensor.data_ptr()
            if first:  # nothing lies at no address
                end = self._ends[index]
                end = first + (_length(tensor) if end is None else end)
                spans.append((first + self._starts[index], end, index < self._written))
        spans.sort()
        reach = reach_of_written = 0
        for start, end, is_written in spans:
            if start < (reach if is_written else reach_of_written):
                return False
            reach = max(reach, end)
            if is_written:
                reach_of_written = max(reach_of_written, end)
        return True


def _length(tensor: torch.Tensor) -> int:
    """The bytes that a tensor reaches over."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.itemsize
