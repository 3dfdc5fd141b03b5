"""Settings and fixtures that all tests share."""

import difflib
import os
import random
from collections.abc import Callable
from pathlib import Path

# Before tracemill is imported: verify every trace after every pass. `TRACEMILL_VERIFY=0` (as in
# `make bench`) wins.
os.environ.setdefault("TRACEMILL_VERIFY", "1")
# Models in tests are made from configurations; nothing is fetched.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

TESTS = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the files under tests/golden with what the tests got",
    )


def pytest_configure() -> None:
    # One thread per process: two workers share two cores, and sums are the same on every machine.
    torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def seed() -> None:
    """Start each test from the same random numbers, whichever tests ran before."""
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the one kept under tests/golden.

    `golden(text, "name")` in tests/passes/test_dce.py compares with
    tests/golden/passes/test_dce/name.txt; `pytest --update-golden` writes that file.
    """
    folder = TESTS / "golden" / request.path.relative_to(TESTS).with_suffix("")
    update = request.config.getoption("--update-golden")

    def compare(text: str, name: str) -> None:
        __tracebackhide__ = True
        path = folder / f"{name}.txt"
        got = text.rstrip("\n") + "\n"
        kept = path.read_text(encoding="utf-8") if path.exists() else None
        if got == kept:
            return
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(got, encoding="utf-8")
            return
        where = path.relative_to(TESTS.parent)
        if kept is None:
            pytest.fail(f"{where} does not exist. Its text would be:\n\n{got}", pytrace=False)
        diff = difflib.unified_diff(
            kept.splitlines(), got.splitlines(), f"{where}", "this run", lineterm=""
        )
        pytest.fail(
            "\n".join([*diff, "", f"The whole text, for {where}:", "", got])
            + "\nIf it is right: pytest --update-golden",
            pytrace=False,
        )

    return compare
