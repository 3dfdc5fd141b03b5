"""What of nvFuser's executor needs no nvFuser: the opening of composites, and what a user is told who does not have it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm
from tracemill.executors.fusion import Region
from tracemill.executors.nvfuser.executor import NvFuserExecutor
from tracemill.executors.nvfuser.registry import TRANSLATIONS

LINES: dict[str, Callable[..., Any]] = {
    "gelu": F.gelu,
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "rms_norm": lambda x: F.rms_norm(x, (8,)),
    "softmax": lambda x: F.softmax(x, -1),
    "cross_entropy": lambda x: F.cross_entropy(
        x, torch.zeros(4, dtype=torch.int64, device=x.device)
    ),
    "dropout": lambda x: F.dropout(x, 0.1),
    "rotary": lambda x: torch.cat([-x[..., 4:], x[..., :4]], -1),
    "std": lambda x: x.std(-1),
    "tril": torch.tril,
}


def region_of(trace: tm.Trace) -> Region:
    outputs = [value for value in trace.outputs if isinstance(value, tm.TensorProxy)]
    return Region(
        "region", "nvfuser", tuple(trace.bound_symbols), tuple(trace.args), tuple(outputs)
    )


# Their lines index, which PyTorch does for CUDA tensors, also those without data, in builds with CUDA alone.
NEED_CUDA = ("rms_norm", "rotary")


@pytest.mark.parametrize("name", LINES)
def test_composites_are_opened_into_what_has_a_translation(name: str) -> None:
    if name in NEED_CUDA and not torch.backends.cuda.is_built():
        pytest.skip("needs a build of PyTorch with CUDA")
    trace = tm.trace(LINES[name], tm.fake("cuda:0 bf16[4, 8]"))
    graph = NvFuserExecutor().fused(region_of(trace)).module.graph
    called: set[Any] = {node.target for node in graph.nodes if node.op == "call_function"}
    assert called
    assert called - {operator.getitem} <= TRANSLATIONS.keys()


def test_on_tensors_without_data_a_region_gives_such() -> None:
    trace = tm.trace(lambda x: F.gelu(x) + 1, tm.fake("cuda:0 bf16[4, 8]"))
    function = NvFuserExecutor().fused(region_of(trace))
    (made,) = function(tm.fake("cuda:0 bf16[4, 8]"))
    assert (made.device.type, made.dtype, made.shape) == ("cuda", torch.bfloat16, (4, 8))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(tm.OptionError, match="nvfuser has no option 'conv'; it has 'matmul'"):
        NvFuserExecutor(["conv"])


@pytest.mark.skipif(find_spec("nvfuser_direct") is not None, reason="nvFuser is installed")
def test_who_asks_for_it_is_told_how_to_install_it() -> None:
    with pytest.raises(tm.OptionError, match=r"nvFuser is not installed.*pip install torch"):
        tm.jit(lambda x: x + 1, executors=["nvfuser"])
    assert "nvfuser" not in tm.executors.names()
