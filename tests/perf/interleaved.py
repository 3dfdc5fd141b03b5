"""Times of several ways to do one thing, in turns: a busy machine is unfair to none."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

Samples = Mapping[str, Sequence[float]]
"""Seconds of each round, by way; rounds of one number ran one after the other."""


@dataclass(frozen=True)
class Times:
    """Seconds for one run, or a ratio: the median, and where the middle half of the rounds lies."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Times:
        low, median, high = (
            statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
        )
        return cls(median, low, high, len(values))


def sampled(
    ways: Mapping[str, Callable[[], object]], *, rounds: int = 31, seconds: float = 0.01
) -> Samples:
    """Times each way in turn, `rounds` times; one turn is as many calls as fill `seconds`."""
    calls = {name: _calls_within(call, seconds) for name, call in ways.items()}
    timed = {
        name: lambda call=call, name=name: _time(call, calls[name]) for name, call in ways.items()
    }
    return told(timed, rounds=rounds)


def told(ways: Mapping[str, Callable[[], float]], *, rounds: int) -> Samples:
    """Like `sampled`, for ways that say themselves how many seconds they took."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            taken[name].append(run())
    return taken


def times_of(samples: Samples) -> dict[str, Times]:
    """The times of each way."""
    return {name: Times.of(values) for name, values in samples.items()}


def ratios_of(samples: Samples, ours: str) -> dict[str, Times]:
    """How much of each other way's time `ours` takes, round by round."""
    return {
        name: Times.of([mine / other for mine, other in zip(samples[ours], values, strict=True)])
        for name, values in samples.items()
        if name != ours
    }


def measure(
    ways: Mapping[str, Callable[[], object]], *, rounds: int = 31, seconds: float = 0.01
) -> dict[str, Times]:
    """The times of each way, in turns."""
    return times_of(sampled(ways, rounds=rounds, seconds=seconds))


def in_turns(ways: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, Times]:
    """Like `measure`, for ways that say themselves how many seconds they took."""
    return times_of(told(ways, rounds=rounds))


def _time(call: Callable[[], object], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def _calls_within(call: Callable[[], object], seconds: float) -> int:
    _time(call, 3)  # warm
    return max(int(seconds / _time(call, 10)), 1)


def show(title: str, times: Mapping[str, Times], *, against: str) -> None:
    """Prints a table; the last column is the median's ratio to that of `against`."""
    width = max(map(len, times))
    print(f"\n{title}")
    print(f"  {'':{width}}  {'median':>10}  {'middle half':>23}  {'ratio':>7}")
    for name, time_ in times.items():
        between = f"{readable(time_.low)} .. {readable(time_.high)}"
        ratio = f"{time_.median / times[against].median:>7.3g}" if against in times else ""
        print(f"  {name:{width}}  {readable(time_.median):>10}  {between:>23}  {ratio}")


def as_json(results: Mapping[str, Mapping[str, Times]]) -> str:
    """All results, in seconds."""
    plain = {
        title: {name: asdict(time_) for name, time_ in times.items()}
        for title, times in results.items()
    }
    return json.dumps(plain, indent=2)


def readable(seconds: float) -> str:
    """Seconds in a unit that fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds / 1e-6:.2f} us"
