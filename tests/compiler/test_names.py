"""Names: readable, valid Python, and never two values with one name."""

from __future__ import annotations

import keyword

from hypothesis import given
from hypothesis import strategies as st

from tracemill.compiler.names import RESERVED, Names, identifier


@given(st.text(max_size=20))
def test_every_text_becomes_an_identifier_that_is_not_reserved(text: str) -> None:
    name = identifier(text)
    assert name.isidentifier()
    assert not keyword.iskeyword(name)
    assert name not in RESERVED


@given(st.lists(st.sampled_from(["x", "x_1", "t0", "fc.w", "fc_w", "class", "inf", "torch"])))
def test_claimed_names_are_distinct_and_stay_recognisable(wanted: list[str]) -> None:
    names = Names()
    made = [names.claim(text) for text in wanted]
    assert len(set(made)) == len(made)
    assert all(name.startswith(identifier(text)) for name, text in zip(made, wanted, strict=True))


def test_a_taken_name_gets_a_suffix_of_itself() -> None:
    names = Names(["test"])
    assert [names.claim(name) for name in ("test", "test", "other")] == [
        "test_1",
        "test_2",
        "other",
    ]


def test_a_series_skips_what_is_taken() -> None:
    names = Names(["t1"])
    assert [names.fresh("t"), names.fresh("t"), names.fresh("i")] == ["t0", "t2", "i0"]
