"""What is compiled again and again is named, and left to eager in the end."""

from __future__ import annotations

import warnings

import torch

import tracemill as tm


class Steps:
    def __init__(self) -> None:
        self.step = 0

    def next(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return x * self.step


def test_calls_that_fail_one_check_are_left_to_eager_after_a_while() -> None:
    steps = Steps()
    called, x = tm.jit(steps.next, paths=4), torch.ones(2)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for step in range(1, 13):
            torch.testing.assert_close(called(x), x * step)
    texts = [str(warning.message) for warning in given]
    assert len(texts) == 2
    assert texts[0].startswith("Steps.next is compiled again, for a check that failed")
    assert "not compiled any more where a check fails that failed at 4 calls in a row: " in texts[1]
    assert texts[1].endswith("or allow more programs by jit(..., paths=8)")
    assert tm.cache_info(called).misses == 5
    assert steps.step == 12


def test_a_check_that_fails_now_and_then_is_compiled_for() -> None:
    steps = Steps()
    called, x = tm.jit(lambda x: x * steps.step, paths=2), torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(8):
            steps.step = step
            for _ in range(2):
                torch.testing.assert_close(called(x), x * step)
    assert tm.cache_info(called).misses == 8
