"""The profile hook that watches a program, out of the way while PyTorch or tracemill is at work, and back for the user's code.

A hook in Python is called for each call of each function; PyTorch's own code on fakes, and tracemill's between two lines
of the program, are nobody's program, and full of calls.
"""

from __future__ import annotations

import sys
import threading
from typing import Any


class _Thread(threading.local):
    suspended: Any = None


_thread = _Thread()


class unprofiled:
    """In the block, no profile hook is called. A profiler in C, such as cProfile's, stays: it could not be put back."""

    __slots__ = ("_hook",)

    def __enter__(self) -> None:
        hook = self._hook = sys.getprofile()
        if callable(hook):
            sys.setprofile(None)
            _thread.suspended = hook

    def __exit__(self, *exc_info: object) -> None:
        if callable(self._hook):
            _thread.suspended = None
            sys.setprofile(self._hook)


class profiled:
    """In the block, the hook that `unprofiled` took away is called again: what runs may be the user's."""

    __slots__ = ("_hook",)

    def __enter__(self) -> None:
        hook = self._hook = _thread.suspended
        if hook is not None:
            _thread.suspended = None
            sys.setprofile(hook)

    def __exit__(self, *exc_info: object) -> None:
        if self._hook is not None:
            sys.setprofile(None)
            _thread.suspended = self._hook
