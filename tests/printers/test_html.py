"""html: a trace on a page shows the program, escaped, with types, source lines and links."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import tracemill as tm
from tests.printers.browser import CHROMIUM, Browser
from tests.programs import last_traces
from tracemill.printers.html import HtmlPrinter

VOID = {"meta", "br"}
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


class Page(HTMLParser):
    """A page's elements, and its text without the style sheet; every element must be closed, in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data

    def having(self, css: str) -> list[dict[str, str]]:
        """The attributes of the elements of a class."""
        return [
            attributes
            for _, attributes in self.elements
            if css in attributes.get("class", "").split()
        ]


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x @ w, dim=-1)  # <b>"naïve" & more</b>
    return y.log()


@pytest.fixture
def trained() -> Callable[..., Any]:
    jitted = tm.jit(program)
    jitted(torch.randn(2, 3), torch.randn(3, 4, requires_grad=True))
    return jitted


def both(jitted: Callable[..., Any]) -> Iterator[tm.Trace]:
    yield tm.last_traces(jitted)[-1]
    yield tm.last_backward_traces(jitted)[-1]


def ids(page: Page) -> set[str]:
    """The places that links can lead to."""
    return {attributes["id"] for _, attributes in page.elements if "id" in attributes}


def uses(jitted: Callable[..., Any], name: str) -> int:
    """How often the program names a value."""
    return len(re.findall(rf"\b{name}\b", tm.last_traces(jitted)[-1].text("minimal")))


def test_its_text_is_the_program_and_what_runs_is_python(trained: Callable[..., Any]) -> None:
    for trace in both(trained):
        html = trace.text("html")
        assert html.isascii()
        assert Page(html).text.strip() == trace.text("default").strip()
        assert tm.printers.get("html").code(trace).source == trace.text("default")


@pytest.mark.parametrize("base", ["minimal", "verbose", "script"])
def test_it_shows_any_printers_program(trained: Callable[..., Any], base: str) -> None:
    printer = HtmlPrinter(tm.printers.get(base))
    for trace in both(trained):
        assert Page(trace.text(printer)).text.strip() == trace.text(base).strip()


def test_every_trace_of_a_program_can_be_shown(trained: Callable[..., Any]) -> None:
    for traces in (tm.last_prologue_traces, tm.last_traces, tm.last_backward_traces):
        for trace in traces(trained):
            assert Page(trace.text("html")).text.strip() == str(trace).strip()


def writes(x: torch.Tensor) -> torch.Tensor:
    x[..., :2] = 0.0
    return x.relu_() if x.sum() > 0 else x.neg_()


def tuples(x: torch.Tensor) -> dict[str, torch.Tensor]:
    values = x.topk(2)[0]
    with torch.autocast("cpu", torch.bfloat16):
        return {"größe": values @ values.mT, "mask": torch.nn.functional.dropout(x)[x > 0.5]}


def halves(x: torch.Tensor) -> torch.Tensor:
    return x[: x.shape[0] // 2].sin() * x.shape[0]


class Pairs(tm.FusionExecutor):
    name = "pairs"

    def can_fuse(self, bsym: tm.BoundSymbol) -> bool:
        return True

    def fuse(self, region: tm.Region) -> tm.BoundSymbol:
        return region.bind(region.trace.callable("minimal"))


TARGETS: dict[str, Any] = {
    "writes": writes,
    "tuples": tuples,
    "halves": halves,
    "module": torch.nn.LSTM(4, 4),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "symbolic": {"cache": "symbolic values"},
    "regions": {"executors": [Pairs()]},
    "verbose": {"printer": "verbose"},
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_kind_of_program_can_be_shown(target: Any, options: dict[str, Any]) -> None:
    jitted = tm.jit(target, **options)
    with torch.no_grad():
        jitted(torch.rand(4, 4))
    for trace in last_traces(jitted):
        assert Page(trace._repr_html_()).text.strip() == str(trace).strip()


def test_a_value_tells_its_type_and_the_line_that_made_it(trained: Callable[..., Any]) -> None:
    tips = [
        value["data-tip"]
        for value in Page(tm.last_traces(trained)[-1].text("html")).having("value")
    ]
    line = program.__code__.co_firstlineno + 1
    assert 'x: "cpu f32[2, 3]"' in tips
    source = f'test_html.py:{line}  y = torch.softmax(x @ w, dim=-1)  # <b>"naïve" & more</b>'
    assert f't1: "cpu f32[2, 4]"\n{source}' in tips


def test_an_operation_tells_its_aten_operations(trained: Callable[..., Any]) -> None:
    page = Page(tm.last_traces(trained)[-1].text("html"))
    tips = [operation["data-tip"] for operation in page.having("operation")]
    assert any("t0 = torch.ops.aten.mm.default(x, w)" in tip for tip in tips)


def test_backward_lines_link_to_the_forward_lines(trained: Callable[..., Any]) -> None:
    forward, backward = (Page(trace.text("html")) for trace in both(trained))
    places = ids(forward)
    links = [attributes for tag, attributes in backward.elements if tag == "a"]
    assert links
    assert {link["href"].removeprefix("#") for link in links} <= places
    assert links[0]["data-tip"].startswith("differentiates t2 = torch.Tensor.log(t1)\n")
    assert not ids(backward)
    with torch.no_grad():
        trained(torch.randn(2, 3), torch.randn(3, 4))
    assert not ids(Page(tm.last_traces(trained)[-1].text("html")))


def test_regions_of_a_backward_link_to_regions_of_the_forward() -> None:
    jitted = tm.jit(lambda x: (x.sin() * 2).cos(), executors=[Pairs()])
    jitted(torch.randn(3, requires_grad=True)).sum().backward()
    forward, backward = (Page(trace.text("html")) for trace in both(jitted))
    (link,) = [attributes for tag, attributes in backward.elements if tag == "a"]
    assert link["href"].removeprefix("#") in ids(forward)
    assert "torch.cos(" in link["data-tip"]


def test_uses_of_one_name_have_one_class(trained: Callable[..., Any]) -> None:
    text = tm.last_traces(trained)[-1].text("html")
    values = Page(text).having("value")
    classes = {value["data-tip"].split(":")[0]: value["class"] for value in values}
    assert len(set(classes.values())) == len(classes)
    number = classes["t1"].split()[-1]
    assert f".tracemill:has(.{number}:hover) .{number}" in text
    assert sum(value["class"] == classes["t1"] for value in values) == uses(trained, "t1")


def test_a_keyword_argument_of_the_same_name_is_no_use() -> None:
    trace = tm.Trace("computation", [tm.TensorProxy("dim", shape=(3,))])
    with tm.tracectx(trace):
        trace.output = torch.sum(trace.args[0], dim=0)  # type: ignore[call-overload]
    assert len(Page(trace.text("html")).having("value")) == 4  # dim, dim, and t0 twice


def test_it_is_the_same_each_time(trained: Callable[..., Any]) -> None:
    for trace in both(trained):
        assert trace.text("html") == trace.text("html")
        assert "0x" not in trace.text("html")


def test_a_notebook_shows_the_traces_own_text(trained: Callable[..., Any]) -> None:
    trace = tm.last_traces(trained)[-1]
    assert trace._repr_html_() == trace.text("html")
    minimal = trace.replace(printer="minimal")
    assert Page(minimal._repr_html_()).text.strip() == trace.text("minimal").strip()


def test_a_program_may_ask_for_pages_and_runs_python() -> None:
    jitted = tm.jit(torch.sin, printer="html")
    x = torch.randn(3, requires_grad=True)
    (got,) = torch.autograd.grad(jitted(x).sum(), x)
    assert torch.equal(got, x.cos().detach())
    trace = tm.last_traces(jitted)[-1]
    assert trace.text().startswith("<style>")
    assert "torch.sin(" in str(trace)
    assert torch.equal(trace(x)[0], x.sin().detach())


def test_without_pygments_only_the_colours_are_missing(
    trained: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tm.last_traces(trained)[-1]
    coloured = Page(trace.text("html"))
    monkeypatch.setitem(sys.modules, "pygments.lexers.python", None)
    plain = Page(trace._repr_html_())
    assert plain.text == coloured.text
    assert plain.having("value") == coloured.having("value")
    assert coloured.having("c")
    assert not plain.having("c")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as browser:
        yield browser


@needs_browser
def test_in_a_browser_all_uses_of_the_name_under_the_pointer_light_up(
    trained: Callable[..., Any], browser: Browser
) -> None:
    browser.show("".join(trace.text("html") for trace in both(trained)))
    index = browser.run(
        "[...document.querySelectorAll('.value')].findIndex(e => e.textContent == 't1')"
    )
    browser.point_at(".value", index)
    lit = browser.run(
        "[...document.querySelectorAll('.value')]"
        ".filter(e => getComputedStyle(e).backgroundColor != 'rgba(0, 0, 0, 0)')"
        ".map(e => e.textContent)"
    )
    assert lit == ["t1"] * uses(trained, "t1")
    tip = f"getComputedStyle(document.querySelectorAll('.value')[{index}], '::before').content"
    assert "cpu f32[2, 4]" in browser.run(tip)


@needs_browser
def test_in_a_browser_a_link_leads_to_the_forward_line(
    trained: Callable[..., Any], browser: Browser
) -> None:
    browser.show("".join(trace.text("html") for trace in both(trained)))
    browser.point_at("a.operation", click=True)
    assert browser.run("document.querySelector('.line:has(:target)').textContent").startswith(
        "t2 = torch.Tensor.log(t1)"
    )


@needs_browser
@pytest.mark.parametrize(
    ("page", "system", "dark"),
    [("", "light", False), ("", "dark", True), ("dark", "light", True), ("light", "dark", False)],
)
def test_in_a_browser_its_colours_are_the_pages_or_the_systems(
    trained: Callable[..., Any], browser: Browser, page: str, system: str, dark: bool
) -> None:
    feature = {"name": "prefers-color-scheme", "value": system}
    browser.command("Emulation.setEmulatedMedia", features=[feature])
    text = tm.last_traces(trained)[-1].text("html")
    browser.show(f"<body{f' data-theme={page}' if page else ''}>{text}")
    colour = browser.run("getComputedStyle(document.querySelector('.tracemill')).color")
    assert (min(map(int, colour[4:-1].split(","))) > 128) is dark
