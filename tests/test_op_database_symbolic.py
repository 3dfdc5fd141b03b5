"""PyTorch's operator database under symbolic values, jit against eager: `tests/op_database.py` says what right means."""

from __future__ import annotations

import functools

import pytest

import tracemill as tm
from tests import op_database
from tests.op_database_refused import REFUSED, REFUSED_BACKWARD

SAMPLES = 2
"""For each operator: symbols cost PyTorch ten times as long as numbers do."""

NEARLY = frozenset(
    f"nn.functional.interpolate.{mode}" for mode in ("linear", "bilinear", "trilinear", "bicubic")
)
"""Gradients that are equal within 5e-6 alone: PyTorch takes these kernels apart where sizes are symbols."""

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
symbolic = functools.partial(tm.jit, cache="symbolic values", entries=64)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each operator; the database is not imported where slow tests are left out."""
    left_out = "not slow" in metafunc.config.option.markexpr
    backward = metafunc.function is test_backward
    every = [] if left_out else op_database.names(backward=backward)
    metafunc.parametrize("name", every)


def test_forward(name: str) -> None:
    verdict = op_database.check(name, symbolic, count=SAMPLES)

    assert not verdict.wrong, "\n".join(verdict.wrong)
    assert not verdict.refused or name in REFUSED, "\n".join(verdict.refused)


def test_backward(name: str) -> None:
    verdict = op_database.check(name, symbolic, backward=True, count=SAMPLES)

    assert not verdict.wrong or name in NEARLY, "\n".join(verdict.wrong)
    assert not verdict.refused or name in REFUSED_BACKWARD, "\n".join(verdict.refused)
