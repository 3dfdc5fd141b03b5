"""diff: two stages of one program side by side."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tracemill as tm
from tests.printers.browser import CHROMIUM, Browser
from tests.printers.test_html import Page


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    y.mean()  # nothing needs it
    return torch.nn.functional.layer_norm(y.sin() * y.sin(), (4,))


@pytest.fixture(scope="module")
def stages() -> dict[str, tm.Trace]:
    return stages_of(torch.randn(3, 4, requires_grad=True))


def stages_of(w: torch.Tensor) -> dict[str, tm.Trace]:
    jitted = tm.jit(program)
    jitted(torch.randn(2, 3), w)
    return {trace.constructed_by: trace for trace in tm.last_traces(jitted)}


@pytest.mark.parametrize(
    ("before", "after"),
    [("acquire", "proxy_renaming"), ("proxy_renaming", "cse"), ("cse", "delete_last_used")],
)
def test_text(
    stages: dict[str, tm.Trace], golden: Callable[[str, str], None], before: str, after: str
) -> None:
    golden(str(tm.diff(stages[before], stages[after])), f"{before}_{after}")


def test_a_narrow_text_wraps_and_loses_nothing(stages: dict[str, tm.Trace]) -> None:
    difference = tm.diff(stages["cse"], stages["delete_last_used"])
    lines = difference.text(width=60).splitlines()
    assert max(map(len, lines[1:])) <= 60
    rights = "".join(line.partition(" |")[2].replace(" ", "") for line in lines[1:])
    assert rights == "".join(
        row.after.replace(" ", "").replace("\n", "") for row in difference.rows
    )


def test_rows_say_what_came_went_and_changed() -> None:
    stages = stages_of(torch.randn(3, 4))
    rows = tm.diff(stages["proxy_renaming"], stages["cse"]).rows
    assert [(row.kind, row.before, row.after) for row in rows if row.kind != "same"] == [
        ("removed", "  t1 = torch.Tensor.mean(t0)", ""),
        ("removed", "  t3 = torch.Tensor.sin(t0)", ""),
        ("changed", "  t4 = torch.Tensor.mul(t2, t3)", "  t4 = torch.Tensor.mul(t2, t2)"),
    ]


def test_a_line_whose_value_is_made_otherwise_has_changed() -> None:
    x = tm.TensorProxy("x", shape=(3,))
    traces: list[tm.Trace] = []
    for operation in (torch.square, torch.sin):
        trace = tm.Trace("computation", [x])
        with tm.tracectx(trace):
            trace.output = operation(x)  # type: ignore[arg-type]
        traces.append(trace)
    kinds = [row.kind for row in tm.diff(*traces).rows]
    assert kinds == ["same", "changed", "same"]


def test_a_trace_and_itself_are_the_same(stages: dict[str, tm.Trace]) -> None:
    for trace in stages.values():
        assert {row.kind for row in tm.diff(trace, trace).rows} == {"same"}


def test_long_calls_stand_on_several_lines_of_one_row() -> None:
    values = [tm.TensorProxy(f"a_rather_long_name_{n}", shape=(2,)) for n in range(8)]
    trace = tm.Trace("computation", values)
    with tm.tracectx(trace):
        trace.output = torch.cat(values)  # type: ignore[arg-type]
    signature, call, returned = tm.diff(trace, trace.replace(output=None)).rows
    assert signature.before.count("\n") == call.before.count("\n") - 2 == 9
    assert returned == ("changed", "  return t0", "  return None")


def test_a_page_has_a_row_for_each_operation() -> None:
    stages = stages_of(torch.randn(3, 4))
    difference = tm.diff(stages["proxy_renaming"], stages["cse"])
    html = difference._repr_html_()
    page = Page(html)
    assert html.isascii()
    assert [a["class"] for tag, a in page.elements if tag == "tr" and a] == [
        row.kind for row in difference.rows
    ]
    assert "t4 = torch.Tensor.mul(t2, <mark>t3</mark>)" in html
    assert "t4 = torch.Tensor.mul(t2, <mark>t2</mark>)" in html


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_in_a_browser_what_went_stands_beside_an_empty_cell(
    stages: dict[str, tm.Trace], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        browser.show(tm.diff(stages["proxy_renaming"], stages["cse"])._repr_html_())
        colours = "[...document.querySelectorAll('tr.removed td')]"
        got = browser.run(f"{colours}.map(e => getComputedStyle(e).backgroundColor)")
    assert len(got) == 2
    assert got[0] != "rgba(0, 0, 0, 0)"
    assert got[1] == "rgba(0, 0, 0, 0)"
