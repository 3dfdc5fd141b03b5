"""Executors that run operations one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tracemill.compiler.symbol import BoundSymbol, Symbol, symbol


class Executor(Protocol):
    """Says which bound symbols it can run, and how.

    name: how the executor is asked for.
    """

    name: str

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """The bound symbol that this executor runs instead of `bsym`, or None when it cannot."""
        ...


class OperatorExecutor:
    """Runs operations by implementations that are registered for them.

    >>> import torch
    >>> mine = OperatorExecutor("mine")
    >>> mine.register(torch.mul, lambda x, y: x * y).name
    'mine.mul'
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._registered: dict[Symbol, tuple[Symbol, Callable[..., bool] | None]] = {}

    def register(
        self,
        fn: Callable[..., Any] | Symbol,
        impl: Callable[..., Any],
        checker: Callable[..., bool] | None = None,
    ) -> Symbol:
        """Makes `impl` run calls of `fn`, those for which `checker(*args, **kwargs)`, on proxies, is true.

        Returns the operation that stands in traces for it.
        """
        replaced = fn if isinstance(fn, Symbol) else symbol(fn)
        made = Symbol(f"{self.name}.{replaced.name.split('.')[-1]}", impl=impl, vjp=replaced.vjp)
        self._registered[replaced] = (made, checker)
        return made

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """`bsym` on the registered implementation, or None."""
        known = self._registered.get(bsym.sym)
        if known is None:
            return None
        made, checker = known
        if checker is not None and not checker(*bsym.args, **bsym.kwargs):
            return None
        return bsym.from_bsym(sym=made, subsymbols=(bsym,))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
