"""Which code a traced program runs, and what that code mentions."""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import dis
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest
import torch

import tracemill as tm
from tracemill.passes.interpretation.python.usage import Usage
from tracemill.passes.interpretation.python.watch import (
    Watch,
    global_names,
    inner_codes,
    mentioned,
)

SCALE = 2


def _watched(run: Callable[[], Any]) -> Watch:
    watch = Watch(lambda _code, _frame, _whole: None)
    with watch:
        run()
    return watch


def test_the_users_code_is_met_once_each_and_before_it_runs() -> None:
    order: list[str] = []

    def inner() -> None:
        order.append("inner ran")

    def outer() -> None:
        order.append("outer ran")
        inner()
        inner()

    def first(code: CodeType, _frame: FrameType, _whole: bool) -> None:
        order.append(f"{code.co_name} met")

    with Watch(first) as watch:
        outer()
    assert order == ["outer met", "outer ran", "inner met", "inner ran", "inner ran"]
    assert [code.co_name for code in watch.codes] == ["outer", "inner"]


def test_torchs_code_is_left_out_but_names_of_its_modules_count() -> None:
    norm = torch.nn.LayerNorm(2)
    watch = _watched(lambda: norm(torch.ones(2)))
    assert [code.co_name for code in watch.codes] == ["<lambda>"]
    assert {"eps", "normalized_shape"} <= watch.unseen_names


def test_the_standard_library_is_left_out() -> None:
    watch = _watched(lambda: functools.reduce(max, [1, 2]) and __import__("textwrap").dedent("a"))
    assert [code.co_name for code in watch.codes] == ["<lambda>"]


IMPORTED_LATE = """
import os

scale = 2
registered = {}

def double(x):
    return x * scale

def register(function):
    registered[function.__name__] = function
    return function

@register
def call(x):
    return registered["call"] is call and double(x)
"""


def test_what_a_module_makes_while_it_is_imported_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").write_text(IMPORTED_LATE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def fn(x: torch.Tensor) -> torch.Tensor:
        import imported_late  # pyright: ignore[reportMissingImports]

        return imported_late.call(x)

    jitted, x = tm.jit(fn), torch.ones(2)
    assert torch.equal(jitted(x), x * 2)
    module: Any = sys.modules.pop("imported_late")
    monkeypatch.setitem(sys.modules, "imported_late", module)  # for this test alone
    assert {"os", "scale", "registered", "double", "register", "call"} <= vars(module).keys()
    assert list(module.registered) == ["call"]
    assert torch.equal(jitted(x), x * 2)
    assert tm.cache_info(jitted).hits == 1
    module.scale = 3  # seen after all, where the program runs it
    assert torch.equal(jitted(x), x * 3)


def test_nested_code_and_strings_are_mentioned() -> None:
    def outer(x: Any) -> Any:
        return [lambda: x.inside, getattr(x, "by_string"), ("in", "a tuple")]  # noqa: B009

    assert {"inside", "by_string", "in", "a tuple"} <= set(mentioned(outer.__code__))
    assert "inside" not in set(global_names(outer.__code__))
    assert set(global_names(outer.__code__)) == {"getattr"}


@pytest.mark.parametrize("module", [argparse, dataclasses, inspect])
def test_global_names_are_those_that_dis_finds(module: ModuleType) -> None:
    opcodes = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
    code = compile(inspect.getsource(module), "<test>", "exec")
    expected = [
        instruction.argval
        for inner in inner_codes(code)
        for instruction in dis.get_instructions(inner)
        if instruction.opname in opcodes
    ]
    assert len(expected) > 100
    assert list(global_names(code)) == expected


@pytest.mark.parametrize(
    ("code", "reads", "counts", "appends"),
    [
        ("s.n = 1", False, False, True),
        ("s.n = 1\ns.n += 1", True, False, False),
        ("s.n += 1\ndel s.n", True, False, False),
        ("s.n += 1", True, True, False),
        ("s.n = s.n + 1", True, True, False),
        ("s.n -= 2\ns.n += 1", True, True, False),
        ("s.n = s.n * 2", True, False, False),
        ("s.n = s.n + k", True, False, False),
        ("s.m = s.n + 1", True, False, False),
        ("s.n += 1\nprint(s.n)", True, False, False),
        ("s.n += 1\nf(s, 'n')", True, False, False),
        ("s.n.append(1)", True, False, True),
        ("s.n.append(1)\nlen(s.n)", True, False, False),
        ("f(s.n)", True, False, False),
    ],
)
def test_how_code_uses_a_name(code: str, reads: bool, counts: bool, appends: bool) -> None:
    usage = Usage([compile(code, "<test>", "exec")], (), whole=False)
    assert (usage.reads("n"), usage.only_counts("n"), usage.only_appends("n")) == (
        reads,
        counts,
        appends,
    )


def test_a_name_that_unseen_code_knows_is_read() -> None:
    code = compile("s.n += 1", "<test>", "exec")
    assert not Usage([code], ["n"], whole=False).only_counts("n")
    assert not Usage([code], (), whole=True).only_counts("n")
    assert Usage([], (), whole=False).reads("n")


def test_a_profiler_that_is_installed_is_called_and_restored() -> None:
    seen: list[str] = []

    def profiler(frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE

    before = sys.getprofile()
    sys.setprofile(profiler)
    try:
        tm.jit(program)(torch.ones(2))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
    assert "program" in seen


def test_a_profiler_in_c_goes_on_afterwards() -> None:
    profile = cProfile.Profile()
    before = sys.getprofile()
    profile.enable()
    try:
        tm.jit(lambda x: x * SCALE)(torch.ones(2))
        len(sorted([1]))
    finally:
        profile.disable()
        sys.setprofile(before)
    assert any("sorted" in str(entry.code) for entry in profile.getstats())


def test_each_thread_watches_its_own_program() -> None:
    results: list[torch.Tensor] = []

    def work(scale: int) -> None:
        def program(x: torch.Tensor) -> torch.Tensor:
            return x * scale

        results.append(tm.jit(program)(torch.ones(1)))

    threads = [threading.Thread(target=work, args=(scale,)) for scale in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(float(result) for result in results) == list(range(8))
