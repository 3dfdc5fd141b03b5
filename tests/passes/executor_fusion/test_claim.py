"""Regions: what is fused, what is left out and why, and that the program's results stay eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

import tracemill as tm


class Chain(tm.FusionExecutor):
    """Fuses all that it may, and runs a region's own text."""

    name = "chain"

    def __init__(self, *unfusible: Callable[..., Any], strict: bool = False) -> None:
        self.unfusible = set(map(tm.symbol, unfusible))
        self.strict = strict
        self.regions: list[tm.Region] = []

    def can_fuse(self, bsym: tm.BoundSymbol) -> bool:
        return bsym.sym not in self.unfusible

    def fuse(self, region: tm.Region) -> tm.BoundSymbol:
        self.regions.append(region)
        return region.bind(region.trace.callable("minimal"))


def fused(fn: Callable[..., Any], *unfusible: Callable[..., Any], **options: Any) -> Any:
    return tm.jit(fn, executors=[Chain(*unfusible)], **options)


def sizes(jf: Any, role: str = "computation") -> list[int]:
    """How many lines each region has."""
    traces = {"computation": tm.last_traces, "backward": tm.last_backward_traces}[role](jf)
    return [
        len(bsym.subsymbols)
        for bsym in traces[-1].bound_symbols
        if type(bsym.sym).__name__ == "FusedSymbol"
    ]


def fact(jf: Any, role: str = "computation") -> str:
    (report,) = [report for report in tm.last_report(jf) if report.name == "claim"]
    return report.facts[f"chain, {role}:"]


def same(got: Any, want: Any) -> bool:
    return all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def around_a_product(x: torch.Tensor, w: torch.Tensor) -> Any:
    a = (x.sin() * 2).exp()
    b = a @ w
    c = b.cos() + a
    return c.t(), (a + 1).relu(), c


def test_regions_stand_around_what_cannot_fuse(golden: Any) -> None:
    jf = fused(around_a_product, torch.Tensor.matmul)
    x, w = torch.randn(3, 3), torch.randn(3, 3)
    assert same(jf(x, w), around_a_product(x, w))
    golden(str(tm.last_traces(jf)[-1]), "regions")
    assert fact(jf) == "2 regions (5 + 2 lines), left out: 1 not supported"


def test_the_script_has_the_operations_in_place() -> None:
    jf = fused(around_a_product, torch.Tensor.matmul)
    x, w = torch.randn(3, 3), torch.randn(3, 3)
    want = jf(x, w)
    namespace: dict[str, Any] = {}
    exec(tm.last_traces(jf)[-1].text("script"), namespace)
    assert same(namespace["computation"](x, w), want)


def test_forward_and_backward_have_regions_of_their_own() -> None:
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
    jf = fused(around_a_product, torch.Tensor.matmul, torch.mm)
    outs = jf(x, w)
    cotangents = [torch.randn(out.shape) for out in outs]
    with torch.enable_grad():
        (want,) = torch.autograd.grad(around_a_product(x, w), x, cotangents)
    assert torch.equal(torch.autograd.grad(outs, x, cotangents)[0], want)
    assert sizes(jf)
    assert sizes(jf, "backward")
    assert "chain_backward0(" in str(tm.last_backward_traces(jf)[-1])


def test_views_that_leave_a_region_are_made_outside_and_share_memory_as_in_eager() -> None:
    def program(x: torch.Tensor) -> Any:
        base = x * 2 + 1
        top = base[0]
        return base, top, top.t(), (top * 3).exp()

    jf = fused(program)
    x = torch.randn(2, 3, 3)
    base, top, flipped, other = jf(x)
    assert same((base, top, flipped, other), program(x))
    top.zero_()
    assert torch.equal(base[0], torch.zeros(3, 3))
    assert torch.equal(flipped, torch.zeros(3, 3))
    assert len(sizes(jf)) == 1


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda x: functional.dropout(x.sin().cos(), 0.5).sin(), "1 random"),
        (lambda x: x.sin().reshape(-1).expand(2, 9).t(), "4 not worth a region"),
        (lambda x: x.sin(), "1 not worth a region"),
        (lambda x: torch.ones(3) + x.view(9)[:3], "4 not worth a region"),
    ],
)
def test_what_is_left_out_and_why(program: Callable[..., Any], reason: str) -> None:
    jf = fused(program)
    x = torch.randn(3, 3)
    torch.manual_seed(1)
    got = jf(x)
    torch.manual_seed(1)
    assert torch.equal(got, program(x))
    assert reason in fact(jf)


def test_a_write_stays_between_what_reads_before_and_after_it() -> None:
    def program(x: torch.Tensor) -> Any:
        before = x.sin() * 2
        x.add_(1)
        return before + x.sin() * 2, before

    jf = fused(program)
    x = torch.randn(3)
    for _ in range(2):
        ours, theirs = x.clone(), x.clone()
        assert same(jf(ours), program(theirs))
        assert torch.equal(ours, theirs)


def test_nothing_is_moved_above_a_check_that_it_depends_on() -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        if n < 3:
            return (x[n] * 2 + 1).sin()
        return x.sum() * 2 + 1

    jf = fused(program)
    x = torch.randn(3)
    for n in (0, 1, 7, 2, 9):
        assert torch.equal(jf(x, torch.tensor(n)), program(x, torch.tensor(n)))


class Failing(Chain):
    def fuse(self, region: tm.Region) -> tm.BoundSymbol:
        raise ValueError("no such instruction")


def test_a_region_that_does_not_compile_runs_on_the_next_executors() -> None:
    jf = tm.jit(around_a_product, executors=[Failing(torch.Tensor.matmul)])
    x, w = torch.randn(3, 3), torch.randn(3, 3)
    with pytest.warns(UserWarning, match="'chain' could not compile region chain0 .*no such instr"):
        got = jf(x, w)
    assert same(got, around_a_product(x, w))
    assert sizes(jf) == []
    assert "8 failed to compile" in fact(jf)


def test_a_strict_executor_raises_instead() -> None:
    jf = tm.jit(around_a_product, executors=[Failing(torch.Tensor.matmul, strict=True)])
    with pytest.raises(tm.PassError, match="no such instruction"):
        jf(torch.randn(3, 3), torch.randn(3, 3))


def test_an_executor_cuts_regions_where_it_says() -> None:
    class Pairs(Chain):
        def split(self, lines: Sequence[tm.BoundSymbol]) -> list[Sequence[tm.BoundSymbol]]:
            return [lines[n : n + 2] for n in range(0, len(lines), 2)]

    jf = tm.jit(lambda x: (x.sin() * 2).cos() + 1, executors=[Pairs()])
    x = torch.randn(3)
    assert torch.equal(jf(x), (x.sin() * 2).cos() + 1)
    assert sizes(jf) == [2, 2]


def test_the_next_executor_gets_what_the_first_leaves() -> None:
    mine = tm.OperatorExecutor("mine")
    mine.register(torch.Tensor.matmul, lambda a, b: torch.mm(a, b))
    jf = tm.jit(around_a_product, executors=[Chain(torch.Tensor.matmul), mine])
    x, w = torch.randn(3, 3), torch.randn(3, 3)
    assert same(jf(x, w), around_a_product(x, w))
    text = tm.last_traces(jf)[-1].text("minimal")
    assert "mine_matmul(" in text
    assert "chain0(" in text


def test_what_an_executor_before_it_runs_is_in_no_region() -> None:
    mine = tm.OperatorExecutor("mine")
    mine.register(torch.Tensor.cos, torch.cos)
    jf = tm.jit(lambda x: (x.sin() * 2).cos().exp() * 3, executors=[mine, Chain()])
    x = torch.randn(3)
    assert torch.equal(jf(x), (x.sin() * 2).cos().exp() * 3)
    assert sizes(jf) == [2, 2]


def test_an_executors_own_passes_run_where_it_is_asked_for() -> None:
    seen: list[str] = []

    class Watching(tm.Pass):
        name = "watching"
        stage = "executor_fusion"
        before = ("claim",)

        def apply(self, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
            seen.append(context.role)
            return trace

    executor = Chain()
    executor.passes = (Watching(),)
    tm.jit(lambda x: x.sin().cos(), executors=[executor])(torch.ones(2))
    tm.jit(lambda x: x.sin().cos())(torch.ones(2))
    assert seen == ["computation"]
