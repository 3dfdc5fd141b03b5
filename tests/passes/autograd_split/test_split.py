"""Split, chain and links: the texts of forward and backward, and what stays one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F

import tracemill as tm
from tests.programs import run_text

Golden = Callable[[str, str], None]


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def trained(program: Callable[..., Any], *args: Any, **options: Any) -> Any:
    jitted = tm.jit(program, **options)
    jitted(*args)
    return jitted


def after(jitted: Any, name: str) -> tuple[tm.Trace, tm.Trace]:
    """The forward and the backward that a pass left."""
    forward = [t for t in tm.last_traces(jitted) if t.constructed_by == name][-1]
    backward = [t for t in tm.last_backward_traces(jitted) if t.constructed_by == name][-1]
    return forward, backward


def normalise(x: torch.Tensor, eps: float = 0.1) -> torch.Tensor:
    return x / (x.norm() + eps)


def test_the_verbose_backward_says_what_every_value_is(golden: Golden) -> None:
    jitted = trained(normalise, leaf(3), printer="verbose")
    golden(str(tm.last_traces(jitted)[-1]), "normalise_forward")
    golden(str(tm.last_backward_traces(jitted)[-1]), "normalise_backward")


def test_split_leaves_a_program_without_gradients_alone() -> None:
    for grad, x in ((False, leaf(3)), (True, torch.ones(3))):
        with torch.set_grad_enabled(grad):
            jitted = trained(lambda x: x.sin(), x)
        assert not tm.last_backward_traces(jitted)
        assert tm.last_traces(jitted)[-1].text("minimal").endswith("return t0\n")


def test_a_composite_stays_one_line_where_views_are_all_that_the_backward_needs() -> None:
    jitted = trained(lambda input, w: F.linear(input, w), leaf(2, 3, 4), leaf(5, 4))
    forward, backward = after(jitted, "split")
    assert [bsym.sym.name for bsym in forward.bound_symbols] == ["torch.nn.functional.linear"]
    assert "torch.Tensor.view(input_, [6, 4])" in backward.text("minimal")


def test_a_composite_is_opened_where_the_backward_reads_from_inside() -> None:
    jitted = trained(lambda x: F.layer_norm(x, (4,)), leaf(2, 4))
    forward, _ = after(jitted, "split")
    (line,) = [b for b in forward.bound_symbols if "native_layer_norm" in b.sym.name]
    assert len(line.outputs) == 3


def test_values_used_twice_are_summed_in_eagers_order() -> None:
    jitted = trained(lambda x: x.sin() * x.cos() + x, leaf(3))
    _, backward = after(jitted, "split")
    assert backward.text("minimal").count("torch.add(") == 2


def test_a_view_of_a_cotangent_shares_its_memory() -> None:
    compiled = tm.jit(lambda x: x.sum() * 2)
    compiled(torch.rand(3, requires_grad=True))
    scaled, expanded = tm.last_backward_traces(compiled)[0].bound_symbols[-2:]
    assert (scaled.sym.name, expanded.sym.name) == ("torch.mul", "torch.Tensor.expand")
    assert expanded.output.storage is scaled.output.storage


def test_each_backward_line_knows_the_line_that_it_differentiates() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y.exp()

    jitted = trained(program, leaf(3))
    _, backward = after(jitted, "split")
    first = program.__code__.co_firstlineno
    lines = [b.source.line - first for b in backward.bound_symbols if b.source is not None]
    assert lines == [2, 1, 1]
    differentiated = [b.differentiates for b in backward.bound_symbols if b.source is not None]
    assert [b.sym.name for b in differentiated if b is not None] == [
        "torch.Tensor.exp",
        "torch.Tensor.sin",
        "torch.Tensor.sin",
    ]


def test_the_printed_backward_runs_by_itself() -> None:
    x, w = leaf(4, 3), leaf(5, 3)
    jitted = trained(lambda x, w: F.linear(x, w).relu().softmax(-1), x, w)
    forward, backward = tm.last_traces(jitted)[-1], tm.last_backward_traces(jitted)[-1]
    for printer in ("minimal", "default", "verbose", "script"):
        with torch.no_grad():
            result, saved = run_text(forward.text(printer), (x, w))
            cotangent = torch.ones_like(result)
            got = run_text(backward.text(printer), (saved, (cotangent,)), "backward")
        want = torch.autograd.grad(jitted(x, w), (x, w), cotangent)
        assert all(map(torch.equal, got, want))


def test_the_backward_frees_what_it_is_given() -> None:
    _, backward = after(trained(lambda x: x.sin().exp(), leaf(3)), "delete_last_used")
    text = backward.text("minimal")
    assert "del saved_for_backward, cotangents, C0, C1" in text


def test_names_are_consistent_between_forward_and_backward() -> None:
    def program(cotangents: torch.Tensor, t3: torch.Tensor) -> torch.Tensor:
        return (cotangents * t3).sin()

    x, y = leaf(3), leaf(3)
    jitted = trained(program, x, y)
    forward, backward = after(jitted, "delete_last_used")
    saved = {proxy.name for proxy in forward.output[1][0]}
    assert saved <= backward.names | {"cotangents"}
    want = torch.autograd.grad(program(x, y).sum(), (x, y))
    assert all(map(torch.equal, torch.autograd.grad(jitted(x, y).sum(), (x, y)), want))


@pytest.mark.parametrize("name", ["split", "minimal_saving", "rematerialisation"])
def test_every_pass_of_the_stage_may_be_left_out(name: str) -> None:
    x = leaf(3, 3)
    program = lambda x: (x @ x.t()).sin().exp()  # noqa: E731
    jitted = tm.jit(program, disable_passes=(name,))
    if name == "split":
        with torch.no_grad():
            assert torch.equal(jitted(x), program(x))
        return
    (got,) = torch.autograd.grad(jitted(x).sum(), x)
    (want,) = torch.autograd.grad(program(x).sum(), x)
    assert torch.equal(got, want)


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def scale_vjp(cotangents: Any, outputs: Any, x: tm.TensorProxy, factor: float) -> Any:
    (cotangent,) = cotangents
    return torch.mul(cotangent, factor + 100)


class UseScale(tm.Pass):
    """Replaces `torch.Tensor.mul` by a symbol with a derivative of its own, which is wrong on purpose."""

    name = "use_scale"
    stage = "dce"
    symbol = tm.Symbol("mine.scale", impl=scale, vjp=scale_vjp)

    def apply(self, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
        lines = [
            bsym.from_bsym(sym=self.symbol) if bsym.sym.name == "torch.Tensor.mul" else bsym
            for bsym in trace.bound_symbols
        ]
        return trace.replace(bound_symbols=lines)


def test_a_symbol_brings_its_own_derivative() -> None:
    x = leaf(3)
    jitted = tm.jit(lambda x: (x.sin() * 2.0).cos(), passes=(UseScale(),))
    (got,) = torch.autograd.grad(jitted(x).sum(), x)
    want = -(x.sin() * 2).sin() * 102 * x.cos()
    torch.testing.assert_close(got, want.detach())
    assert "mine_scale" in str(tm.last_traces(jitted)[-1])


def test_a_vjp_that_returns_the_wrong_number_is_named() -> None:
    class Wrong(UseScale):
        symbol = tm.Symbol("mine.wrong", impl=scale, vjp=lambda *args: (None, None))

    jitted = tm.jit(lambda x: x * 2.0, passes=(Wrong(),))
    with pytest.raises(tm.PassError, match=r"mine\.wrong.*each of the 1 tensor arguments"):
        jitted(leaf(3))


def test_a_backward_for_fewer_cotangents_says_so() -> None:
    x = leaf(3)
    jitted = tm.jit(lambda x: (x.sin(), x.exp()))
    sine, _ = jitted(x)
    (got,) = torch.autograd.grad(sine.sum(), x)
    assert torch.equal(got, x.cos().detach())


def test_gradients_flow_through_a_symbol_that_is_recorded_by_its_meta() -> None:
    """Its meta says nothing of gradients, and what follows it is differentiated all the same."""
    twice = tm.Symbol(
        "mine.twice",
        impl=lambda x: x * 2,
        meta=lambda x: tm.TensorProxy(shape=x.shape),
        vjp=lambda cotangents, outputs, x: torch.mul(cotangents[0], 7),
    )

    @dataclass(frozen=True)
    class Rewrite(tm.Pass):
        name: ClassVar[str] = "rewrite"
        stage: ClassVar[str] = "dce"

        def apply(self, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
            made = trace.replace(bound_symbols=[])
            with tm.tracectx(made):
                made.output = torch.sin(twice(trace.args[0]))
            return made

    x = leaf(3)
    jitted = tm.jit(lambda x: (x * 2).sin(), passes=(Rewrite(),))
    (got,) = torch.autograd.grad(jitted(x).sum(), x)
    torch.testing.assert_close(got, 7 * (2 * x).cos().detach())
