"""Backward hooks of modules: called as in eager, with eager's gradients, and what they return goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tracemill as tm


class Pair(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Any:
        return a * b, a.sin(), "no tensor"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.inner = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.ReLU())
        self.pair = Pair()

    def forward(self, x: Tensor) -> Any:
        y = self.inner(self.first(x))
        product, sine, _ = self.pair(y, y)
        return product, sine + x


Log = list[Any]


def on_all(net: nn.Module, log: Log) -> None:
    for name, module in net.named_modules():
        module.register_full_backward_hook(
            lambda _module, grads, cotangents, name=name: log.append((name, *grads, *cotangents))
        )


def that_change_gradients(net: Any, log: Log) -> None:
    net.first.register_full_backward_hook(
        lambda _module, grads, _cotangents: tuple(
            None if grad is None else grad * 2 for grad in grads
        )
    )
    net.inner.register_full_backward_hook(
        lambda _module, grads, _cotangents: (grads[0].t().mul(3).contiguous().t(),)
    )


def before(net: Any, log: Log) -> None:
    def pre_hook(_module: nn.Module, cotangents: Any) -> Any:
        log.append(("before", *cotangents))
        return (cotangents[0] * 2,)

    net.inner.register_full_backward_pre_hook(pre_hook)
    net.inner.register_full_backward_hook(
        lambda _module, grads, cotangents: log.append(("inner", *grads, *cotangents))
    )


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize("install", [on_all, that_change_gradients, before])
def test_hooks_are_called_as_in_eager(
    install: Callable[[Any, Log], None], needs_grad: bool, outputs: tuple[int, ...]
) -> None:
    def trained(compiled: Callable[[nn.Module], Any]) -> list[Any]:
        torch.manual_seed(0)
        net, log = Net(), Log()
        install(net, log)
        called, found = compiled(net), []
        for _ in range(2):
            x = torch.randn(4, 3, requires_grad=needs_grad)
            net.zero_grad()
            made = called(x)
            torch.stack([made[i].sum() for i in outputs]).sum().backward()
            found.append([x.grad, *(parameter.grad for parameter in net.parameters())])
        return [log, found]

    (got_log, got), (want_log, want) = trained(tm.jit), trained(lambda net: net)
    torch.testing.assert_close(got, want)
    assert [entry[0] for entry in got_log] == [entry[0] for entry in want_log]
    torch.testing.assert_close([e[1:] for e in got_log], [e[1:] for e in want_log])


def test_a_hook_that_goes_is_called_no_more() -> None:
    layer, seen = nn.Linear(2, 2), Log()
    jitted = tm.jit(layer)
    own = jitted.register_full_backward_hook(lambda *_: seen.append("own"))
    for_all = nn.modules.module.register_module_full_backward_hook(lambda *_: seen.append("all"))
    for gone in (own, for_all):
        jitted(torch.ones(1, 2, requires_grad=True)).sum().backward()
        gone.remove()
    jitted(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert sorted(seen) == ["all", "all", "own"]


def test_without_gradients_nothing_is_called() -> None:
    layer, seen = nn.Linear(2, 2), Log()
    layer.register_full_backward_hook(lambda *_: seen.append("called"))
    jitted = tm.jit(layer)
    with torch.no_grad():
        assert torch.equal(jitted(torch.ones(2)), layer(torch.ones(2)))
    assert not seen


def test_text(golden: Callable[[str, str], None]) -> None:
    layer = nn.ReLU()
    layer.register_full_backward_hook(lambda *_: None)
    jitted = tm.jit(layer)
    jitted(torch.ones(2, requires_grad=True))
    golden(tm.last_traces(jitted)[-1].text("minimal"), "forward")
    golden(str(tm.last_backward_traces(jitted)[-1]), "backward")


def test_gradients_of_gradients_are_refused() -> None:
    layer = nn.Tanh()
    layer.register_full_backward_hook(lambda *_: None)
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(tm.UnsupportedError, match=r"create_graph=True.*backward hooks"):
        torch.autograd.grad(tm.jit(layer)(x).sum(), x, create_graph=True)
