"""PyTorch's operator database, jit against eager: `tests/op_database.py` says what right means."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tracemill as tm
from tests import op_database
from tests.op_database_refused import REFUSED, REFUSED_BACKWARD

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # deprecated operators are called too
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each operator; the database is not imported where slow tests are left out."""
    if metafunc.function in (test_forward, test_backward):
        left_out = "not slow" in metafunc.config.option.markexpr
        backward = metafunc.function is test_backward
        every = [] if left_out else op_database.names(backward=backward)
        metafunc.parametrize("name", every)


def test_forward(name: str) -> None:
    verdict = op_database.check(name, tm.jit)

    assert not verdict.wrong, "\n".join(verdict.wrong)
    if name in REFUSED:
        assert verdict.refused, f"{name} is right now: take it out of REFUSED ({REFUSED[name]})"
    else:
        assert not verdict.refused, "\n".join(verdict.refused)


def test_backward(name: str) -> None:
    verdict = op_database.check(name, tm.jit, backward=True)

    assert not verdict.wrong, "\n".join(verdict.wrong)
    if name in REFUSED_BACKWARD:
        reason = REFUSED_BACKWARD[name]
        assert verdict.refused, f"{name} is right now: take it out of REFUSED_BACKWARD ({reason})"
    else:
        assert not verdict.refused, "\n".join(verdict.refused)


def _changed_dtype(result: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
    return result.double()


def _changed_value(result: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(result, torch.tensor(torch.inf))


def _changed_stride(result: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
    return result.t().contiguous().t()


def _mutated_input(result: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
    args[0].add_(1)
    return result


def _copied_view(result: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
    return result.clone()


def _another_draw(result: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
    torch.rand(1)
    return result


@pytest.mark.parametrize(
    ("name", "fault", "seen"),
    [
        ("mm", _changed_dtype, "result's dtype"),
        ("mm", _changed_value, "result's values"),
        ("mm", _changed_stride, "result's stride"),
        ("mm", _mutated_input, "input[0][0]'s values"),
        ("view", _copied_view, "memory shared"),
        ("mm", _another_draw, "the random state"),
    ],
)
def test_the_judge_sees_a_fault(name: str, fault: Callable[..., torch.Tensor], seen: str) -> None:
    def faulty(program: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *args: fault(program(*args), *args)

    verdict = op_database.check(name, faulty)

    assert any(message.startswith(seen) for message in verdict.wrong)


def test_few_operators_are_refused() -> None:
    for refused, backward in ((REFUSED, False), (REFUSED_BACKWARD, True)):
        every = op_database.names(backward=backward)

        assert not set(refused) - set(every), "unknown operators are listed"
        assert len(refused) <= 0.05 * len(every)
