"""torch: PyTorch itself, which runs everything."""

from __future__ import annotations

from tracemill.compiler.symbol import BoundSymbol


class TorchExecutor:
    """Runs every operation: a torch operation is its own implementation."""

    name = "torch"

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """The bound symbol itself."""
        return bsym
