"""`make bench`: every measurement of tests/perf, its times and ratios stored in the benchmark's `extra_info`.

pytest-benchmark times tracemill alone. What counts is beside it: the peers in turns with tracemill, and the ratios of
rounds that ran one after the other, each with its median and middle half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
import torch

from tests.perf import first_call, per_call, steady
from tests.perf.interleaved import Samples, ratios_of, sampled, times_of
from tests.perf.peers import OURS, ours

pytest.importorskip("pytest_benchmark")

pytestmark = [pytest.mark.timeout(3600), pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def keep(benchmark: Any, samples: Samples, mine: list[str], **facts: Any) -> None:
    """Stores times, and the ratios of each of tracemill's ways to each other way."""
    benchmark.extra_info["times"] = {
        name: asdict(times) for name, times in times_of(samples).items()
    }
    benchmark.extra_info["ratios"] = {
        name: {other: asdict(ratio) for other, ratio in ratios_of(samples, name).items()}
        for name in mine
    }
    benchmark.extra_info.update(facts)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", per_call.PROGRAMS)
def test_a_call(program: str, grad: bool, benchmark: Any) -> None:
    ways = per_call.ways(program, grad=grad)
    keep(benchmark, sampled(ways), ours(ways))
    benchmark(ways[OURS])


def test_the_checks_of_300_parameters(benchmark: Any) -> None:
    benchmark(per_call.prologue())
    assert benchmark.stats["median"] < 100e-6, (
        "the checks of 300 parameters take 30 us when nothing else runs"
    )


def test_one_of_128_specialisations(benchmark: Any) -> None:
    ways = per_call.specialisations()
    keep(benchmark, sampled(ways), ["oldest of 128", "newest of 128", "two of 128 in turns"])
    benchmark(ways["oldest of 128"])


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", first_call.PROGRAMS)
def test_a_first_call(program: str, train: bool, benchmark: Any) -> None:
    samples = first_call.samples(program, train=train)
    keep(benchmark, samples, ours(samples))
    run: Callable[[], float] = lambda: first_call.in_a_process(  # noqa: E731
        OURS, program, 128, train=train
    )
    benchmark.pedantic(run, rounds=1)


@pytest.mark.parametrize("train", [False, True], ids=["forward", "training_step"])
@pytest.mark.parametrize("model", steady.MODELS)
def test_steady_state(model: str, train: bool, benchmark: Any) -> None:
    ways = steady.ways(model, train=train)
    memory = {name: steady.peak_memory(call) for name, call in ways.items()}
    keep(benchmark, sampled(ways, rounds=15, seconds=0.05), ours(ways), peak_bytes=memory)
    benchmark(ways[OURS])
