"""Times of several variants of one thing, in turns: a busy machine is unfair to none."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Times:
    """Seconds for one run: the median, and where the middle half of the runs lies."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        low, median, high = (
            statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
        )
        return cls(median, low, high, len(seconds))


def measure(
    variants: Mapping[str, Callable[[], object]], *, rounds: int = 31, seconds: float = 0.01
) -> dict[str, Times]:
    """Time each variant in turn, `rounds` times; one turn is as many calls as fill `seconds`."""
    calls = {name: _calls_within(call, seconds) for name, call in variants.items()}
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            taken[name].append(_time(call, calls[name]))
    return {name: Times.of(times) for name, times in taken.items()}


def in_turns(variants: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, Times]:
    """Like `measure`, for variants that say themselves how many seconds they took."""
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            taken[name].append(run())
    return {name: Times.of(times) for name, times in taken.items()}


def _time(call: Callable[[], object], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def _calls_within(call: Callable[[], object], seconds: float) -> int:
    _time(call, 3)  # warm
    return max(int(seconds / _time(call, 10)), 1)


def show(title: str, times: Mapping[str, Times], *, against: str) -> None:
    """Print a table; the last column is the median's ratio to that of `against`."""
    width = max(map(len, times))
    print(f"\n{title}")
    print(f"  {'':{width}}  {'median':>10}  {'middle half':>23}  {'ratio':>7}")
    for name, time_ in times.items():
        between = f"{_readable(time_.low)} .. {_readable(time_.high)}"
        ratio = time_.median / times[against].median
        print(f"  {name:{width}}  {_readable(time_.median):>10}  {between:>23}  {ratio:>7.3g}")


def as_json(results: Mapping[str, Mapping[str, Times]]) -> str:
    """Return all results, in seconds."""
    plain = {
        title: {name: asdict(time_) for name, time_ in times.items()}
        for title, times in results.items()
    }
    return json.dumps(plain, indent=2)


def _readable(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds / 1e-6:.2f} us"
