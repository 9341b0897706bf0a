"""Durations and times: parsing and formatting."""

import re
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.base.duration import duration_text, exact_duration_text, format_duration, parse_duration
from forewarn.cli.output import clock_time, clock_times, describe_time, local_time, relative_time, zone_name

NOON = 1_767_614_400.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("7d", 604_800), ("1h30m", 5400), ("90", 90), ("90s", 90), ("1.5h", 5400), ("2W", 1_209_600),
     (" 1h 30m ", 5400), ("0", 0), ("5 minutes", 300), ("1 hour 30 min", 5400), ("2 Days", 172_800), ("1week", 604_800),
     ("90 seconds", 90), ("2hrs 3secs", 7203), ("500ms", 0.5), ("1m 5ms", 60.005)],
)  # fmt: skip
def test_a_duration_is_a_number_of_seconds_or_of_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_a_negative_duration_is_refused_as_negative() -> None:
    with pytest.raises(ValueError, match="'-5m' is negative: give a duration such as 15m"):
        parse_duration("-5m")


@pytest.mark.parametrize("text", ["soon", "", "15x", "m", "1h-30m", "1e9", "٣m", "15 m 3", "1 month", "5 minutesh"])
def test_a_bad_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write it like 15m, 7d, 1h30m or 90") as refusal:
        parse_duration(text)
    assert repr(text) in str(refusal.value)


def test_a_duration_of_more_than_ten_years_is_refused() -> None:
    with pytest.raises(ValueError, match="more than ten years"):
        parse_duration("9999999d")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (12, "12s"), (899, "14m 59s"), (900, "15m"), (5400, "1h 30m"), (604_799, "7d"), (86_400, "1d"),
     (90_005, "1d 1h"), (602_999, "6d 23h"), (603_000, "7d"), (86_369, "23h 59m"), (86_370, "1d"), (88_199, "1d"),
     (88_200, "1d 1h"), (3_599, "59m 59s"), (3_629, "1h"), (3_630, "1h 1m"), (59.5, "1m"), (0.5, "1s"), (-3, "0s")],
)  # fmt: skip
def test_a_span_shows_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_span_shows_all_its_units_where_nothing_may_be_cut_off() -> None:
    assert format_duration(7 * 86_400 + 600, units=4) == "7d 10m"
    assert format_duration(90_005, units=4) == "1d 1h 5s"


@settings(max_examples=100, deadline=None)
@given(st.integers(min_value=0, max_value=10 * 365 * 86_400))
def test_a_span_reads_back_as_the_nearest_that_two_units_can_say(seconds: int) -> None:
    step = 3_600 if seconds >= 86_400 else 60 if seconds >= 3_600 else 1
    assert abs(parse_duration(format_duration(seconds)) - seconds) <= step / 2


@settings(max_examples=100, deadline=None)
@given(st.floats(min_value=0.5, max_value=10 * 365 * 86_400))
def test_a_duration_in_words_says_the_same_as_a_short_one(seconds: float) -> None:
    assert duration_text(seconds).replace(" min", "m").replace(" d", "d").replace(" h", "h").replace(
        " s", "s"
    ) == format_duration(seconds)


def test_an_instant_of_another_day_has_its_date() -> None:
    """Spec §12: relative times are counted from the service's own clock."""
    today = local_time(NOON).replace(hour=12, minute=0, second=0).timestamp()
    zone = zone_name(local_time(today))
    assert clock_time(today + 5, today) == f"12:00:05 {zone}"
    assert re.fullmatch(r"[-\d]{10} 12:00:00 \S+", clock_time(today + 7 * 86_400, today))
    assert clock_times([today, today + 5], today) == [f"12:00:00 {zone}", f"12:00:05 {zone}"]
    assert [text[10] for text in clock_times([today - 86_400, today], today)] == [" ", " "]
    assert describe_time(today + 899, today) == f"12:14:59 {zone} (in 14m 59s)"
    assert relative_time(today - 62, today) == "1m 2s ago"
    assert relative_time(today, today) == "now"
    assert describe_time(None, today) == "-"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (0.5, "0.5 s"), (9, "9 s"), (70, "1 min 10 s"), (900, "15 min"), (119.9999999, "2 min")),
        *((5400, "1 h 30 min"), (3661, "3661 s"), (90_000, "1 d 1 h"), (1_234_567, "1234567 s")),
    ],
)
def test_a_duration_is_written_in_words_unless_they_would_round_it(seconds: float, text: str) -> None:
    assert exact_duration_text(seconds) == text


@pytest.mark.parametrize(("zone", "name"), [("UTC", "UTC"), ("Europe/Berlin", "CET"), ("Asia/Dubai", "UTC+04")])
def test_a_zone_has_a_name(zone: str, name: str) -> None:
    assert zone_name(datetime(2026, 1, 5, 12, tzinfo=ZoneInfo(zone))) == name
