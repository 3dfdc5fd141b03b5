"""How many specialisations a jitted function has made."""

from __future__ import annotations

from typing import Any

import torch

import tracemill as tm

ASKS_MORE = torch.__version__ < "2.11"
"""Of sizes, PyTorch 2.10 asks more: attention's and convolution's are then specialised, and more checks printed."""


def has_entries(jitted: Any, count: int) -> None:
    """Asserts that there are so many; at least so many where PyTorch asks more of sizes."""
    entries = tm.cache_info(jitted).entries
    assert entries >= count if ASKS_MORE else entries == count
