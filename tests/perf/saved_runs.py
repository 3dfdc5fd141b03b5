"""Saved runs of `make bench`: as the table of the README, and compared with another run.

    python -m tests.perf.saved_runs table RUN.json [--into README.md]
    python -m tests.perf.saved_runs compare BASELINE.json RUN.json [--tolerance 0.15]

A run is the file that pytest-benchmark writes. Two runs are compared by their ratios, not by their times: a slower machine
is slower for all. A ratio that grew by more than the tolerance, beyond what the rounds of either run scatter, is a
regression, and the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.perf.interleaved import readable

BEGIN, END = "<!-- benchmarks: made by `make bench-table` -->", "<!-- end of benchmarks -->"
COLUMNS = (
    "eager",
    "torch.compile inductor",
    "torch.compile aot_eager",
    "torch.compile eager",
    "thunder",
)


class Regression(NamedTuple):
    """A ratio that grew."""

    benchmark: str
    ratio: str
    before: float
    after: float

    def __str__(self) -> str:
        grown = (self.after / self.before - 1) * 100
        return f"{self.benchmark}: {self.ratio} was {self.before:.3g}, is {self.after:.3g} ({grown:+.0f} %)"


def regressions(
    before: Mapping[str, Any], after: Mapping[str, Any], tolerance: float
) -> Iterator[Regression]:
    """The ratios of `after` that are worse than in `before`; what only one of them has is passed over."""
    known = dict(_ratios(before))
    for key, ratio in _ratios(after):
        old = known.get(key)
        if old is None:
            continue
        grown = ratio["median"] > old["median"] * (1 + tolerance)
        if grown and ratio["low"] > old["high"]:
            benchmark, mine, other = key
            yield Regression(benchmark, f"{mine} / {other}", old["median"], ratio["median"])


def _ratios(run: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str, str], dict[str, float]]]:
    for benchmark in run["benchmarks"]:
        for mine, others in benchmark["extra_info"].get("ratios", {}).items():
            for other, ratio in others.items():
                yield (benchmark["name"], mine, other), ratio


def table(run: Mapping[str, Any]) -> str:
    """A run as Markdown: for each benchmark tracemill's time, and its ratio to each peer's."""
    rows = [benchmark for benchmark in run["benchmarks"] if "ratios" in benchmark["extra_info"]]
    present = [name for name in COLUMNS if any(name in row["extra_info"]["times"] for row in rows)]
    lines = [
        _row(["benchmark", "executor", "time", *(f"/ {name}" for name in present)]),
        _row(["---", "---", *(["--:"] * (len(present) + 1))]),
    ]
    for row in rows:
        info = row["extra_info"]
        for mine, ratios in info["ratios"].items():
            cells = [f"{ratios[name]['median']:.2f}" if name in ratios else "" for name in present]
            if any(cells):
                time = readable(info["times"][mine]["median"])
                lines.append(
                    _row([_title(row["name"]), mine.removeprefix("tracemill "), time, *cells])
                )
    return "\n".join([_machine(run), "", *lines])


def _title(name: str) -> str:
    kind, _, rest = name.removeprefix("test_").partition("[")
    return f"{kind.replace('_', ' ')}: {rest.rstrip(']').replace('-', ', ').replace('_', ' ')}"


def _machine(run: Mapping[str, Any]) -> str:
    machine = run["machine_info"]
    cpu = machine.get("cpu", {}).get("brand_raw", machine.get("machine", ""))
    return (
        f"Medians on one thread of {cpu}, Python {machine['python_version']}, PyTorch {machine['torch']}, "
        f"{run['datetime'][:10]}. Ratios below 1 are in tracemill's favour."
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def put(text: str, made: str) -> str:
    """A page with its table replaced; raises ValueError where it has no place for one."""
    place = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not place.search(text):
        raise ValueError(f"the page has no lines {BEGIN} and {END}")
    return place.sub(lambda _: f"{BEGIN}\n\n{made}\n\n{END}", text)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("table")
    one.add_argument("run", type=Path)
    one.add_argument("--into", type=Path)
    two = commands.add_parser("compare")
    two.add_argument("baseline", type=Path)
    two.add_argument("run", type=Path)
    two.add_argument("--tolerance", type=float, default=0.15)
    options = parser.parse_args(argv)
    run = json.loads(options.run.read_text())
    if options.command == "compare":
        found = list(regressions(json.loads(options.baseline.read_text()), run, options.tolerance))
        print(*found or ["no ratio grew"], sep="\n")
        sys.exit(1 if found else 0)
    if options.into is None:
        print(table(run))
    else:
        options.into.write_text(put(options.into.read_text(), table(run)))


if __name__ == "__main__":
    main()
