"""The estimate of the service's time: one wrong Date has no effect, a clock that really jumped is followed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.client.session import AGREEING_ANSWERS, TOLERANCE_S, ServiceTimeEstimate


def estimate_after(*dates: float | None, trust_first: bool = True) -> ServiceTimeEstimate:
    """The estimate after answers with these Dates, all received at 0 by this machine's clock."""
    estimate = ServiceTimeEstimate()
    for date in dates:
        estimate.add_answer(date, 0.0, trust_first=trust_first)
    return estimate


def test_the_time_is_unknown_before_the_first_date() -> None:
    assert ServiceTimeEstimate().time_at(5.0) is None
    assert estimate_after(None).time_at(5.0) is None


def test_the_time_goes_on_between_answers_and_with_answers_that_have_no_date() -> None:
    assert estimate_after(1000.0, None).time_at(30.0) == 1030.0


def test_small_differences_are_followed_at_once() -> None:
    assert estimate_after(1000.0, 1001.0).time_at(0.0) == 1001.0


@pytest.mark.parametrize("wrong", [0.0, 1000.0 - 3600, 1000.0 + 3600, 1e12])
def test_a_date_that_no_other_confirms_changes_nothing(wrong: float) -> None:
    estimate = estimate_after(1000.0, wrong)
    assert estimate.is_doubtful
    assert estimate.time_at(0.0) == 1000.0
    estimate.add_answer(1000.0, 0.0)
    assert not estimate.is_doubtful


def test_a_jump_counts_when_enough_answers_in_a_row_agree() -> None:
    jumped = [5000.0] * AGREEING_ANSWERS
    assert estimate_after(1000.0, *jumped[1:]).time_at(0.0) == 1000.0
    assert estimate_after(1000.0, *jumped).time_at(0.0) == 5000.0
    assert estimate_after(1000.0, *jumped[1:], 1000.0, *jumped[1:]).time_at(0.0) == 1000.0, "not in a row"
    assert estimate_after(1000.0, *jumped[1:], 9000.0, *jumped[1:]).time_at(0.0) == 1000.0, "they do not agree"


def test_a_first_date_that_is_not_trusted_counts_when_others_agree() -> None:
    right = [1000.0] * AGREEING_ANSWERS
    assert estimate_after(*right[1:], trust_first=False).time_at(0.0) is None
    assert estimate_after(*right, trust_first=False).time_at(0.0) == 1000.0
    assert estimate_after(86_400.0, *right, trust_first=False).time_at(0.0) == 1000.0


@given(st.lists(st.floats(0, 4e9), max_size=10))
def test_wrong_dates_between_right_ones_never_have_an_effect(wrong: list[float]) -> None:
    estimate = estimate_after(1000.0)
    for date in wrong:
        estimate.add_answer(date, 0.0)
        estimate.add_answer(1000.0, 0.0)
        assert abs((estimate.time_at(0.0) or 0.0) - 1000.0) <= TOLERANCE_S
