"""Vector instructions: the best that the CPU has are taken to work, until what is compiled for them does not.

Inductor compiles and loads up to six programs in each process to see which kinds work, the first time for many seconds.
A region that compiles and loads says the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from tracemill.compiler import torch_internals

Made = TypeVar("Made")


class VectorInstructions:
    """What is known of the CPU's best kind of vector instructions.

    doubted: whether it is to be tried as Inductor does. proven: whether something compiled for it was loaded.
    """

    def __init__(self) -> None:
        self.doubted = False
        self.proven = False

    def assumed(self, compile_: Callable[[], Made]) -> Made:
        """What `compile_` makes for the best kind of instructions; where that fails, for those that Inductor finds to work."""
        kind = None if self.doubted or _is_chosen() else _best()
        if kind is None:
            return compile_()
        try:
            with _only(kind):
                made = compile_()
        except Exception:
            if self.proven:
                raise
            self.doubted = True
            _forget(kind)
            return compile_()
        self.proven = True
        return made


VECTOR_INSTRUCTIONS = VectorInstructions()
"""Those of this process."""


def _is_chosen() -> bool:
    """Whether the user says what to use, or Inductor knows already what works."""
    inductor = torch_internals.inductor()
    return (
        inductor.config.cpp.vec_isa_ok is not None
        or inductor.config.cpp.simdlen is not None
        or "ATEN_CPU_CAPABILITY" in os.environ
        or inductor.vector_instructions.valid_vec_isa_list.cache_info().currsize > 0
    )


@cache
def _best() -> Any:
    """The best kind that the CPU says it has, as Inductor names it; None where Inductor would try none."""
    isa = torch_internals.inductor().vector_instructions
    flags = set(isa.x86_isa_checker())
    for kind in isa.supported_vec_isa_list:
        if set(str(kind).split()) <= flags and _with_programs_that_load(kind):
            return kind
    return None


def _with_programs_that_load(kind: Any) -> bool:
    """Whether a kind works if programs for it compile and load; its truth also turns on what must be turned on."""
    with torch_internals.inductor().config.patch({"cpp.vec_isa_ok": True}):
        kind.check_build = lambda code: True
        try:
            return bool(kind)
        finally:
            del kind.check_build


@contextmanager
def _only(kind: Any) -> Generator[None]:
    """Inductor takes a kind of instructions for the one that there is."""
    isa = torch_internals.inductor().vector_instructions
    found = isa.valid_vec_isa_list
    isa.valid_vec_isa_list = lambda: [kind]
    try:
        yield
    finally:
        isa.valid_vec_isa_list = found


def _forget(kind: Any) -> None:
    """Lets Inductor try the kind itself."""
    vars(kind).clear()
    for each in type(kind).__mro__:
        cached: Any = vars(each).get("__bool__")
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()
