"""nvFuser's Python module: imported when first asked for, and its names for dtypes."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

HOW_TO_INSTALL = (
    "nvFuser is not installed. Its wheels name the Python, CUDA and PyTorch that they were built for; for Python 3.12 "
    "and PyTorch 2.10: pip install torch==2.10.0 nvfuser-cu130-torch210 'nvidia-cuda-nvrtc==13.0.*'"
)
"""What a user who asks for it without having it is told."""

DATA_TYPES = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Int",
    torch.int32: "Int32",
    torch.bool: "Bool",
    torch.uint64: "UInt64",
}
"""The dtypes that regions may hold, by nvFuser's names. Of others it compiles too little to be of use.

Attention keeps the state of its random numbers in uint64, which nothing computes with.
"""

HALF_TYPES = (torch.float16, torch.bfloat16)
"""Computed in float32, and rounded where a value leaves the region."""


@functools.cache
def library() -> Any:
    """The module `nvfuser_direct`; raises ImportError where it is not installed or does not load."""
    # Deferred: it loads several hundred megabytes of libraries.
    import nvfuser_direct  # pyright: ignore[reportMissingImports]

    for path in _compiler_builtins():
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return nvfuser_direct


@functools.cache
def is_available() -> bool:
    """Whether `nvfuser_direct` can be imported; a warning says why not, where it is installed."""
    if importlib.util.find_spec("nvfuser_direct") is None:
        return False
    try:
        library()
    except Exception as error:  # built for another PyTorch: an ImportError, or any other
        warnings.warn(
            f"nvFuser is installed and does not load; PyTorch runs all: {type(error).__name__}: {error}",
            stacklevel=2,
        )
        return False
    return True


def data_type(dtype: torch.dtype) -> Any:
    """nvFuser's name of a dtype of `DATA_TYPES`."""
    return getattr(library().DataType, DATA_TYPES[dtype])


def computed_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that values of a dtype are computed in."""
    return torch.float32 if dtype in HALF_TYPES else dtype


def _compiler_builtins() -> Iterator[Path]:
    """The file that nvFuser's own copy of NVRTC looks for and does not bring along.

    Once loaded under its name it is found, wherever it lies.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(folder).glob("cu13/lib/libnvrtc-builtins.so.13*"))
