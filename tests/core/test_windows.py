"""Maintenance windows (spec §13.3): local times, changes of the clocks, blackout dates, deadlines, bad texts."""

from __future__ import annotations

import re
import sys
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.core.windows import (
    BlackoutDates,
    MaintenanceCalendar,
    MaintenanceWindow,
    blackout_text,
    is_open,
    local_time_text,
    make_calendar,
    next_start,
    parse_blackout,
    parse_window,
    window_text,
)


def at(text: str, zone: str = "Europe/Berlin", *, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def calendar(*windows: str, blackouts: tuple[str, ...] = (), deadline: float | None = None) -> MaintenanceCalendar:
    return MaintenanceCalendar(
        windows=tuple(map(parse_window, windows)),
        blackouts=tuple(map(parse_blackout, blackouts)),
        deadline=deadline,
    )


NIGHTLY = calendar("02:00 4h Europe/Berlin")
WEEKEND = calendar("sat,sun 02:00 4h Europe/Berlin")


def test_inside_a_window_an_event_may_start_at_once() -> None:
    assert next_start(NIGHTLY, at("2026-11-17T03:15")) == at("2026-11-17T03:15")
    assert is_open(NIGHTLY, at("2026-11-17T02:00"))
    assert is_open(NIGHTLY, at("2026-11-17T05:59:59"))
    assert not is_open(NIGHTLY, at("2026-11-17T06:00"))


def test_outside_of_windows_an_event_waits_for_the_next_one() -> None:
    assert next_start(NIGHTLY, at("2026-11-17T12:00")) == at("2026-11-18T02:00")
    assert next_start(WEEKEND, at("2026-11-17T12:00")) == at("2026-11-21T02:00")
    assert next_start(WEEKEND, at("2026-11-22T06:00")) == at("2026-11-28T02:00")


def test_a_window_over_midnight_is_open_in_the_morning_of_the_next_day() -> None:
    friday = calendar("fri 22:00 8h Europe/Berlin")
    assert is_open(friday, at("2026-11-21T05:59"))
    assert next_start(friday, at("2026-11-21T06:00")) == at("2026-11-27T22:00")


def test_a_window_of_several_days_is_open_on_each_of_them() -> None:
    weekend = calendar("fri 20:00 2d10h UTC")
    assert is_open(weekend, at("2026-11-22T12:00", "UTC"))
    assert not is_open(weekend, at("2026-11-23T06:00", "UTC"))


def test_a_single_window_opens_once() -> None:
    once = calendar("2026-12-05T22:00 6h America/New_York")
    assert next_start(once, at("2026-11-17T12:00")) == at("2026-12-05T22:00", "America/New_York")
    assert next_start(once, at("2026-12-06T04:00", "America/New_York")) is None


def test_the_earliest_of_several_windows_counts() -> None:
    both = calendar("sat 02:00 4h Europe/Berlin", "2026-11-18T12:00 1h UTC")
    assert next_start(both, at("2026-11-17T12:00")) == at("2026-11-18T12:00", "UTC")
    assert next_start(both, at("2026-11-18T14:00", "UTC")) == at("2026-11-21T02:00")


# The night in which clocks go forward: 02:00 to 03:00 does not exist on 2027-03-28.


def test_a_start_that_clocks_skip_is_the_first_instant_after_the_change() -> None:
    half_past_two = calendar("02:30 1h Europe/Berlin")
    opens = next_start(half_past_two, at("2027-03-28T00:00"))
    assert opens == at("2027-03-28T03:00")
    assert is_open(half_past_two, at("2027-03-28T03:59"))
    assert not is_open(half_past_two, at("2027-03-28T04:00"))


def test_a_window_over_the_skipped_hour_lasts_its_length_in_elapsed_time() -> None:
    early = calendar("01:00 2h Europe/Berlin")
    assert is_open(early, at("2027-03-28T03:59"))  # 01:00 plus two hours is 04:00 summer time
    assert not is_open(early, at("2027-03-28T04:00"))


# The night in which clocks go back: 02:00 to 03:00 occurs twice on 2026-10-25.


def test_a_start_that_occurs_twice_is_the_first_of_the_two() -> None:
    half_past_two = calendar("02:30 20m Europe/Berlin")
    assert next_start(half_past_two, at("2026-10-25T00:00")) == at("2026-10-25T02:30", fold=0)
    assert not is_open(half_past_two, at("2026-10-25T02:35", fold=1))
    assert next_start(half_past_two, at("2026-10-25T02:35", fold=1)) == at("2026-10-26T02:30")


def test_a_window_over_the_repeated_hour_lasts_its_length_in_elapsed_time() -> None:
    early = calendar("01:30 2h Europe/Berlin")
    assert is_open(early, at("2026-10-25T02:29", fold=1))
    assert not is_open(early, at("2026-10-25T02:30", fold=1))


def test_a_change_of_the_clocks_by_half_an_hour_counts_too() -> None:
    # Lord Howe Island: 02:00 becomes 02:30 on 2026-10-04.
    assert next_start(calendar("02:15 1h Australia/Lord_Howe"), at("2026-10-04T00:00", "Australia/Lord_Howe")) == at(
        "2026-10-04T02:30", "Australia/Lord_Howe"
    )


def test_no_window_is_open_on_a_blackout_date() -> None:
    holidays = calendar("02:00 4h Europe/Berlin", blackouts=("2026-12-24..2026-12-26",))
    assert next_start(holidays, at("2026-12-24T00:00")) == at("2026-12-27T02:00")
    assert is_open(holidays, at("2026-12-23T03:00"))


def test_a_blackout_cuts_a_window_that_began_the_evening_before() -> None:
    evenings = calendar("22:00 8h Europe/Berlin", blackouts=("2026-12-24",))
    assert is_open(evenings, at("2026-12-23T23:59"))
    assert not is_open(evenings, at("2026-12-24T00:00"))
    assert next_start(evenings, at("2026-12-24T00:00")) == at("2026-12-25T00:00")  # the rest of the 24th's window


def test_a_window_of_the_evening_before_reopens_after_the_blackout() -> None:
    long = calendar("2026-12-23T22:00 2d6h Europe/Berlin", blackouts=("2026-12-24",))
    assert next_start(long, at("2026-12-24T12:00")) == at("2026-12-25T00:00")


def test_at_the_deadline_an_event_starts_even_outside_of_windows() -> None:
    deadline = at("2026-11-19T12:00")
    hurried = calendar("sat 02:00 4h Europe/Berlin", deadline=deadline)
    assert next_start(hurried, at("2026-11-17T12:00")) == deadline
    assert next_start(hurried, deadline + 5) == deadline + 5
    assert not is_open(hurried, deadline)


def test_a_window_before_the_deadline_comes_first() -> None:
    calm = calendar("02:00 4h Europe/Berlin", deadline=at("2026-11-30T00:00"))
    assert next_start(calm, at("2026-11-17T12:00")) == at("2026-11-18T02:00")


def test_days_are_names_with_commas_and_ranges() -> None:
    assert parse_window("mon-fri 22:00 2h UTC").days == (0, 1, 2, 3, 4)
    assert parse_window("Sat-Mon,wed 1:05 90m UTC") == MaintenanceWindow(
        start="01:05", length_s=5400, zone="UTC", days=(0, 2, 5, 6)
    )
    assert parse_window("02:00 4h") == MaintenanceWindow(start="02:00", length_s=14_400, zone="UTC")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a maintenance window: write it like 'sat,sun 02:00 4h Europe/Berlin'"),
        ("sat 02:00", "is not a maintenance window"),
        ("caturday 02:00 4h", "is not a maintenance window"),
        ("sat 25:00 4h", "is not a maintenance window"),
        ("sat 02:00 4x", "'4x' is not a duration"),
        ("sat 02:00 10s", "a maintenance window of 10s is not possible: give a length from 1m to 7d"),
        ("sat 02:00 8d", "a maintenance window of 8d is not possible"),
        ("sat 02:00 4h Europe/Berlim", "the time zone 'Europe/Berlim' does not exist"),
        ("sat 02:0\u0660 4h", "is not a maintenance window"),  # an Arabic digit
        ("2026-02-30T02:00 4h UTC", "'2026-02-30' is not a date: write it like 2026-12-24"),
    ],
)
def test_a_wrong_window_is_answered_with_a_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_window(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("24.12.2026", "'24.12.2026' is not a date"),
        ("2026-12-26..2026-12-24", "ends before it begins"),
        ("2026-12-24..", "'' is not a date"),
        ("2026-12-24..9999-12-31", "'9999-12-31' is not a date"),
    ],
)
def test_a_wrong_blackout_is_answered_with_a_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_blackout(text)


def test_a_time_is_shown_in_the_zone_of_the_window() -> None:
    assert local_time_text(WEEKEND, at("2026-11-21T02:00")) == "Sat 2026-11-21 02:00 CET"


windows = st.builds(
    MaintenanceWindow,
    start=st.times().map(lambda moment: f"{moment:%H:%M}"),
    length_s=st.integers(1, 7 * 24 * 60).map(lambda minutes: minutes * 60.0),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    days=st.sets(st.integers(0, 6)).map(lambda days: tuple(sorted(days))),
)
moments = st.integers(1_700_000_000, 1_900_000_000).map(float)


@given(windows)
def test_the_text_of_a_window_is_read_back_as_the_same_window(window: MaintenanceWindow) -> None:
    assert parse_window(window_text(window)) == window


@given(st.lists(windows, min_size=1, max_size=3), moments)
def test_the_next_start_is_in_a_window_and_is_its_own_next_start(found: list[MaintenanceWindow], moment: float) -> None:
    chosen = MaintenanceCalendar(windows=tuple(found))
    start = next_start(chosen, moment)
    assert start is not None
    assert moment <= start <= moment + 8 * 86_400
    assert is_open(chosen, start)
    assert next_start(chosen, start) == start
    if start > moment:
        assert not is_open(chosen, (moment + start) / 2)


@given(
    st.lists(windows, min_size=1, max_size=3),
    moments,
    st.lists(st.integers(-20 * 1440, 20 * 1440), min_size=2, max_size=8),
    st.integers(0, 9),
)
def test_the_next_start_does_not_depend_on_what_was_asked_before(
    found: list[MaintenanceWindow], moment: float, minutes: list[int], days: int
) -> None:
    """What it has found for these windows is remembered; windows that skip another time are others to it."""
    first = datetime.fromtimestamp(moment, ZoneInfo("UTC")).date()
    closed = BlackoutDates(first=first.isoformat(), last=(first + timedelta(days=days)).isoformat())
    known = MaintenanceCalendar(windows=tuple(found), blackouts=(closed,))
    for n, minute in enumerate(minutes):
        unknown = replace(known, windows=tuple(replace(window, skipped=(-1.0 - n,)) for window in found))
        asked = moment + minute * 60
        assert next_start(known, asked) == next_start(unknown, asked)


def test_asking_for_the_same_windows_again_computes_no_dates() -> None:
    """Rollouts ask for each of their VMs, also in a freeze of weeks with many blackout dates."""
    dates = tuple(f"2026-{month:02}-01..2026-{month:02}-20" for month in range(1, 13))
    frozen = calendar("02:00 4h Europe/Berlin", "sat 10:00 4h UTC", blackouts=dates)
    moment = at("2026-03-02T12:00")
    expected = next_start(frozen, moment)
    assert expected == at("2026-03-21T02:00")
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        again = next_start(frozen, moment + 900)
    finally:
        sys.setprofile(None)
    assert (again, len(calls) < 20) == (expected, True)


def test_a_calendar_has_at_most_100_windows_and_100_blackout_dates() -> None:
    assert make_calendar(["02:00 4h"] * 100, ["2026-12-24"] * 100, None) is not None
    with pytest.raises(ValueError, match="101 maintenance windows are too many: give at most 100"):
        make_calendar(["02:00 4h"] * 101, [], None)
    with pytest.raises(ValueError, match="101 blackout dates are too many: give at most 100"):
        make_calendar(["02:00 4h"], ["2026-12-24"] * 101, None)


@given(st.dates(), st.integers(0, 30))
def test_the_text_of_blackout_dates_is_read_back_as_the_same(first: date, days: int) -> None:
    assume(1970 <= first.year < 8999)
    last = first + timedelta(days=days)
    blackout = BlackoutDates(first=f"{first:%Y-%m-%d}".zfill(10), last=f"{last:%Y-%m-%d}".zfill(10))
    assert parse_blackout(blackout_text(blackout)) == blackout
