"""Proxies know what a value is, and never hold it."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch

import tracemill as tm
from tracemill.compiler.meta import TensorMeta, contiguous_stride


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0, 3), (1, 4, 1)])
def test_contiguous_strides_are_pytorchs(shape: tuple[int, ...]) -> None:
    assert contiguous_stride(shape) == torch.empty(shape).stride()


def test_equal_metadata_is_one_object_also_after_a_copy() -> None:
    meta = TensorMeta.of(torch.ones(2, 3).t())
    assert meta is TensorMeta((3, 2), (1, 3))
    assert meta is not TensorMeta((3, 2))
    assert pickle.loads(pickle.dumps(meta)) is meta
    assert copy.deepcopy(meta) is meta
    assert meta.replace(dtype=torch.int64) is TensorMeta((3, 2), (1, 3), torch.int64)


def test_metadata_that_nobody_uses_is_forgotten() -> None:
    gc.collect()
    before = len(TensorMeta._known)
    for size in range(1000, 1100):
        TensorMeta((size,))
    gc.collect()
    assert len(TensorMeta._known) <= before + 1


def test_metadata_is_immutable() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        TensorMeta((2,)).shape = (3,)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.ones(2, 9, dtype=torch.bfloat16), "cpu bf16[2, 9]"),
        (torch.tensor(True), "cpu b8[]"),
        (torch.ones(3, dtype=torch.int64), "cpu i64[3]"),
        (torch.ones(3, dtype=torch.complex64), "cpu c64[3]"),
        (torch.ones(1, device="meta"), "meta f32[1]"),
    ],
)
def test_types_print_device_dtype_and_shape(tensor: torch.Tensor, text: str) -> None:
    assert tm.TensorProxy.like(tensor, "x").type_string == text


def test_a_tensor_proxy_answers_what_a_tensor_knows() -> None:
    x = tm.TensorProxy("x", shape=(2, 3), dtype=torch.float16, requires_grad=True)
    known = (x.shape, x.dtype, x.device, x.requires_grad)
    assert known == (torch.Size([2, 3]), torch.float16, torch.device("cpu"), True)
    assert (x.stride, x.stride(), x.stride(0), len(x)) == ((3, 1), (3, 1), 3, 2)


def test_a_renamed_proxy_is_another_value_of_the_same_kind() -> None:
    x = tm.TensorProxy("x", shape=(2,))
    y = x.renamed("y")
    assert (x.name, y.name, y.meta is x.meta, y.storage is x.storage) == ("x", "y", True, True)
    assert x != y
    assert len({x, y, x}) == 2
    number = tm.IntegerProxy("n", value=3).renamed("m")
    assert (number.name, number.value, number.type_string) == ("m", 3, "int")


def test_an_operation_outside_of_a_trace_says_what_to_do() -> None:
    x: Any = tm.TensorProxy("x", shape=(2,))
    for operation in (lambda: x + 1, lambda: torch.sin(x), lambda: x.sum(), lambda: x[0]):
        with pytest.raises(
            RuntimeError, match=r"outside of a trace; use `with tracemill\.tracectx"
        ):
            operation()


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = tm.TensorProxy("x").colour
