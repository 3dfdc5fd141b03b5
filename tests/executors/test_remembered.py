"""Remembered: a region that was compiled before, in whatever process, is found by what it does, and is only loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tracemill as tm
from tracemill.executors.inductor.description import described
from tracemill.executors.inductor.executor import InductorExecutor


class Describing(InductorExecutor):
    """Notes the descriptions of its regions, which then run on torch."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptions: list[str | None] = []

    def fuse(self, region: Any) -> tm.BoundSymbol:
        self.descriptions.append(described(region))
        return region.bind(region.trace.callable("minimal"))


def description(program: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> str | None:
    executor = Describing()
    tm.jit(program, executors=[executor], **options)(*inputs)
    (found,) = executor.descriptions
    return found


def run(program: Callable[..., Any], x: torch.Tensor, **settings: Any) -> None:
    """A first call, whose value is eager's."""
    jf = tm.jit(program, executors=[InductorExecutor(strict=True, settings=settings)])
    torch.testing.assert_close(jf(x), program(x))


def program(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin() + x.exp()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Inductor's; the headers that Inductor compiles lie elsewhere."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_what_was_compiled_before_is_only_loaded(cache: Path) -> None:
    run(program, torch.randn(7))
    graphs = cache / "fxgraph"  # what Inductor was asked for
    assert len(list((cache / "tracemill").iterdir())) == len(list(graphs.iterdir())) == 1
    shutil.rmtree(graphs)
    run(program, torch.randn(7))
    assert not graphs.exists()


def test_other_settings_and_other_inputs_are_compiled(cache: Path) -> None:
    x = torch.randn(7, 3)
    run(program, x)
    run(program, x, **{"cpp.max_horizontal_fusion_size": 15})
    run(program, torch.randn(3, 7).t())
    assert len(list((cache / "tracemill").iterdir())) == 3


def test_without_inductors_cache_nothing_is_remembered(cache: Path) -> None:
    run(program, torch.randn(7), force_disable_caches=True)
    assert not (cache / "tracemill").exists()


def test_what_is_gone_is_compiled_again(cache: Path) -> None:
    run(program, torch.randn(5))
    (entry,) = (cache / "tracemill").iterdir()
    text = entry.read_text()
    for broken in ("{}", text.replace(".py", ".gone")):
        entry.write_text(broken)
        run(program, torch.randn(5))
        assert entry.read_text() == text


SAME: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "names": (lambda x, y: (x + y).sin(), lambda a, b: (a + b).sin()),
    "spelling": (lambda x, y: (x + y).sin(), lambda x, y: torch.sin(torch.add(x, y))),
}

OTHER: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "constant": (lambda x, y: (x * 2 + y).sin(), lambda x, y: (x * 3 + y).sin()),
    "type of a constant": (lambda x, y: (x * 2 + y).sin(), lambda x, y: (x * 2.0 + y).sin()),
    "sign of zero": (lambda x, y: (x * 0.0 + y).sin(), lambda x, y: (x * -0.0 + y).sin()),
    "operation": (lambda x, y: (x + y).sin(), lambda x, y: (x + y).cos()),
    "one input twice": (lambda x, y: (x - y).sin() + x, lambda x, y: (x - y).sin() + y),
    "outputs": (lambda x, y: ((x + y).sin(), x * y), lambda x, y: (x * y, (x + y).sin())),
    "which of several outputs": (
        lambda x, y: (x + y).max(0)[0].sin(),
        lambda x, y: (x + y).max(0)[1].sin(),
    ),
    "what is returned": (
        lambda x, y: (x + y).sin(),
        lambda x, y: (lambda t: (t, t.sin()))(x + y),
    ),
    "dtype": (lambda x, y: (x + y).double().sin(), lambda x, y: (x + y).long().sin()),
}


@pytest.mark.parametrize("name", SAME)
def test_how_a_program_is_written_makes_no_difference(name: str) -> None:
    first, second = (description(each, torch.randn(4), torch.randn(4)) for each in SAME[name])
    assert first == second is not None


@pytest.mark.parametrize("name", OTHER)
def test_what_a_program_does_makes_a_difference(name: str) -> None:
    first, second = (description(each, torch.randn(4), torch.randn(4)) for each in OTHER[name])
    assert None not in (first, second)
    assert first != second


@pytest.mark.parametrize(
    "other",
    [torch.randn(5), torch.randn(8)[::2], torch.randn(4, dtype=torch.float64), torch.randn(4, 1)],
)
def test_what_the_inputs_are_like_makes_a_difference(other: torch.Tensor) -> None:
    assert description(program, torch.randn(4)) != description(program, other)


def test_regions_of_sizes_that_change_are_not_described() -> None:
    assert description(program, torch.randn(4), cache="symbolic values") is None
