"""Errors that a torch call raises for what its tensors hold: the program goes on after them as in eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tracemill as tm

Program = Callable[[Tensor], Any]
GOOD, BAD = torch.eye(2), -torch.eye(2)
LOG: list[int] = []
ASSERT: Any = torch.ops.aten._assert_async.default
LinAlgError: Any = torch.linalg.LinAlgError  # pyright: ignore[reportPrivateImportUsage]


def outcome(called: Program, x: Tensor) -> Any:
    torch.manual_seed(0)
    try:
        made = called(x)
    except Exception as error:
        return type(error), str(error), torch.rand(1).item()
    return made.tolist(), torch.rand(1).item()


def assert_as_eager(program: Program, given: Sequence[Tensor]) -> None:
    found: list[Any] = []
    for called in (program, tm.jit(program)):
        LOG.clear()
        found.append([*(outcome(called, x) for x in given), list(LOG)])
    assert found[0] == found[1]


def caught(x: Tensor) -> Tensor:
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError:
        return x * 100


def caught_of_what_nobody_reads(x: Tensor) -> Tensor:
    try:
        torch.linalg.cholesky(x)
    except LinAlgError:
        return x * 100
    return x


def caught_further_out(x: Tensor) -> Tensor:
    with contextlib.suppress(RuntimeError):
        return caught_inside(x)
    return x * 100


def caught_inside(x: Tensor) -> Tensor:
    try:
        return torch.linalg.cholesky(x)
    finally:
        LOG.append(1)


def caught_after_a_draw(x: Tensor) -> Tensor:
    y = torch.rand(2)
    try:
        return torch.linalg.cholesky(x) * y
    except RuntimeError:
        return torch.rand(2) * y


def caught_while_a_value_is_read(x: Tensor) -> Tensor:
    try:
        scale = torch.linalg.cholesky(x)[0, 0].item()
    except RuntimeError:
        scale = 100
    return x * scale


def raised_after_an_effect(x: Tensor) -> Tensor:
    LOG.append(1)
    return torch.linalg.cholesky(x)


def raised_alone(x: Tensor) -> Tensor:
    return torch.linalg.cholesky(x)


PROGRAMS: Sequence[Program] = [
    caught,
    caught_of_what_nobody_reads,
    caught_further_out,
    caught_after_a_draw,
    caught_while_a_value_is_read,
    raised_after_an_effect,
    raised_alone,
]


@pytest.mark.filterwarnings("ignore:.*when it is traced")
@pytest.mark.parametrize("first", ["good", "bad"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_goes_on_or_raises_as_in_eager(program: Program, first: str) -> None:
    given = [GOOD, BAD, GOOD] if first == "good" else [BAD, GOOD, BAD]
    assert_as_eager(program, [*given, *given])


def test_an_index_out_of_bounds_is_caught() -> None:
    table = torch.arange(6.0).reshape(3, 2)

    def program(index: Tensor) -> Tensor:
        try:
            return F.embedding(index, table)
        except IndexError:
            return table.sum()

    assert_as_eager(program, [torch.tensor([1]), torch.tensor([9]), torch.tensor([2])])


def test_what_was_written_before_the_error_is_written() -> None:
    def scenario(jit: Callable[[Any], Any]) -> list[Any]:
        total = torch.zeros(2)

        def program(x: Tensor) -> Tensor:
            total.add_(1)
            y = torch.linalg.cholesky(x)
            total.add_(10)
            return y

        called = jit(program)
        return [*(outcome(called, x) for x in (GOOD, BAD, GOOD, BAD)), total.tolist()]

    assert scenario(tm.jit) == scenario(lambda program: program)


def test_an_error_of_the_eager_call_has_no_other_behind_it() -> None:
    called = tm.jit(raised_after_an_effect)
    for x in (GOOD, BAD, BAD):
        if x is BAD:
            with pytest.raises(RuntimeError) as raised:
                called(x)
            assert raised.value.__context__ is None
        else:
            called(x)


def test_an_assertion_about_a_tensor_is_kept() -> None:
    def program(x: Tensor) -> Tensor:
        ASSERT((x > 0).all())
        return x * 2

    called = tm.jit(program)
    assert torch.equal(called(torch.ones(2)), torch.full((2,), 2.0))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="nonzero"):
            called(-torch.ones(2))


def test_dead_code_that_cannot_raise_goes_also_where_errors_are_caught() -> None:
    def program(x: Tensor) -> Tensor:
        try:
            x.to(x.dtype)
            x.t().float()
            x.sin()
            return x.cos()
        finally:
            LOG.append(1)

    jitted = tm.jit(program)
    jitted(torch.ones(2, 3))
    assert [bsym.sym.name for bsym in tm.last_traces(jitted)[-1].bound_symbols] == [
        "torch.Tensor.cos"
    ]
