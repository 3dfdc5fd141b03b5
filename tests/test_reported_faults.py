"""Programs that other trace compilers got wrong are right here: see `reported_faults.py`."""

from __future__ import annotations

import pytest

import tracemill as tm
from tests.programs import last_texts
from tests.reported_faults import CASES, Case

# Cases that cannot pass yet, each with what is missing. One that starts to pass fails its test
# until it is taken out.
NOT_YET: dict[str, str] = {}


def _marked(case: Case) -> object:
    reason = NOT_YET.get(case.cid)
    marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
    return pytest.param(case, id=case.cid, marks=marks)


@pytest.mark.filterwarnings("ignore::tracemill.compiler.errors.SharpEdgeWarning")
@pytest.mark.parametrize("case", [_marked(case) for case in CASES])
def test_reported_fault(case: Case) -> None:
    case.run(tm.jit, last_texts)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.cid) for case in CASES])
def test_the_case_itself_is_right_in_eager(case: Case) -> None:
    case.run(lambda function: function, None)


def test_what_cannot_pass_yet_is_a_case() -> None:
    assert NOT_YET.keys() <= {case.cid for case in CASES}
