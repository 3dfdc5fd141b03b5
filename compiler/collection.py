"""Garbage collection, put off while a program is compiled.

A compilation makes hundreds of thousands of objects that live as long as it does. Every few hundred of them start a
collection, which looks at all of them again and frees nothing: a third of the time, for large models.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager


class _Deferral:
    """How many compilations are under way, in all threads, and whether the collector waits for them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.compilations = 0
        self.waits = False

    def begin(self) -> None:
        with self.lock:
            self.compilations += 1
            if gc.isenabled():
                gc.disable()
                self.waits = True

    def end(self) -> None:
        with self.lock:
            self.compilations -= 1
            if self.waits and not self.compilations:
                self.waits = False
                gc.enable()


_deferral = _Deferral()


@contextmanager
def collection_deferred() -> Generator[None]:
    """In the block no collection starts by itself; afterwards they do again, if they did before."""
    _deferral.begin()
    try:
        yield
    finally:
        _deferral.end()
