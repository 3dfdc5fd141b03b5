"""Where a torch callable is found: the expression over `torch` that evaluates to it."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch

from tracemill.compiler.torch_internals import OpOverload, OpOverloadPacket

# Searched in this order: the first path that leads to a callable is the one that is printed.
_NAMESPACES = (
    "torch",
    "torch.nn.functional",
    "torch.Tensor",
    "torch.special",
    "torch.linalg",
    "torch.fft",
    "torch.nn.init",
    "torch.sparse",
    "torch.signal.windows",
    "torch._C._nn",
    "torch._VF",
    "torch._C",
)


def lookup(path: str) -> Any:
    """The object at a dotted `path` that starts with `torch`; raises AttributeError."""
    value: Any = torch
    for part in path.split(".")[1:]:
        value = getattr(value, part)
    return value


def _entries(path: str) -> Iterator[tuple[Any, str]]:
    namespace = lookup(path)
    for name in dir(namespace):
        if name.startswith("__") and path != "torch.Tensor":
            continue
        value: Any = getattr(namespace, name, None)
        if callable(value) and not isinstance(value, type):
            yield value, f"{path}.{name}"
        elif path == "torch.Tensor" and hasattr(type(value), "__get__") and not callable(value):
            yield value.__get__, f"{path}.{name}.__get__"
            if hasattr(type(value), "__set__"):
                yield value.__set__, f"{path}.{name}.__set__"


@lru_cache(maxsize=1)
def _paths() -> dict[Any, str]:
    paths: dict[Any, str] = {}
    own_names: set[str] = set()
    for namespace in _NAMESPACES:
        for value, path in _entries(namespace):
            try:
                known = paths.setdefault(value, path)
            except TypeError:  # unhashable: torch.classes and the like
                continue
            own = getattr(value, "__name__", "")
            if path.endswith(f".{own}") and known.rpartition(".")[0] == namespace:
                # torch.mm, not its other names torch.dsmm and torch.spmm, which are equal to it.
                paths[value] = min(known, path, key=len) if known in own_names else path
                own_names.add(paths[value])
    return paths


def path_of(fn: Callable[..., Any]) -> str | None:
    """The dotted path over `torch` that evaluates to `fn`, or None when there is none.

    >>> path_of(torch.sin), path_of(torch.Tensor.add), path_of(torch.ops.aten.mm.default)
    ('torch.sin', 'torch.Tensor.add', 'torch.ops.aten.mm.default')
    """
    if isinstance(fn, OpOverload):
        return f"torch.ops.{fn.namespace}.{fn._schema.name.split('::')[1]}.{fn._overloadname}"
    if isinstance(fn, OpOverloadPacket):
        return f"torch.ops.{fn._qualified_op_name.replace('::', '.')}"
    path = _paths().get(fn)
    qualname = getattr(fn, "__qualname__", None)
    if (
        path is None
        and qualname
        and (getattr(fn, "__module__", None) or "").split(".")[0] == "torch"
    ):
        path = f"{fn.__module__}.{qualname}"
    if path is None or not _leads_to(path, fn):
        return None
    return path


def expression(path: str) -> str:
    """The Python of a dotted path, of which the last name may be a keyword.

    >>> expression("torch.sin"), expression("torch.ops.aten.random.from")
    ('torch.sin', 'getattr(torch.ops.aten.random, "from")')
    """
    owner, _, name = path.rpartition(".")
    return f'getattr({owner}, "{name}")' if keyword.iskeyword(name) else path


def _leads_to(path: str, fn: Any) -> bool:
    module = ".".join(path.split(".")[:-1])
    try:
        return lookup(path) == fn and (
            module not in sys.modules or hasattr(sys.modules[module], path.split(".")[-1])
        )
    except AttributeError:
        return False
