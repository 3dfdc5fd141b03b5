"""Handlers: code that goes on after an error.

    try:
      factor = torch.linalg.cholesky(x)
    except RuntimeError:
      factor = x

What a call raises depends on what its tensors hold, so the compiled program may raise where the traced one went on.
"""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType

_MATCH, _HANDLER, _EXIT = (
    dis.opmap[name] for name in ("CHECK_EXC_MATCH", "PUSH_EXC_INFO", "WITH_EXCEPT_START")
)
_EXITS = frozenset({"__exit__", "__aexit__"})


@lru_cache(maxsize=4096)
def handles(code: CodeType) -> bool:
    """Whether code has an `except` or a `finally`, or decides as a context manager what becomes of an error."""
    operations = code.co_code[::2]
    return (
        _MATCH in operations
        or operations.count(_HANDLER) > operations.count(_EXIT)
        or code.co_name in _EXITS
        or "suppress" in code.co_names
    )
