"""In-place derivatives: of some functions PyTorch differentiates the other form alone, and eager's backward raises.

    y.acosh_()  # NotImplementedError: the derivative for 'inplace version of acosh' is not implemented.

The functional program has the other form, so PyTorch is asked about this one, once for each function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from tracemill.compiler.answer import tensor_arguments
from tracemill.compiler.oracle import unobserved
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import map_leaves

_known: dict[Any, bool] = {}


def is_differentiable(bsym: BoundSymbol, sizes: Sizes) -> bool:
    """Whether PyTorch differentiates a call of its own that writes, as far as gradients flow through what it writes to."""
    assert bsym.answer is not None
    tensors, changed = tensor_arguments(bsym.args, bsym.kwargs), bsym.answer.changed
    written = bsym.answer.mutated
    if not any(changed.get(each, tensors[each].meta).requires_grad for each in written):
        return True
    fn: Any = bsym.sym.impl
    if fn not in _known:
        models = [sizes.model(tensor) for tensor in tensors]
        _known[fn] = _asked(bsym, dict(zip(tensors, models, strict=True)), sizes)
    return _known[fn]


def _asked(bsym: BoundSymbol, models: Mapping[Any, torch.Tensor], sizes: Sizes) -> bool:
    assert bsym.answer is not None
    fn: Any = bsym.sym.impl

    def model(leaf: Any) -> Any:
        return models[leaf] if leaf in models else sizes.given(leaf)

    try:
        with unobserved(), sizes.mode, torch.enable_grad():
            args, kwargs = map_leaves(model, (bsym.args, bsym.kwargs))
            fn(*args, **kwargs)
            written = list(models.values())
            for each in (written[position] for position in bsym.answer.mutated):
                if each.grad_fn is not None:
                    cast(Any, each.grad_fn)(torch.ones_like(each))
    except NotImplementedError:
        return False
    except Exception:
        return True  # what fakes alone raise says nothing of derivatives
    return True
