"""Windows of Azure's maintenance configurations (spec §13.3): recurrences, time zones, clock changes, limits."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.azure_windows import (
    IANA_ZONE_BY_WINDOWS_NAME,
    AzureWindow,
    MaintenanceScope,
    iana_time_zone,
    parse_azure_window,
)
from forewarn.core.windows import (
    MaintenanceCalendar,
    MaintenanceWindow,
    closing_times,
    is_open,
    next_start,
    opening_at,
    openings,
    parse_window,
    window_text,
)

BERLIN = "W. Europe Standard Time"


def window(recur_every: str, start: str = "2026-11-20 02:00", zone: str = BERLIN, **more: Any) -> MaintenanceWindow:
    scope = more.pop("scope", MaintenanceScope.HOST)
    return parse_azure_window(AzureWindow(start=start, time_zone=zone, recur_every=recur_every, **more), scope)


def days(found: MaintenanceWindow, count: int, start: str = "2026-11-17T12:00") -> list[str]:
    """The local dates of the next openings."""
    zone = ZoneInfo(found.zone)
    at = datetime.fromisoformat(start).replace(tzinfo=zone).timestamp()
    return [f"{datetime.fromtimestamp(begin, zone):%m-%d}" for begin, _ in islice(openings(found, at), count)]


@pytest.mark.parametrize(
    ("recurrence", "expected"),
    [
        ("Day", ["11-20", "11-21", "11-22", "11-23"]),
        ("1Day", ["11-20", "11-21", "11-22", "11-23"]),
        ("3Days", ["11-20", "11-23", "11-26", "11-29"]),
        ("Week", ["11-20", "11-27", "12-04", "12-11"]),
        ("Week Saturday,Sunday", ["11-21", "11-22", "11-28", "11-29"]),
        ("2Weeks Monday, Friday", ["11-20", "11-30", "12-04", "12-14"]),
        ("3weeks", ["11-20", "12-11", "01-01", "01-22"]),
        ("Month", ["11-20", "12-20", "01-20", "02-20"]),
        ("Month day23,day24", ["11-23", "11-24", "12-23", "12-24"]),
        ("Month Last Sunday", ["11-29", "12-27", "01-31", "02-28"]),
        ("Month Fourth Monday", ["11-23", "12-28", "01-25", "02-22"]),
        ("Month Last Sunday Offset-3", ["11-26", "12-24", "01-28", "02-25"]),
        ("Month Third Sunday Offset6", ["11-21", "12-26", "01-23", "02-27"]),
        ("Month Last Friday Offset6", ["12-03", "12-31", "02-04", "03-04"]),
        ("", ["11-20"]),
    ],
)
def test_a_recurrence_opens_on_the_days_that_azure_documents(recurrence: str, expected: list[str]) -> None:
    assert days(window(recurrence), 4) == expected


def test_months_that_are_left_out_are_counted_from_the_start() -> None:
    found = window("2Months First Monday", scope=MaintenanceScope.OS_IMAGE)
    assert days(found, 3) == ["01-04", "03-01", "05-03"]


def test_no_window_opens_before_its_start_or_after_its_expiration() -> None:
    found = window("Day", expires="2026-11-22 03:00")
    assert days(found, 9) == ["11-20", "11-21", "11-22"]
    last = list(openings(found, 0))[-1]
    assert last[1] - last[0] == 3600.0  # the expiration closes it
    assert next_start(MaintenanceCalendar(windows=(found,)), last[1]) is None


def test_an_expiration_closes_a_window_that_opens_once() -> None:
    found = window("", zone="UTC", duration="04:00", expires="2026-11-20 03:00")
    opens = datetime(2026, 11, 20, 2, tzinfo=UTC).timestamp()
    assert list(openings(found, 0)) == [(opens, opens + 3600.0)]
    assert closing_times([found]) == (opens + 3600.0,)
    assert not is_open(MaintenanceCalendar(windows=(found,)), opens + 3600.0)


def test_an_expiration_after_the_end_of_a_single_window_does_not_lengthen_it() -> None:
    found = window("", zone="UTC", duration="04:00", expires="2026-12-31 00:00")
    opens = datetime(2026, 11, 20, 2, tzinfo=UTC).timestamp()
    assert list(openings(found, 0)) == [(opens, opens + 4 * 3600.0)]
    assert closing_times([found]) == (opens + 4 * 3600.0,)


def test_a_single_window_never_opens_if_a_clock_change_skips_it_until_its_expiration() -> None:
    found = window("", start="2027-03-28 02:15", expires="2027-03-28 02:45")
    assert list(openings(found, 0)) == []


def test_an_expiration_in_the_last_year_of_the_calendar_is_none() -> None:
    assert window("Day", expires="9999-12-31 23:59:59").until == ""


def test_a_canceled_opening_is_left_out_and_can_still_be_named() -> None:
    found = window("Day")
    second = list(islice(openings(found, 0), 2))[1][0]
    canceled = MaintenanceWindow(
        **{name: getattr(found, name) for name in found.__struct_fields__} | {"skipped": (second,)}
    )
    assert days(canceled, 2) == ["11-20", "11-22"]
    assert opening_at(canceled, second) == (second, second + 7200.0)
    assert opening_at(canceled, second + 60) is None


@pytest.mark.parametrize(
    ("zone", "day", "expected"),
    [
        (BERLIN, "2027-03-28", "2027-03-28T01:00:00+00:00"),  # 02:30 is skipped: 03:00 is the next instant
        (BERLIN, "2026-10-25", "2026-10-25T00:30:00+00:00"),  # 02:30 occurs twice: the first one counts
        ("Pacific Standard Time", "2027-03-14", "2027-03-14T10:00:00+00:00"),
        ("Lord Howe Standard Time", "2027-04-04", "2027-04-03T16:00:00+00:00"),
        ("UTC", "2027-03-28", "2027-03-28T02:30:00+00:00"),
    ],
)
def test_a_window_opens_once_on_a_night_when_clocks_change(zone: str, day: str, expected: str) -> None:
    found = window("Day", start=f"{date.fromisoformat(day) - timedelta(days=2)} 02:30", zone=zone)
    at = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=ZoneInfo(found.zone)).timestamp()
    first, second = islice(openings(found, at), 2)
    assert first[0] == datetime.fromisoformat(expected).timestamp()
    assert first[1] - first[0] == 7200.0
    assert 22 * 3600 < second[0] - first[0] < 26 * 3600


def test_every_windows_name_means_a_time_zone_that_exists() -> None:
    assert set(IANA_ZONE_BY_WINDOWS_NAME.values()) <= available_timezones()
    assert iana_time_zone("w. europe standard time") == "Europe/Berlin"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"recur_every": "Fortnight"}, "recurEvery 'Fortnight' is not a recurrence"),
        ({"recur_every": "Day Monday"}, "is not a recurrence"),
        ({"recur_every": "Week Mon"}, "is not a recurrence"),
        ({"recur_every": "Month day32"}, "is not a recurrence"),
        ({"recur_every": "Month Fifth Sunday"}, "is not a recurrence"),
        ({"recur_every": "Month Last Sunday Offset7"}, "has an offset beyond 6 days"),
        ({"recur_every": "0Days"}, "give 1 to 35 days"),
        ({"recur_every": "36Days"}, "because Azure applies updates of hosts automatically after 35 days: give 1 to"),
        ({"recur_every": "2Months"}, ": give 1 month"),
        ({"recur_every": "Month day31"}, "opens no window in months without day 31, and Azure applies updates of"),
        ({"recur_every": "Month day30,day29"}, "without day 29"),
        ({"recur_every": "Month", "start": "2027-01-31 02:00"}, "give a day from 1 to 28 too, or 'Month Last Sunday'"),
        ({"scope": MaintenanceScope.OS_IMAGE, "recur_every": "13Months"}, "for scope OSImage: give 1 to 12 months"),
        ({"duration": "01:59"}, "duration '01:59' is not possible for scope Host: give hours and minutes, 02:00 to 24"),
        ({"duration": "2h"}, "duration '2h' is not possible"),
        ({"zone": "Europe/Berlin"}, "give one such as 'W. Europe Standard Time'"),
        ({"zone": "Mars"}, "the time zone 'Mars' is not a name that Windows gives to one"),
        ({"start": "tomorrow"}, "startDateTime 'tomorrow' is not a local time"),
        ({"start": "2026-02-30 02:00"}, "startDateTime '2026-02-30 02:00' is not a local time"),
        ({"expires": "2026-11-20 02:00"}, "is not after startDateTime"),
        ({"expires": "later"}, "expirationDateTime 'later' is not a local time"),
        ({"scope": MaintenanceScope.IN_GUEST_PATCH, "duration": "04:00"}, "give hours and minutes, 01:30 to 03:55"),
        ({"scope": MaintenanceScope.OS_IMAGE, "duration": "04:00"}, "for scope OSImage"),
    ],
)
def test_a_wrong_member_is_answered_with_a_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        window(**{"recur_every": "Week", **fields})


def test_a_month_without_the_day_of_the_window_is_left_out() -> None:
    found = window("Month Day31", scope=MaintenanceScope.OS_IMAGE)
    assert days(found, 4) == ["12-31", "01-31", "03-31", "05-31"]


@pytest.mark.parametrize(
    "recur_every",
    ["Day", "35Days", "5Weeks Saturday", "Month day28", "Month day1,day31", "Month Fourth Monday", "Month Last Sunday"],
)
def test_a_window_for_hosts_opens_at_least_every_35_days(recur_every: str) -> None:
    found = window(recur_every, start="2026-12-05 02:00", zone="UTC")
    starts = [start for start, _ in islice(openings(found, datetime(2026, 12, 1, tzinfo=UTC).timestamp()), 60)]
    assert max(later - earlier for earlier, later in pairwise(starts)) <= 35 * 86_400


def test_windows_are_described_for_people() -> None:
    texts = [
        window_text(window(text)) for text in ("2Weeks Saturday", "Month day1,day15", "Month Third Sunday Offset-2")
    ]
    assert texts == [
        "every 2 weeks sat 02:00 2h Europe/Berlin from 2026-11-20",
        "every month on day 1,15 02:00 2h Europe/Berlin from 2026-11-20",
        "every month on the third sun -2d 02:00 2h Europe/Berlin from 2026-11-20",
    ]


SETS = st.lists(
    st.sampled_from(
        ["02:00 4h Europe/Berlin", "sat 00:00 1d UTC", "mon-fri 22:00 6h America/New_York", "04:00 1h Europe/Berlin"]
    ).map(parse_window),
    min_size=1,
    max_size=2,
).map(tuple)


@given(SETS, st.lists(SETS, min_size=1, max_size=2).map(tuple), st.floats(1.76e9, 1.9e9))
def test_windows_of_several_vms_are_open_only_together(first: Any, others: Any, moment: float) -> None:
    calendar = MaintenanceCalendar(windows=first, other_sets=others)
    each = [MaintenanceCalendar(windows=windows) for windows in (first, *others)]
    assert is_open(calendar, moment) == all(is_open(one, moment) for one in each)
    found = next_start(calendar, moment)
    if found is not None:
        assert all(is_open(one, found) for one in each)
        assert found == moment or not all(is_open(one, found - 1) for one in each) or found - 1 < moment


def test_windows_that_never_overlap_open_never_together() -> None:
    night, noon = parse_window("02:00 1h"), parse_window("12:00 1h")
    assert next_start(MaintenanceCalendar(windows=(night,), other_sets=((noon,),)), 1.77e9) is None
