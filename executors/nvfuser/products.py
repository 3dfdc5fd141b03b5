"""Products of matrices, which are translated where a user asks for them.

Linear layers and their gradients are products of two matrices, which option "linear" takes; option "matmul" takes batches
of them too.
"""

from __future__ import annotations

from typing import Any

import torch

from tracemill.executors.nvfuser.builder import Builder
from tracemill.executors.nvfuser.registry import translates
from tracemill.executors.nvfuser.values import Value

aten = torch.ops.aten


@translates(aten.mm.default, options=["linear", "matmul"])
@translates(aten.bmm.default, options=["matmul"])
def matmul(builder: Builder, left: Value, right: Value) -> Any:
    """The product of two matrices, or of each pair of two batches."""
    weight = _transposed(builder, 1)
    if weight is not None:
        return builder.ops.linear(left.exact, weight.exact)
    return builder.ops.matmul(left.exact, right.exact)


@translates(aten.addmm.default, options=["linear", "matmul"])
@translates(aten.baddbmm.default, options=["matmul"])
def addmm(builder: Builder, bias: Value, left: Value, right: Value, beta: Any, alpha: Any) -> Any:
    """beta * bias + alpha * the product of two matrices."""
    ops, dtype, weight = builder.ops, builder.result.dtype, _transposed(builder, 2)
    if weight is not None and bias.ndim == 1 and beta == alpha == 1:
        return ops.linear(left.exact, weight.exact, bias.exact)
    product = Value(ops.matmul(left.exact, right.exact), builder.result).computed
    if alpha != 1:
        product = ops.mul(product, builder.operand(alpha, dtype))
    if beta == 0:
        return product
    added = builder.operand(bias, dtype)
    return ops.add(product, added if beta == 1 else ops.mul(added, builder.operand(beta, dtype)))


def _transposed(builder: Builder, position: int) -> Value | None:
    """The matrix of which an argument is the transpose, as that of a linear layer is; None where it is no transpose."""
    made: Any = builder.node.args[position]
    return builder.value(made.args[0]) if made.target is aten.t.default else None
