"""What function modes do not see: it is recorded, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tracemill as tm
from tracemill.compiler.errors import UnsupportedError
from tracemill.compiler.torch_internals import TorchDispatchMode


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Names(), FlopCounterMode(display=False)])
def test_a_dispatch_mode_inside_is_refused_and_one_around_sees_all(mode: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with mode:
            return x @ x

    with pytest.raises(
        UnsupportedError, match=rf"enters _?{type(mode).__name__}.* at .*with mode:"
    ):
        tm.jit(program)(torch.ones(2, 2))
    called, x = tm.jit(lambda x: x @ x), torch.ones(2, 2)
    with mode:
        called(x)
    if isinstance(mode, Names):
        assert mode.names == ["aten.mm.default"]
    else:
        assert mode.get_total_flops() == 16
