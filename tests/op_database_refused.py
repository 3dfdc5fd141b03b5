"""The operators of PyTorch's database that jit refuses by name for now, and why.

A test holds each of them to it: refused on at least one sample, before any effect, wrong on none.
An operator that has become right fails its test until it is taken out.
"""

from __future__ import annotations

REFUSED: dict[str, str] = dict.fromkeys(["resize_", "resize_as_"], "resizes an input's memory")

REFUSED_BACKWARD: dict[str, str] = {}
"""Those that it refuses when gradients are wanted."""
