"""Saved benchmark runs: ratios are compared, not times, and the table says what was measured where."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.perf import saved_runs
from tests.perf.interleaved import ratios_of, sampled, times_of


def times(median: float, spread: float = 0.01) -> dict[str, float]:
    return {
        "median": median,
        "low": median * (1 - spread),
        "high": median * (1 + spread),
        "runs": 5,
    }


@pytest.fixture
def run() -> dict[str, Any]:
    return {
        "datetime": "2026-01-02T03:04:05",
        "machine_info": {
            "python_version": "3.11.7",
            "torch": "2.13.0",
            "cpu": {"brand_raw": "A CPU"},
        },
        "benchmarks": [
            {
                "name": "test_a_call[three_elements-inference]",
                "extra_info": {
                    "times": {"eager": times(5e-6), "tracemill torch": times(6e-6)},
                    "ratios": {"tracemill torch": {"eager": times(1.2)}},
                },
            },
            {"name": "test_the_checks_of_300_parameters", "extra_info": {}},
        ],
    }


def changed(run: dict[str, Any], ratio: dict[str, float]) -> dict[str, Any]:
    other = copy.deepcopy(run)
    other["benchmarks"][0]["extra_info"]["ratios"]["tracemill torch"]["eager"] = ratio
    return other


def test_a_ratio_that_grew_is_a_regression(run: dict[str, Any]) -> None:
    (found,) = saved_runs.regressions(run, changed(run, times(1.5)), 0.15)
    assert str(found) == (
        "test_a_call[three_elements-inference]: tracemill torch / eager was 1.2, is 1.5 (+25 %)"
    )


@pytest.mark.parametrize("ratio", [times(1.2), times(1.3), times(0.5), times(1.5, spread=0.4)])
def test_what_is_within_the_tolerance_or_the_scatter_is_none(
    run: dict[str, Any], ratio: dict[str, float]
) -> None:
    assert not list(saved_runs.regressions(run, changed(run, ratio), 0.15))


def test_benchmarks_that_only_one_run_has_are_passed_over(run: dict[str, Any]) -> None:
    empty = {**run, "benchmarks": []}
    assert not list(saved_runs.regressions(run, empty, 0.15))
    assert not list(saved_runs.regressions(empty, run, 0.15))


def test_the_exit_status_says_whether_a_ratio_grew(
    run: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(run))
    for ratio, status, text in ((1.2, 0, "no ratio grew"), (2.0, 1, "was 1.2, is 2")):
        after.write_text(json.dumps(changed(run, times(ratio))))
        with pytest.raises(SystemExit) as left:
            saved_runs.main(["compare", str(before), str(after)])
        assert left.value.code == status
        assert text in capsys.readouterr().out


def test_the_table_names_machine_and_versions(run: dict[str, Any], tmp_path: Path) -> None:
    made = saved_runs.table(run)
    assert "A CPU, Python 3.11.7, PyTorch 2.13.0, 2026-01-02" in made
    assert made.endswith(
        "| benchmark | executor | time | / eager |\n"
        "| --- | --- | --: | --: |\n"
        "| a call: three elements, inference | torch | 6.00 us | 1.20 |"
    )
    page = tmp_path / "page.md"
    page.write_text(f"above\n{saved_runs.BEGIN}\nold\n{saved_runs.END}\nbelow\n")
    saved = tmp_path / "run.json"
    saved.write_text(json.dumps(run))
    for _ in range(2):
        saved_runs.main(["table", str(saved), "--into", str(page)])
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("above\n")
    assert text.endswith("below\n")
    assert text.count("three elements") == 1
    with pytest.raises(ValueError, match="has no lines"):
        saved_runs.put("elsewhere", made)


def test_ratios_are_of_rounds_that_ran_one_after_the_other() -> None:
    samples = {"ours": [1.0, 2.0, 3.0], "theirs": [2.0, 4.0, 6.0]}
    assert ratios_of(samples, "ours")["theirs"].median == 0.5
    assert times_of(samples)["ours"].median == 2.0
    found = sampled({"one": lambda: None, "other": lambda: None}, rounds=3, seconds=1e-5)
    assert {name: len(values) for name, values in found.items()} == {"one": 3, "other": 3}
