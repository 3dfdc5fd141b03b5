"""The log of a tape: which operations are done, and which node of autograd's graph does them or is made for them."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.body import Log


class TapeLog(Log):
    """A log of what autograd does too.

    numbers: for each operation, the number of autograd's next node. nodes: the number of the node that did it, in a
    backward; else None. constants: the indices of tensors that PyTorch made of the program's numbers (`x[[0, 2]] = y`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []
        self.nodes: list[int | None] = []
        self.constants: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        done = len(self.operations)
        if func is torch.ops.aten.lift_fresh.default and type(args[0]) is torch.Tensor:
            self.constants.add(self.add(args[0]).index)
        output = super().__torch_dispatch__(func, types, args, kwargs)
        if len(self.operations) > done:
            node: Any = internals.current_autograd_node()
            self.numbers.append(internals.next_node_number())
            self.nodes.append(None if node is None else node._sequence_nr())
        return output

    def forget(self, begin: int) -> None:
        """Takes back the operations from one on."""
        for noted in (self.operations, self.numbers, self.nodes):
            del noted[begin:]
        self.views = {number: view for number, view in self.views.items() if number < begin}

    def made_for(self, number: int) -> int:
        """The operation for which the node was made that did this one; beyond the last where there is none."""
        node = self.nodes[number]
        return len(self.numbers) if node is None else bisect_right(self.numbers, node)
