"""The translations of all families: importing a family registers its own."""

from tracemill.executors.nvfuser import (
    attention,
    bits,
    factories,
    indexing,
    pointwise,
    products,
    reductions,
    shape,
)
from tracemill.executors.nvfuser.registry import TRANSLATIONS

__all__ = [
    "TRANSLATIONS",
    "attention",
    "bits",
    "factories",
    "indexing",
    "pointwise",
    "products",
    "reductions",
    "shape",
]
