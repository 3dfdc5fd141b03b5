"""The vector instructions of the CPU: tried once on a machine, and remembered.

Inductor compiles and loads a small program for each kind in every process, which takes about a second.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tracemill.compiler import torch_internals


@cache
def vector_settings() -> dict[str, Any]:
    """Inductor's settings: that all vector instructions of this CPU work, where they were seen to.

    The answer is kept beside Inductor's cache, under PyTorch's version, the CPU's flags and the compiler.
    """
    inductor = torch_internals.inductor()
    isa = inductor.vector_instructions
    if inductor.config.cpp.vec_isa_ok is not None:
        return {}
    flags = isa.x86_isa_checker()
    named = [kind for kind in isa.supported_vec_isa_list if set(str(kind).split()) <= set(flags)]
    if not named:
        return {}
    known = _file(inductor.cache_dir(), flags)
    if not known.exists():
        if not all(named):  # truth means: compiles and loads
            return {}
        known.parent.mkdir(parents=True, exist_ok=True)
        known.touch()
    return {"cpp.vec_isa_ok": True}


def _file(folder: str, flags: list[str]) -> Path:
    parts = [torch.__version__, *sorted(flags), os.environ.get("CXX", ""), *_compiler_stamp()]
    return Path(folder) / "tracemill" / hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _compiler_stamp() -> list[str]:
    """The compiler's file and the time it was written."""
    inductor = torch_internals.inductor()
    try:
        path = os.path.realpath(inductor.cpp_compiler())
        return [path, str(os.stat(path).st_mtime_ns)]
    except (OSError, RuntimeError):
        return []
