"""The shorter prologue: what it says, and that every change makes the calls run all lines again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tracemill as tm
from tracemill.compiler.unwritten import while_unwritten

X = torch.arange(6.0).reshape(2, 3) / 6


class Block(nn.Module):
    scale = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.shift = 1.0
        self.sizes = [3, 4]
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for size in self.sizes:
            x = x + size
        return self.drop(self.norm(self.fc(x) * self.scale) + self.shift)


def _block() -> Any:
    torch.manual_seed(0)
    return Block().eval()


def _called(module: Any, times: int = 3) -> Any:
    jitted = tm.jit(module)
    for _ in range(times):
        torch.testing.assert_close(jitted(X), module(X), rtol=0, atol=0)
    return jitted


def _entry(jitted: Any) -> Any:
    return jitted.__tracemill__.latest


def test_the_text() -> None:
    found = while_unwritten(_entry(_called(_block())).program.prologue, {})
    assert found is not None
    lines = [line for line in str(found[0]).splitlines() if not line.lstrip().startswith("#")]
    assert "\n".join(lines[lines.index("def prologue(x):") :]) == (
        "def prologue(x):\n"
        '  torch.is_grad_enabled() is True or mismatch("grad mode")\n'
        '  torch.get_default_dtype() == torch.float32 or mismatch("default dtype")\n'
        '  torch._C._get_deterministic_algorithms() is False or mismatch("deterministic mode")\n'
        '  torch._C._len_torch_function_stack() == 0 or mismatch("function modes")\n'
        '  tables.check() or mismatch("tables that were written to")\n'
        '  found = tables.found  # found: "tuple"\n'
        "  fc_weight, fc_bias, norm_running_mean, norm_running_var, norm_weight, norm_bias, = found\n"
        '  forward.__code__ is forward_code or mismatch("forward: its code and defaults")\n'
        "  tensorcheck.check(\n"
        "    x,\n"
        "    fc_weight,\n"
        "    fc_bias,\n"
        "    norm_running_mean,\n"
        "    norm_running_var,\n"
        "    norm_weight,\n"
        "    norm_bias,\n"
        '  ) or mismatch("metadata of the tensors")\n'
        "  return (\n"
        "    x,\n"
        "    fc_weight,\n"
        "    fc_bias,\n"
        "    norm_running_mean,\n"
        "    norm_running_var,\n"
        "    norm_weight,\n"
        "    norm_bias,\n"
        "  )"
    )


def _replace_weight(block: Any) -> None:
    block.fc.weight = nn.Parameter(torch.eye(3))


def _set_data(block: Any) -> None:
    block.fc.weight.data = torch.eye(3)


def _hook(block: Any) -> None:
    block.fc.register_forward_hook(lambda module, args, output: output * 2)


def _load(block: Any) -> None:
    state = {name: value + 1 for name, value in block.state_dict().items()}
    block.load_state_dict(state, assign=True)


class _Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


CHANGES: dict[str, Callable[[Any], object]] = {
    "a parameter replaced": _replace_weight,
    "a parameter's data": _set_data,
    "a state loaded": _load,
    "an attribute": lambda block: setattr(block, "shift", 3.0),
    "an attribute over the class's": lambda block: setattr(block, "scale", 3.0),
    "a list": lambda block: block.sizes.append(5),
    "an item of a list": lambda block: block.sizes.__setitem__(0, 7),
    "a module": lambda block: setattr(block, "fc", nn.Linear(3, 3)),
    "a module's class": lambda block: setattr(block.fc, "__class__", _Doubled),
    "a module more": lambda block: block.add_module("more", nn.Linear(3, 3)),
    "training": lambda block: block.train(),
    "a hook": _hook,
    "a bias left out": lambda block: setattr(block.fc, "bias", None),
    "double precision of one": lambda block: setattr(block.norm, "eps", 0.5),
    "frozen": lambda block: block.requires_grad_(False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    block = _block()
    jitted = _called(block)
    assert _entry(jitted).tables is not None
    CHANGES[change](block)
    for _ in range(3):
        state = {name: value.clone() for name, value in block.state_dict().items()}
        expected = block(X)
        block.load_state_dict(state)  # running statistics
        found = jitted(X)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert found.requires_grad == expected.requires_grad


def test_a_class_attribute_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    block = _block()
    jitted = _called(block)
    monkeypatch.setattr(Block, "scale", 5.0)
    torch.testing.assert_close(jitted(X), block(X), rtol=0, atol=0)


def test_calls_after_a_write_take_the_short_way_again() -> None:
    block = _block()
    jitted = _called(block, times=100)
    first = _entry(jitted).call
    block.other = 1
    jitted(X)
    assert _entry(jitted).call is not first
    assert _entry(jitted).tables.check()
    assert not _entry(jitted).written


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_table_that_is_written_to_at_each_call_is_left_out() -> None:
    module = Counting()
    jitted = tm.jit(module)
    ways = []
    for _ in range(7):
        jitted(X)
        ways.append(_entry(jitted) and _entry(jitted).call)
    assert module.calls == 7
    assert _entry(jitted).written
    assert _entry(jitted).tables.check()
    assert ways[4] is ways[5] is ways[6]


def test_a_table_that_is_written_to_once_is_not() -> None:
    block = _block()
    jitted = _called(block)
    block.train().eval()
    for _ in range(3):
        jitted(X)
    assert not _entry(jitted).written
    assert _entry(jitted).tables.check()


def test_a_module_that_is_an_argument_or_a_global() -> None:
    block, other = _block(), _block()
    names = {"block": block}
    exec("def run(x):\n  return block(x)", names)
    by_global = tm.jit(names["run"])
    by_argument = tm.jit(lambda module, x: module(x))
    for module in (block, other):
        module.shift += 1
        names["block"] = module
        for _ in range(3):
            torch.testing.assert_close(by_global(X), module(X), rtol=0, atol=0)
            torch.testing.assert_close(by_argument(module, X), module(X), rtol=0, atol=0)
    assert _entry(by_global).tables is not None
    assert _entry(by_argument).tables is not None
