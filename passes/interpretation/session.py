"""The state of PyTorch and of the process while a program is interpreted, and its restoration."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from tracemill.compiler.errors import UnsupportedError
from tracemill.passes.interpretation.interpreter import Bypass, Interpreter
from tracemill.passes.interpretation.stand_in import interpretation


class _CompilingFlag:
    """Stands where PyTorch keeps `is_compiling`: a bool that is true only in a thread that interprets."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __bool__(self) -> bool:
        return interpretation.get() is not None or bool(self.before)

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    def __and__(self, other: Any) -> Any:
        return bool(self) & other

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    __ror__ = __or__
    __rand__ = __and__
    __hash__ = None  # type: ignore[assignment]


_lock = threading.Lock()
_active = 0


@contextmanager
def _compiling() -> Iterator[None]:
    global _active
    compiler: Any = torch.compiler
    with _lock:
        if _active == 0:
            compiler._is_compiling_flag = _CompilingFlag(compiler._is_compiling_flag)
        _active += 1
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if _active == 0:
                compiler._is_compiling_flag = compiler._is_compiling_flag.before


@contextmanager
def _unchanged_random_state() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    if not torch.equal(torch.get_rng_state(), before):
        torch.set_rng_state(before)
        raise UnsupportedError(
            "the program changed the random state while it was traced (torch.manual_seed, or a draw that was not seen); "
            "do that outside of the jitted function"
        )


@contextmanager
def interpreting(interpreter: Interpreter) -> Iterator[None]:
    """The block's torch calls go to `interpreter`; everything is as before afterwards, also after an error."""
    grad = torch.is_grad_enabled()
    token = interpretation.set(interpreter)
    try:
        with ExitStack() as stack:
            stack.enter_context(_unchanged_random_state())
            stack.enter_context(_compiling())
            stack.enter_context(Bypass(interpreter))
            stack.enter_context(interpreter)
            yield
    finally:
        interpretation.reset(token)
        torch.set_grad_enabled(grad)
