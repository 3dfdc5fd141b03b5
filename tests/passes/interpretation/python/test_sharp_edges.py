"""Calls whose results cannot be checked: allowed, warned of, or refused before they are made, naming the line."""

from __future__ import annotations

import datetime
import os
import random
import re
import secrets
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import tracemill as tm
from tracemill.compiler.errors import SharpEdgeError, SharpEdgeWarning

EDGES: dict[str, Callable[[], Any]] = {
    "random.random": lambda: random.random(),
    "random.getrandbits": lambda: random.randint(1, 4),
    "time.time": lambda: time.time(),
    "time.perf_counter": lambda: time.perf_counter(),
    "datetime.now": lambda: datetime.datetime.now().year,
    "os.environ": lambda: len(list(os.environ)),
    "os.urandom": lambda: os.urandom(1)[0],
    "print": lambda: print("text"),
    "write": lambda: sys.__stdout__ and sys.__stdout__.write(""),
    "open": lambda: open(os.devnull).close(),
    "random.seed": lambda: random.seed(1),
    "random.Random without a seed": lambda: random.Random().random(),
    "numpy.random.rand": lambda: numpy.random.rand(),
    "numpy.random.seed": lambda: numpy.random.seed(1),
    "time.strftime": lambda: int(time.strftime("%Y")),
    "uuid.uuid1": lambda: uuid.uuid1().version,
    "os.urandom(?# by uuid4)": lambda: uuid.uuid4().version,
    "os.urandom(?# by token_hex)": lambda: len(secrets.token_hex(2)),
    "os.stat": lambda: os.path.exists(os.devnull),
    "open(?# by read_text)": lambda: len(Path(os.devnull).read_text()),
    "subprocess": lambda: subprocess.run([sys.executable, "-c", ""], check=True).returncode,
    "sys.getrefcount": lambda: sys.getrefcount(EDGES),
    "sys.setswitchinterval": lambda: sys.setswitchinterval(0.005),
    "threading.Thread.start": lambda: threading.Thread(target=int).start(),
    "input": lambda: input(),
}


def _program(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    edge = EDGES[name]
    return lambda x: x * (edge() or 1)


@pytest.mark.parametrize("name", [name for name in EDGES if name != "input"])
def test_a_warning_names_the_call_and_its_line(name: str) -> None:
    with pytest.warns(SharpEdgeWarning) as caught:
        tm.jit(_program(name))(torch.ones(2))
    wanted = re.compile(rf"(?s){name}.* is called at .*test_sharp_edges.py")
    assert any(wanted.search(str(warning.message)) for warning in caught)


@pytest.mark.parametrize("name", EDGES)
def test_an_error_comes_before_the_call(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = random.getstate()
    with pytest.raises(SharpEdgeError, match=f"(?s){name}"):
        tm.jit(_program(name), sharp_edges="error")(torch.ones(2))
    assert capsys.readouterr().out == ""
    assert random.getstate() == before


def test_numpys_own_generator_is_seen_afterwards() -> None:
    program = lambda x: x * numpy.random.mtrand.rand()  # noqa: E731
    before: Any = numpy.random.get_state(legacy=False)
    with pytest.raises(SharpEdgeError, match=r"numpy\.random is drawn from"):
        tm.jit(program, sharp_edges="error")(torch.ones(2))
    numpy.testing.assert_equal(numpy.random.get_state(legacy=False), before)
    with pytest.warns(SharpEdgeWarning, match=r"numpy\.random is drawn from"):
        tm.jit(program)(torch.ones(2))


def test_a_tensor_is_printed_with_what_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("doubled:", y, sep=" ")
        return y + 1

    for start in (1.0, 5.0):
        jitted = tm.jit(program, sharp_edges="allow")
        program(torch.full((2,), start))
        want = capsys.readouterr().out
        jitted(torch.full((2,), start))
        assert capsys.readouterr().out == want
        jitted(torch.zeros(2))
        assert tm.cache_info(jitted).misses == 1


@pytest.mark.parametrize("name", [name for name in EDGES if name != "input"])
def test_allowed(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tm.jit(_program(name), sharp_edges="allow")(torch.ones(2))


def test_a_variable_of_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = tm.jit(lambda x: x * int(os.environ.get("TRACEMILL_TEST_SCALE", "1")))
    x = torch.ones(2)
    for scale, misses in ((1, 1), (1, 1), (3, 2), (3, 2), (1, 2)):
        monkeypatch.setenv("TRACEMILL_TEST_SCALE", str(scale))
        torch.testing.assert_close(jitted(x), x * scale)
        assert tm.cache_info(jitted).misses == misses


def test_the_lines_of_one_program_are_named_once_each() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + time.time()
        return x * time.monotonic()

    with pytest.warns(SharpEdgeWarning) as caught:
        tm.jit(program)(torch.ones(2))
    assert len(caught) == 2


def test_what_torch_and_tracemill_call_is_no_sharp_edge(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tm.jit(lambda x: torch.nn.functional.gelu(x).softmax(-1))(torch.ones(2))


def test_what_functions_told_that_tell_the_same_until_somebody_changes_it_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jitted = tm.jit(
        lambda x: x * len(os.getcwd()) + sys.getrecursionlimit() + os.getpid() * 0,
        sharp_edges="error",
    )
    limit, x = sys.getrecursionlimit(), torch.ones(2)
    for more, misses in ((0, 1), (0, 1), (7, 2), (0, 2)):
        sys.setrecursionlimit(limit + more)
        try:
            torch.testing.assert_close(jitted(x), x * len(os.getcwd()) + limit + more)
        finally:
            sys.setrecursionlimit(limit)
        assert tm.cache_info(jitted).misses == misses
    monkeypatch.chdir(tmp_path)
    torch.testing.assert_close(jitted(x), x * len(os.getcwd()) + limit)
    assert tm.cache_info(jitted).misses == 3


def test_a_program_that_sets_what_it_asks_for_is_warned_of() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(before + 1)
        return x

    limit = sys.getrecursionlimit()
    try:
        with pytest.warns(SharpEdgeWarning, match=r"sys\.setrecursionlimit"):
            tm.jit(program)(torch.ones(2))
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.filterwarnings("ignore:.*raises ValueError when it is traced")
@pytest.mark.filterwarnings("ignore::tracemill.SharpEdgeWarning")
def test_a_program_left_to_eager_draws_its_numbers_once() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        drawn = numpy.random.uniform() * random.random()
        if torch.compiler.is_compiling():
            raise ValueError("not while somebody compiles")
        return x * drawn

    def seeded(function: Callable[..., Any]) -> torch.Tensor:
        random.seed(0)
        numpy.random.seed(0)
        return function(torch.ones(1))

    assert torch.equal(seeded(tm.jit(program)), seeded(program))
