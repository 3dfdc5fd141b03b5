"""The pipeline: the order of passes, what is kept of each, and what is said when one fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tracemill as tm
from tracemill.compiler.ordering import ordered, passes_for
from tracemill.compiler.plugins import Registered
from tracemill.compiler.trace import STAGES


def a_pass(
    name: str,
    *,
    stage: str = "dce",
    before: Any = (),
    after: Any = (),
    apply: Any = lambda self, trace, context: trace,
) -> tm.Pass:
    """A pass made on the spot; it does nothing unless told otherwise."""
    body = {"name": name, "stage": stage, "before": before, "after": after, "apply": apply}
    return dataclass(frozen=True)(type(name, (tm.Pass,), body))()


def registered(
    item: tm.Pass, distribution: str = "example", plugin: str = ""
) -> Registered[tm.Pass | tm.ProgramPass]:
    return Registered(item, plugin or f"{distribution}:plugin", distribution)


def names(passes: Any) -> list[str]:
    return [item.item.name for item in passes]


def double(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


X = torch.ones(3)


# Order


def test_the_order_of_tracemill_s_own_passes_is_by_stage() -> None:
    stages = [STAGES.index(item.item.stage) for item in passes_for()]
    assert stages == sorted(stages)
    order = names(passes_for())
    assert order[:3] == ["acquire", "functionalise", "proxy_renaming"]
    assert order.index("dce") < order.index("cse")


def test_within_a_stage_ours_come_first_then_by_distribution_and_name() -> None:
    passes = [
        registered(a_pass("b"), "second"),
        registered(a_pass("c"), "first"),
        registered(a_pass("a"), "second"),
        registered(a_pass("z"), "tracemill"),
    ]
    assert names(ordered(passes)) == ["z", "c", "a", "b"]


def test_before_and_after_go_before_that() -> None:
    passes = [
        registered(a_pass("mine", before=("dce",))),
        registered(a_pass("dce"), "tracemill"),
        registered(a_pass("cse", after=("dce",)), "tracemill"),
        registered(a_pass("last", after=("cse",)), "a"),
    ]
    assert names(ordered(passes)) == ["mine", "dce", "cse", "last"]


@st.composite
def constrained(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Passes whose constraints follow the order of their numbers, so that there is no cycle, and a shuffle of them."""
    count = draw(st.integers(1, 8))
    passes: list[Any] = []
    for number in range(count):
        earlier = draw(st.sets(st.integers(0, number - 1))) if number else set()
        later = draw(st.sets(st.integers(number + 1, count - 1))) if number < count - 1 else set()
        item = a_pass(
            f"p{number}",
            before=tuple(f"p{n}" for n in sorted(later)),
            after=tuple(f"p{n}" for n in sorted(earlier)),
        )
        passes.append(registered(item, draw(st.sampled_from(["tracemill", "a", "b"]))))
    return passes, draw(st.permutations(passes))


@given(constrained())
def test_the_order_keeps_every_constraint_and_does_not_depend_on_registration(
    drawn: tuple[list[Any], list[Any]],
) -> None:
    passes, shuffled = drawn
    order = names(ordered(passes))
    assert names(ordered(shuffled)) == order
    for item in passes:
        for other in item.item.before:
            assert order.index(item.item.name) < order.index(other)
        for other in item.item.after:
            assert order.index(other) < order.index(item.item.name)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            a_pass("p", after=("dse",)),
            r"to run after 'dse', which is no known pass; known are .*dce",
        ),
        (
            a_pass("p", before=("acquire",)),
            r"before 'acquire', which is of stage interpretation, not dce",
        ),
        (a_pass("p", after="dce"), r"after = 'dce'; a tuple of names is wanted: \('dce',\)"),
        (
            a_pass("p", stage="dead_code"),
            r"unknown stage 'dead_code'; the stages are interpretation",
        ),
    ],
)
def test_an_order_that_means_nothing_is_an_error_that_names_the_plugin(
    item: tm.Pass, message: str
) -> None:
    known = [
        registered(a_pass("acquire", stage="interpretation"), "tracemill"),
        registered(a_pass("dce"), "tracemill"),
    ]
    with pytest.raises(
        tm.PluginError, match=f"pass 'p' of plugin 'mine:x' of distribution 'mine'.*{message}"
    ):
        ordered([*known, registered(item, "mine", "mine:x")])


def test_a_cycle_names_its_passes_and_their_plugins() -> None:
    passes = [
        registered(a_pass("one", before=("two",)), "first"),
        registered(a_pass("two", before=("one",)), "second"),
    ]
    with pytest.raises(
        tm.PluginError, match=r"(one -> two -> one|two -> one -> two).*first.*second"
    ):
        ordered(passes)


# Passes of one function


@dataclass(frozen=True)
class Renamed(tm.Pass):
    """Gives the computation another name."""

    to: str = "program"
    name: ClassVar[str] = "renamed"
    stage: ClassVar[str] = "executor_fusion"
    after: ClassVar[tuple[str, ...]] = ("delete_last_used",)
    roles: ClassVar[tuple[str, ...]] = ("computation",)

    def apply(self, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
        return trace.replace(name=self.to)


def test_a_pass_for_one_function() -> None:
    fast = tm.jit(double, passes=[Renamed("doubled")])
    assert torch.equal(fast(X), double(X))
    assert "def doubled(x):" in str(tm.last_traces(fast)[-1])
    assert tm.last_report(fast)[-1].name == "renamed"
    other = tm.jit(double)
    other(X)
    assert "renamed" not in [report.name for report in tm.last_report(other)]


def test_a_pass_of_a_registered_class_takes_its_place() -> None:
    class Plugin:
        @tm.hookimpl
        def tracemill_passes(self) -> list[tm.Pass]:
            return [Renamed("by_plugin")]

    plugin = Plugin()
    tm.register_plugin(plugin)
    try:
        found = [
            item.item for item in passes_for([Renamed("other")]) if item.item.name == "renamed"
        ]
        assert found == [Renamed("other")]
        with pytest.raises(tm.OptionError, match="has a pass named 'renamed' already"):
            tm.jit(double, passes=[a_pass("renamed")])
    finally:
        tm.unregister_plugin(plugin)


def test_what_passes_takes_is_checked() -> None:
    with pytest.raises(
        tm.OptionError, match=r"Renamed is a class; an instance is wanted: Renamed\(\)"
    ):
        tm.jit(double, passes=[Renamed])  # type: ignore[list-item]
    with pytest.raises(tm.PluginError, match="unknown stage"):
        tm.jit(double, passes=[a_pass("p", stage="x")])


def test_disabled_passes_do_not_run() -> None:
    fast = tm.jit(double, disable_passes=["dce", "delete_last_used"])  # `cse` is ordered after dce
    assert torch.equal(fast(X), double(X))
    ran = [report.name for report in tm.last_report(fast)]
    assert "cse" in ran
    assert not {"dce", "delete_last_used"} & set(ran)
    with pytest.raises(tm.OptionError, match="unknown pass 'dse'"):
        tm.jit(double, disable_passes=["dse"])
    with pytest.raises(tm.OptionError, match="'acquire' cannot be disabled"):
        tm.jit(double, disable_passes=["acquire"])


# What is kept


def test_a_trace_that_a_pass_leaves_alone_stays_itself() -> None:
    fast = tm.jit(double, passes=[a_pass("nothing", after=("cse",))])
    fast(X)
    traces = tm.last_traces(fast)
    after_cse = [report.name for report in tm.last_report(fast)].index("nothing")
    assert traces[after_cse] is traces[after_cse - 1]
    assert traces[after_cse].constructed_by == "cse"


def test_each_stage_has_its_printer_and_the_last_text_is_the_program() -> None:
    fast = tm.jit(double, printer={"dce": "verbose", "*": "minimal"})
    fast(X)
    for trace in tm.last_traces(fast):
        wanted = "verbose" if trace.stage == "dce" else "minimal"
        assert str(trace) == trace.text() == trace.text(wanted)


class Failing(tm.Printer):
    """A printer that cannot print."""

    name: ClassVar[str] = "failing"

    def beside(self, bsym: tm.BoundSymbol, trace: tm.Trace) -> str:
        raise ZeroDivisionError("no ink")


def test_a_printer_that_fails_is_named() -> None:
    with pytest.raises(
        tm.PrinterError, match=r"'failing' \(.*test_pipeline.Failing\) failed.*no ink"
    ):
        tm.jit(double, printer=Failing())(X)


def test_a_printer_that_fails_at_another_stage_does_not_keep_the_program_from_running() -> None:
    fast = tm.jit(double, printer={"dce": Failing(), "*": "default"})
    assert torch.equal(fast(X), double(X))
    after_dce = [report.name for report in tm.last_report(fast)].index("dce")
    for traces in (tm.last_traces(fast), tm.last_prologue_traces(fast)):
        with pytest.raises(tm.PrinterError, match="no ink"):
            str(traces[after_dce])


def test_what_is_no_printer_is_refused() -> None:
    with pytest.raises(tm.OptionError, match=r"neither a printer's name nor a tracemill.Printer"):
        tm.jit(double, printer=print)
    with pytest.raises(tm.OptionError, match="unknown stage 'dse'"):
        tm.jit(double, printer={"dse": "minimal"})


# Passes that fail


def fails(self: Any, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
    raise ZeroDivisionError("by zero")


def gives_nothing(self: Any, trace: tm.Trace, context: tm.PassContext) -> None: ...


def edits(self: Any, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
    trace.bound_symbols.pop()
    return trace


def forgets_a_line(self: Any, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
    return trace.replace(bound_symbols=trace.bound_symbols[1:])


@pytest.mark.parametrize("printer", ["default", Failing()], ids=["default", "failing"])
@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (fails, "ZeroDivisionError: by zero"),
        (gives_nothing, "TypeError: apply returned None, not a Trace"),
        (edits, "TypeError: it edited the computation that it was given"),
    ],
    ids=["raises", "returns None", "edits"],
)
def test_a_pass_that_fails_is_named_with_its_plugin_stage_and_trace(
    apply: Any, message: str, printer: Any
) -> None:
    fast = tm.jit(double, printer=printer, passes=[a_pass("bad", apply=apply, after=("cse",))])
    with pytest.raises(tm.PassError) as caught:
        fast(X)
    text = str(caught.value)
    assert text.startswith("pass 'bad' of stage dce, of plugin 'passes= (")
    assert message in text
    assert "torch.sin(x)" in text
    assert caught.value.__cause__ is not None
    earlier = tm.last_traces(fast)
    assert [report.name for report in tm.last_report(fast)][-1] == "cse"
    assert torch.equal(earlier[-1].callable("minimal")(X), double(X))


@pytest.mark.parametrize("setting", [None, "1"])
def test_an_ill_formed_trace_of_a_third_party_is_always_found(
    setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting is None:
        monkeypatch.delenv("TRACEMILL_VERIFY")
    fast = tm.jit(double, passes=[a_pass("bad", apply=forgets_a_line, after=("cse",))])
    with pytest.raises(tm.TraceError) as caught:
        fast(X)
    text = str(caught.value)
    assert "'t0' is used but not defined here" in text
    assert "  t1 = torch.Tensor.mul(t0, 2)" in text
    assert text.splitlines()[-1].startswith("made by pass 'bad' of stage dce, of plugin 'passes= (")
    assert torch.equal(tm.last_traces(fast)[-1](X), double(X))


def test_a_refusal_reaches_the_caller_as_it_is() -> None:
    def refuses(self: Any, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
        raise tm.UnsupportedError("not this one")

    fast = tm.jit(double, passes=[a_pass("refusing", apply=refuses)])
    with pytest.raises(tm.UnsupportedError, match=r"^not this one$"):
        fast(X)


def test_what_the_user_s_program_raises_reaches_the_caller_as_it_is() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        tm.jit(program)(X)


# The report


def test_the_report_prints_as_a_table() -> None:
    def counted(self: Any, trace: tm.Trace, context: tm.PassContext) -> tm.Trace:
        context.report["lines seen"] = len(trace.bound_symbols)
        return trace

    fast = tm.jit(double, passes=[a_pass("counted", apply=counted, after=("cse",))])
    fast(X)
    report = tm.last_report(fast)
    by_name = {entry.name: entry for entry in report}
    assert by_name["counted"].facts == {"lines seen": 2}
    assert by_name["cse"].facts == {}
    entry = by_name["delete_last_used"]
    assert (entry.stage, entry.symbols_after) == ("executor_fusion", entry.symbols_before + 1)
    assert all(item.seconds > 0 for item in report)
    lines = str(report).splitlines()
    assert lines[0].split() == ["stage", "pass", "time", "symbols", "before", "after", "facts"]
    assert len(lines) == len(report) + 1
    assert lines[-1].startswith("executor_fusion")
    assert "<td>counted</td>" in report._repr_html_()


# Observers


class Watches:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    @tm.hookimpl
    def tracemill_before_pass(self, pass_: Any, program: tm.Program) -> None:
        self.seen.append(("before", pass_.name, program))

    @tm.hookimpl
    def tracemill_after_pass(
        self, pass_: Any, before: tm.Program, program: tm.Program, seconds: float, context: Any
    ) -> None:
        self.seen.append(("after", pass_.name, before, program, seconds, context))


@pytest.fixture
def watching() -> Iterator[Watches]:
    plugin = Watches()
    tm.register_plugin(plugin)
    yield plugin
    tm.unregister_plugin(plugin)


def test_observers_are_given_the_programs_and_the_seconds(watching: Watches) -> None:
    fast = tm.jit(double)
    fast(X)
    traces = tm.last_traces(fast)
    befores, afters = watching.seen[::2], watching.seen[1::2]
    ran = [report.name for report in tm.last_report(fast)]
    assert [event[1] for event in befores] == [event[1] for event in afters] == ran
    for before, (_, _, given_, made, seconds, context), trace in zip(
        befores, afters, traces, strict=True
    ):
        assert before[2] is given_
        assert made.computation is trace
        assert seconds > 0
        assert context is afters[0][-1]
    watching.seen.clear()
    fast(X)  # a hit compiles nothing
    assert watching.seen == []


def test_an_observer_that_fails_is_named() -> None:
    class Stumbles:
        @tm.hookimpl
        def tracemill_after_pass(self, pass_: Any) -> None:
            raise OSError("disk full")

    plugin = Stumbles()
    tm.register_plugin(plugin, "stumbles")
    try:
        with pytest.raises(
            tm.PluginError,
            match="tracemill_after_pass of plugin 'stumbles' failed: OSError: disk full",
        ):
            tm.jit(double)(X)
    finally:
        tm.unregister_plugin(plugin)
