"""Durations and times: parsing and formatting."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.cli.formatting import clock_time, clock_times, describe_time, local_time, relative_time
from forewarn.duration import format_duration, parse_duration

NOON = 1_767_614_400.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("7d", 604_800), ("1h30m", 5400), ("90", 90), ("90s", 90), ("1.5h", 5400), ("2W", 1_209_600),
     (" 1h 30m ", 5400), ("0", 0)],
)  # fmt: skip
def test_a_duration_is_a_number_of_seconds_or_of_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["soon", "", "15x", "m", "-5m", "1h-30m", "1e9", "٣m", "15 m 3"])
def test_a_bad_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write it like 15m, 7d, 1h30m or 90") as refusal:
        parse_duration(text)
    assert repr(text) in str(refusal.value)


def test_a_duration_of_more_than_ten_years_is_refused() -> None:
    with pytest.raises(ValueError, match="more than ten years"):
        parse_duration("9999999d")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (12, "12s"), (899, "14m 59s"), (900, "15m"), (5400, "1h 30m"), (604_799, "6d 23h"), (86_400, "1d"),
     (90_005, "1d 1h"), (-3, "0s")],
)  # fmt: skip
def test_a_span_shows_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@settings(max_examples=100, deadline=None)
@given(st.integers(min_value=0, max_value=10 * 365 * 86_400))
def test_a_span_reads_back_as_no_more_than_it_was(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) <= seconds


def test_an_instant_of_another_day_has_its_date() -> None:
    """Spec §12: relative times are counted from the service's own clock."""
    today = local_time(NOON).replace(hour=12, minute=0, second=0).timestamp()
    assert clock_time(today + 5, today) == "12:00:05"
    assert clock_time(today + 7 * 86_400, today).endswith(" 12:00:00")
    assert len(clock_time(today + 7 * 86_400, today)) == 19
    assert clock_times([today, today + 5], today) == ["12:00:00", "12:00:05"]
    assert [len(text) for text in clock_times([today - 86_400, today], today)] == [19, 19]
    assert describe_time(today + 899, today) == "12:14:59 (in 14m 59s)"
    assert relative_time(today - 62, today) == "1m 2s ago"
    assert relative_time(today, today) == "now"
    assert describe_time(None, today) == "-"
