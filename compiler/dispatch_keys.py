"""Above and below autograd: PyTorch hands an operation from one layer to the next, and stand-ins are met at several."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.torch_internals import DispatchKey, DispatchKeySet


def is_below_autograd() -> bool:
    """Whether autograd has had its turn at the operation that is under way: it sets the graph of what comes back."""
    return internals.is_key_excluded(DispatchKey.AutogradFunctionality)


def above_autograd() -> AbstractContextManager[None]:
    """Lets autograd have a turn at the operations in the block, wherever it is entered."""
    excluded = internals.excluded_keys()
    for key in _AUTOGRAD:
        excluded = excluded.remove(key)
    return internals.force_keys(internals.included_keys(), excluded)


@contextmanager
def at_the_kernels() -> Generator[None]:
    """Lets the operations in the block reach PyTorch's kernels at once, past autograd and stand-ins."""
    python = DispatchKeySet(DispatchKey.Python).add(DispatchKey.PythonTLSSnapshot)
    with internals.below_autograd(), internals.exclude_keys(python):
        yield


_AUTOGRAD = (
    DispatchKey.AutogradFunctionality,
    DispatchKey.AutogradOther,
    DispatchKey.ADInplaceOrView,
)
