"""Each translated operation by itself, against eager: an operation without a sample here fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracemill as tm
from tests.nvfuser.harness import DEVICE, compare, executor_for, flat, regions, some
from tracemill.compiler.values import map_leaves
from tracemill.executors.nvfuser.registry import OPTIONS, TRANSLATIONS

aten, prims = torch.ops.aten, torch.ops.prims
Sample = Callable[[], tuple[Any, ...]]


def floats() -> torch.Tensor:
    return some(2, 3, 8, low=0.1, high=0.9)


def integers() -> torch.Tensor:
    return torch.randint(1, 6, (2, 3, 8))


def truths() -> torch.Tensor:
    return torch.rand(2, 3, 8) > 0.5


def _like(names: str, *args: Callable[[], Any], overload: str = "default") -> dict[Any, Sample]:
    """The same sample for operations of these names."""
    return {
        getattr(getattr(aten, name), overload): lambda: tuple(make() for make in args)
        for name in names.split()
    }


NUMBER = {"dtype": torch.float32, "device": DEVICE}

SAMPLES: dict[Any, Sample] = {
    **_like(
        "abs acos asin asinh atan atanh cos cosh erf erfc erfinv exp exp2 expm1 lgamma log log10 log1p log2 neg "
        "reciprocal relu rsqrt sigmoid sign silu sin sinh sqrt tan tanh ceil floor round trunc frac isinf isnan "
        "isposinf isneginf signbit clone alias detach lift_fresh_copy sum prod mean amax amin max min squeeze "
        "zeros_like empty_like ones_like",
        floats,
    ),
    aten.acosh.default: lambda: (floats() + 1,),
    **_like(
        "add sub rsub mul div fmod remainder eq ne lt le gt ge", floats, floats, overload="Tensor"
    ),
    **_like(
        "add sub rsub mul div fmod remainder eq ne lt le gt ge",
        floats,
        lambda: 0.7,
        overload="Scalar",
    ),
    **_like("atan2 maximum minimum nextafter floor_divide", floats, floats),
    aten.gcd.default: lambda: (integers(), integers()),
    aten.div.Tensor_mode: lambda: (integers(), integers(), {"rounding_mode": "floor"}),
    aten.div.Scalar_mode: lambda: (floats(), 0.2, {"rounding_mode": "trunc"}),
    aten.pow.Tensor_Scalar: lambda: (floats(), 2.5),
    aten.pow.Tensor_Tensor: lambda: (floats(), floats()),
    aten.pow.Scalar: lambda: (1.5, floats()),
    **_like("logical_and logical_or logical_xor", truths, floats),
    **_like("logical_not bitwise_not any all", truths),
    **_like(
        "__lshift__ __rshift__ bitwise_left_shift bitwise_right_shift",
        integers,
        integers,
        overload="Tensor",
    ),
    **_like("__lshift__ __rshift__", integers, lambda: 2, overload="Scalar"),
    **_like(
        "bitwise_left_shift bitwise_right_shift", integers, lambda: 2, overload="Tensor_Scalar"
    ),
    **_like("bitwise_and bitwise_or bitwise_xor", integers, integers, overload="Tensor"),
    **_like("bitwise_and bitwise_or bitwise_xor", integers, lambda: 3, overload="Scalar"),
    aten.where.self: lambda: (truths(), floats(), floats()),
    aten.clamp.default: lambda: (floats(), 0.3, 0.6),
    aten.clamp.Tensor: lambda: (floats(), floats() / 2, None),
    aten.clamp_min.default: lambda: (floats(), 0.5),
    aten.clamp_min.Tensor: lambda: (floats(), floats()),
    aten.clamp_max.default: lambda: (floats(), 0.5),
    aten.clamp_max.Tensor: lambda: (floats(), floats()),
    aten._to_copy.default: lambda: (floats(), {"dtype": torch.bfloat16}),
    prims.convert_element_type.default: lambda: (floats(), torch.float64),
    # Reductions and scans
    **_like("sum", floats, lambda: [0, -1], overload="dim_IntList"),
    **_like("prod", floats, lambda: 1, overload="dim_int"),
    **_like("mean", floats, lambda: [1], overload="dim"),
    **_like("any all", truths, lambda: 1, overload="dim"),
    **_like("any all", truths, lambda: [0, 2], overload="dims"),
    **_like("var var_mean", floats, lambda: [1], overload="correction"),
    **_like("cumsum cumprod", floats, lambda: 1),
    # Made of numbers
    aten.full.default: lambda: ([3, 8], 1.5, NUMBER),
    aten.full_like.default: lambda: (floats(), 1.5),
    aten.fill.Scalar: lambda: (floats(), 1.5),
    aten.new_full.default: lambda: (floats(), [3, 8], 1.5),
    aten.zeros.default: lambda: ([3, 8], NUMBER),
    aten.ones.default: lambda: ([3, 8], NUMBER),
    aten.empty.memory_format: lambda: ([3, 8], NUMBER),
    aten.empty_strided.default: lambda: ([3, 8], [8, 1], NUMBER),
    aten.empty_permuted.default: lambda: ([3, 8], [0, 1], NUMBER),
    **_like("new_zeros new_ones new_empty", floats, lambda: [3, 8]),
    aten.scalar_tensor.default: lambda: (1.5, NUMBER),
    aten.arange.start_step: lambda: (1, 9, 2, {"device": DEVICE}),
    prims.iota.default: lambda: (
        5,
        {"start": 1, "step": 2, "dtype": torch.int64, "device": DEVICE, "requires_grad": False},
    ),
    # Random
    **_like("rand randn", lambda: [64, 64], lambda: NUMBER),
    **_like("rand_like randn_like", lambda: torch.ones(64, 64)),
    aten.bernoulli.p: lambda: (torch.ones(64, 64), 0.3),
    aten.native_dropout.default: lambda: (torch.ones(64, 64), 0.3, True),
    # Looked up
    aten.index_select.default: lambda: (floats(), 1, torch.tensor([2, 0])),
    aten.gather.default: lambda: (floats(), 1, torch.randint(0, 3, (2, 2, 8))),
    aten.embedding.default: lambda: (some(7, 8), torch.randint(0, 7, (2, 5))),
    aten.index.Tensor: lambda: (floats(), [None, torch.tensor([2, -1])]),
    aten._unsafe_index.Tensor: lambda: (floats(), [None, torch.tensor([2, 0])]),
    aten.scatter.src: lambda: (floats(), 1, torch.tensor([[[2]]]), some(1, 1, 1)),
    aten.scatter.value: lambda: (floats(), 1, torch.tensor([[[2]]]), 1.5),
    # Products
    aten.mm.default: lambda: (some(3, 8), some(8, 5)),
    aten.bmm.default: lambda: (some(2, 3, 8), some(2, 8, 5)),
    aten.addmm.default: lambda: (some(5), some(3, 8), some(8, 5)),
    aten.baddbmm.default: lambda: (some(2, 3, 5), some(2, 3, 8), some(2, 8, 5)),
    # Moved
    aten.view.default: lambda: (floats(), [6, 8]),
    aten._unsafe_view.default: lambda: (floats(), [6, 8]),
    aten.permute.default: lambda: (floats(), [2, 0, 1]),
    aten.transpose.int: lambda: (floats(), 0, -1),
    aten.t.default: lambda: (some(3, 8),),
    aten.unsqueeze.default: lambda: (floats(), 1),
    aten.squeeze.default: lambda: (some(1, 8),),
    aten.squeeze.dim: lambda: (some(1, 8), 0),
    aten.squeeze.dims: lambda: (some(1, 8, 1), [0, 2]),
    aten.expand.default: lambda: (some(3, 1), [2, 3, 8]),
    prims.broadcast_in_dim.default: lambda: (some(3), [3, 8], [0]),
    aten.slice.Tensor: lambda: (floats(), 2, 1, 6),
    aten.select.int: lambda: (floats(), 1, -1),
    aten.split.Tensor: lambda: (floats(), 3, 2),
    aten.split_with_sizes.default: lambda: (floats(), [3, 5], 2),
    aten.unbind.int: lambda: (floats(),),
    aten.flip.default: lambda: (floats(), [0, 2]),
    aten.cat.default: lambda: ([some(2, 3), some(2, 5)], 1),
    aten.constant_pad_nd.default: lambda: (floats(), [1, 2], 1.5),
    aten.slice_backward.default: lambda: (some(3, 4), [3, 8], 1, 2, 6, 1),
    aten.select_backward.default: lambda: (some(3), [3, 8], 1, 2),
    aten.slice_scatter.default: lambda: (some(3, 8), some(3, 4), 1, 2, 6),
    aten.select_scatter.default: lambda: (some(3, 8), some(3), 1, 2),
}

RANDOM = {
    aten.rand.default,
    aten.randn.default,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.bernoulli.p,
    aten.native_dropout.default,
}
UNDEFINED = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_permuted.default,
    aten.empty_like.default,
    aten.new_empty.default,
}
"""What these hold is not said: zeros here."""

ELSEWHERE = {
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_backward.default,
}
"""Have no kernel for the CPU: test_products.py compares their definitions with another one."""


def _is_view(operation: Any) -> bool:
    """Whether it makes views, which regions do not return: they are made again outside."""
    return operation is aten._unsafe_view.default or any(
        made.alias_info is not None for made in operation._schema.returns
    )


@pytest.mark.parametrize(
    "operation", [operation for operation in TRANSLATIONS if operation not in ELSEWHERE], ids=str
)
def test_an_operation(operation: Any) -> None:
    *args, last = SAMPLES[operation]()
    kwargs = last if isinstance(last, dict) else {}
    args = args if kwargs else [*args, last]
    tensors: list[torch.Tensor] = []
    map_leaves(lambda leaf: tensors.append(leaf) if isinstance(leaf, torch.Tensor) else None, args)

    def fn(*tensors: torch.Tensor) -> Any:
        at = iter(tensors)
        given = map_leaves(lambda x: next(at) if isinstance(x, torch.Tensor) else x, args)
        made = operation(*given, **kwargs)
        return [piece * 2 for piece in flat(made)] if _is_view(operation) else made

    inputs = [tensor.to(DEVICE) for tensor in tensors]
    fast = tm.jit(fn, executors=[executor_for(OPTIONS, anything=True)])
    got, want = fast(*inputs), fn(*inputs)
    (region,) = regions(tm.last_traces(fast)[-1])
    function: Any = region.sym.impl
    assert operation in {node.target for node in function.module.graph.nodes}
    if operation in UNDEFINED:
        want = torch.zeros_like(want)
    if operation in RANDOM:
        got, want = _moments(got), _moments(want)
        torch.testing.assert_close(got, want, rtol=0, atol=0.1)
    else:
        compare(got, want)


def _moments(result: Any) -> torch.Tensor:
    return torch.stack([torch.stack(torch.std_mean(x.double())) for x in flat(result)])


def test_each_translated_operation_has_a_sample() -> None:
    assert SAMPLES.keys() | ELSEWHERE == TRANSLATIONS.keys()
