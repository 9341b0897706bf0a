"""Maintenance windows: when planned maintenance may start without an approval (spec §13.3).

A window is local time in an IANA time zone. A local time that a clock change skips is the first instant after the
change; one that occurs twice is the first of the two. A window lasts its length in elapsed time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from forewarn.base.duration import format_duration, parse_duration
from forewarn.base.times import LabTime, time_text

DAY_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MAX_WINDOW_S = 7 * 86_400.0
MAX_EVERY = 366  # of `MaintenanceWindow.every`
MAX_OFFSET_DAYS = 6
LAST_WEEK = -1  # of `MaintenanceWindow.week_of_month`
_WEEK_NAMES = {1: "first", 2: "second", 3: "third", 4: "fourth", LAST_WEEK: "last"}
_SEARCH_DAYS = 3 * 366  # how far ahead an opening is looked for
_COMMON_SEARCH_S = 400 * 86_400.0  # how far ahead windows of several sets that are open together are looked for
_REMEMBERED_OPENINGS = 4  # of each set of windows: decisions ask about now, and about the end of a notice
_MAX_TEXTS = 100  # windows, and blackout dates, of one calendar
_DAY_S = 86_400.0
_EXAMPLE = "'sat,sun 02:00 4h Europe/Berlin' or '2026-12-05T22:00 6h Europe/Berlin'"
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)
_DATE_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)", re.ASCII)
_YEARS = range(1970, 9000)  # of dates; others cannot be shown in every time zone
_LATEST = datetime(_YEARS.stop, 1, 1, tzinfo=UTC).timestamp()

Period = tuple[float, float]  # from its first instant to just before its end, in seconds since 1970


class MaintenanceWindow(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A time in which maintenance may start: every day, week or month, every few of them, or once. Stored.

    With `month_days` or `week_of_month` it opens by month, else with `days` by week, else by day. Weeks begin on
    Monday.
    """

    start: str  # local time of day, such as `02:00`, always with two digits
    length_s: float  # seconds for which it stays open: one minute to 7 days
    zone: str  # IANA name, such as `Europe/Berlin`
    days: tuple[int, ...] = ()  # weekdays on which it opens, from 0 (Monday), ascending; (): any
    on: str = ""  # opens only on this date, such as `2026-12-05`; "": it opens again and again
    every: int = 1  # 2: opens in every second day, week or month, counted from that of `first`
    first: str = ""  # opens from this date on; "": always did, which only `every` 1 allows
    month_days: tuple[int, ...] = ()  # days of a month on which it opens, from 1; a month without that day has none
    week_of_month: int = 0  # opens on this one of the weekday `days` of a month: 1 to 4, or -1 for the last; 0: unset
    offset_days: int = 0  # opens that many days after that weekday, or before if negative; only with `week_of_month`
    until: str = ""  # closed from this local time on, such as `2027-01-01T00:00`; "": never
    skipped: tuple[float, ...] = ()  # beginnings of openings that are left out, in seconds since 1970


class BlackoutDates(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Days on which no window is open: whole local days in the time zone of each window. Stored."""

    first: str  # such as `2026-12-24`
    last: str  # not before the first; that day is part of it


class MaintenanceCalendar(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """When events may start without an approval: in windows, and from the deadline on. Stored.

    On blackout dates no window is open. With several sets of windows, one of each set must be open at the same time.
    """

    windows: tuple[MaintenanceWindow, ...]  # at least one
    blackouts: tuple[BlackoutDates, ...] = ()
    deadline: LabTime | None = None  # from when on windows no longer matter; None: they always do
    other_sets: tuple[tuple[MaintenanceWindow, ...], ...] = ()  # further sets of windows, none of them empty
    source: str = ""  # for people: whose windows these are, such as `configuration nightly`; "": the rollout's own


def is_open(calendar: MaintenanceCalendar, at: float) -> bool:
    """Return whether a window (of each set) is open at this POSIX time; the deadline is not considered."""
    return _next_opening(calendar, at) == at


def next_start(calendar: MaintenanceCalendar, at: float) -> float | None:
    """Return the first time from `at` on at which an event may start without an approval."""
    # Of a window that recurs, about three years are searched; with several sets of windows, about one year.
    if calendar.deadline is not None and at >= calendar.deadline:
        return at
    opening = _next_opening(calendar, at)
    if calendar.deadline is None:
        return opening
    return calendar.deadline if opening is None else min(opening, calendar.deadline)


def _next_opening(calendar: MaintenanceCalendar, at: float) -> float | None:
    if not calendar.other_sets:
        return _next_opening_of_set(calendar.windows, calendar.blackouts, at)
    return _next_common_opening((calendar.windows, *calendar.other_sets), calendar.blackouts, at)


@lru_cache(maxsize=4096)
def _next_common_opening(
    sets: tuple[tuple[MaintenanceWindow, ...], ...], blackouts: tuple[BlackoutDates, ...], at: float
) -> float | None:
    """Return when a window of each set is open at the same time, at most about a year after `at`; or None."""
    latest = at + _COMMON_SEARCH_S
    while at <= latest:
        opens = at
        for windows in sets:
            found = _next_opening_of_set(windows, blackouts, opens)
            if found is None:
                return None
            opens = found
        # No set has moved on: all of them are open at this instant.
        if opens == at:
            return at
        at = opens
    return None


def _next_opening_of_set(
    windows: tuple[MaintenanceWindow, ...], blackouts: tuple[BlackoutDates, ...], at: float
) -> float | None:
    # It remembers what it found, because decisions ask about the same windows for each VM.
    found = _found_openings(windows, blackouts)
    for searched_from, (begin, end) in found:
        # Nothing opens between the time from which it was searched and this opening.
        if min(searched_from, begin) <= at < end:
            return max(begin, at)
    periods = (_next_period_of(window, blackouts, at) for window in windows)
    first = min((period for period in periods if period is not None), key=lambda one: max(one[0], at), default=None)
    if first is None:
        return None
    found.append((at, first))
    return max(first[0], at)


@lru_cache(maxsize=1024)
def _found_openings(
    windows: tuple[MaintenanceWindow, ...], blackouts: tuple[BlackoutDates, ...]
) -> deque[tuple[float, Period]]:
    """Return the last openings found for a set of windows, each with the time from which it was searched."""
    return deque(maxlen=_REMEMBERED_OPENINGS)


def opening_at(window: MaintenanceWindow, at: float) -> Period | None:
    """Return the period of a window that begins exactly at this time, also a skipped one, or None."""
    whole = msgspec.structs.replace(window, skipped=())
    found = next((period for period in _periods(whole, at) if period[0] >= at), None)
    return found if found is not None and found[0] == at else None


def openings(window: MaintenanceWindow, at: float) -> Iterator[Period]:
    """Yield when the window is open from `at` on, in order, for about three years."""
    return (period for period in _periods(window, at) if period[1] > at)


def closing_times(windows: Iterable[MaintenanceWindow]) -> tuple[float, ...]:
    """Return the times from which windows are closed for good: one per window with an end, in their order."""
    times = []
    for window in windows:
        ends = [_instant(datetime.fromisoformat(window.until), _zone(window.zone))] if window.until else []
        if window.on:
            opens = datetime.combine(date.fromisoformat(window.on), time.fromisoformat(window.start))
            ends.append(_instant(opens, _zone(window.zone)) + window.length_s)
        times += sorted(ends)[:1]
    return tuple(times)


def _next_period_of(window: MaintenanceWindow, blackouts: tuple[BlackoutDates, ...], at: float) -> Period | None:
    for period in _periods(window, at):
        for begin, end in _without_blackouts(period, _blackout_periods(blackouts, window.zone)):
            if end > at:
                return begin, end
    return None


def _periods(window: MaintenanceWindow, at: float) -> Iterator[Period]:
    """Yield when the window is open, in order, for three years; at first a period that began before `at`."""
    zone = _zone(window.zone)
    opens = time.fromisoformat(window.start)
    closes = _instant(datetime.fromisoformat(window.until), zone) if window.until else _LATEST
    if window.on:
        begin = _instant(datetime.combine(date.fromisoformat(window.on), opens), zone)
        if begin < closes and begin not in window.skipped:
            yield begin, min(begin + window.length_s, closes)
        return
    # A window that began before may still be open; a day more, because dates differ by zone.
    first = datetime.fromtimestamp(at - window.length_s, zone).date() - timedelta(days=1)
    if window.first:
        first = max(first, date.fromisoformat(window.first))
    opens_on = _day_rule(window)
    for offset in range(_SEARCH_DAYS):
        day = first + timedelta(days=offset)
        if not opens_on(day):
            continue
        begin = _instant(datetime.combine(day, opens), zone)
        # All later ones are closed as well.
        if begin >= closes:
            return
        if begin not in window.skipped:
            yield begin, min(begin + window.length_s, closes)


def _day_rule(window: MaintenanceWindow) -> Callable[[date], bool]:
    first = date.fromisoformat(window.first) if window.first else date.min
    days, every = frozenset(window.days), window.every

    def is_month(day: date) -> bool:
        return every == 1 or (day.year * 12 + day.month - first.year * 12 - first.month) % every == 0

    def by_week_of_month(day: date) -> bool:
        counted = day - timedelta(days=window.offset_days)
        if counted.weekday() not in days or not is_month(counted):
            return False
        if window.week_of_month == LAST_WEEK:
            return (counted + timedelta(days=7)).month != counted.month
        return (counted.day - 1) // 7 + 1 == window.week_of_month

    if window.week_of_month:
        return by_week_of_month
    if window.month_days:
        return lambda day: day.day in window.month_days and is_month(day)
    if every == 1:
        return lambda day: not days or day.weekday() in days
    if days:
        monday = first.toordinal() - first.weekday()
        return lambda day: day.weekday() in days and (day.toordinal() - monday) // 7 % every == 0
    return lambda day: (day.toordinal() - first.toordinal()) % every == 0


def _without_blackouts(period: Period, blackouts: Iterable[Period]) -> list[Period]:
    parts = [period]
    for closed_from, closed_until in blackouts:
        parts = [
            (begin, end)
            for part in parts
            for begin, end in ((part[0], min(part[1], closed_from)), (max(part[0], closed_until), part[1]))
            if begin < end
        ]
    return sorted(parts)


@lru_cache(maxsize=256)
def _blackout_periods(blackouts: tuple[BlackoutDates, ...], zone_name: str) -> tuple[Period, ...]:
    zone, midnight = _zone(zone_name), time()
    periods = []
    for blackout in blackouts:
        begins = datetime.combine(date.fromisoformat(blackout.first), midnight)
        reopens = datetime.combine(date.fromisoformat(blackout.last) + timedelta(days=1), midnight)
        periods.append((_instant(begins, zone), _instant(reopens, zone)))
    return tuple(periods)


def _instant(local: datetime, zone: ZoneInfo) -> float:
    """Return the time of a local time in seconds since 1970, by the rules at the top of this module."""
    earlier = local.replace(tzinfo=zone, fold=1).timestamp()
    later = local.replace(tzinfo=zone, fold=0).timestamp()
    if later <= earlier:  # it occurs once, or twice: fold 0 is the first of the two
        return later
    # It is skipped: the change of the clocks is between the two, in whole seconds.
    before, after = int(earlier), int(later)
    offset_after = datetime.fromtimestamp(after, zone).utcoffset()
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset_after:
            after = middle
        else:
            before = middle
    return float(after)


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def parse_window(text: str) -> MaintenanceWindow:
    """Return the window that a text describes: days, start, length and time zone; or date and start once."""
    words = text.split()
    days: tuple[int, ...] = ()
    on = ""
    if words and (match := _DATE_TIME.fullmatch(words[0])):
        on, words[0] = match[1], match[2]
    elif words and not _TIME.fullmatch(words[0]):
        days = _parse_days(words.pop(0), text)
    if len(words) not in (2, 3) or not _TIME.fullmatch(words[0]):
        raise ValueError(f"{text!r} is not a maintenance window: write it like {_EXAMPLE}")
    zone = words[2] if len(words) == 3 else "UTC"
    hour, minute = words[0].split(":")
    return checked_window(
        MaintenanceWindow(
            start=f"{int(hour):02}:{minute}", length_s=parse_duration(words[1]), zone=zone, days=days, on=on
        )
    )


def checked_window(window: MaintenanceWindow) -> MaintenanceWindow:
    """Return the window with its days sorted, each once; raises ValueError if it is wrong."""
    if not _TIME.fullmatch(window.start):
        raise ValueError(f"{window.start!r} is not a time of day: write it like 02:00")
    if not 60 <= window.length_s <= MAX_WINDOW_S:
        length = format_duration(window.length_s)
        raise ValueError(f"a maintenance window of {length} is not possible: give a length from 1m to 7d")
    if window.zone not in _zone_names():
        raise ValueError(f"the time zone {window.zone!r} does not exist: give an IANA name such as Europe/Berlin")
    if any(day not in range(7) for day in window.days):
        raise ValueError("a day of a maintenance window is one of mon, tue, wed, thu, fri, sat and sun")
    if window.on:
        _parse_date(window.on)
        if window.days:
            raise ValueError(f"a window opens on {window.on} or on weekdays: give one of the two")
    _check_recurrence(window)
    days, month_days = tuple(sorted(set(window.days))), tuple(sorted(set(window.month_days)))
    return msgspec.structs.replace(window, days=days, month_days=month_days)


def _check_recurrence(window: MaintenanceWindow) -> None:
    if window.first:
        _parse_date(window.first)
    if not 1 <= window.every <= MAX_EVERY:
        raise ValueError(f"a window every {window.every} days, weeks or months is not possible: give 1 to {MAX_EVERY}")
    if window.every > 1 and not window.first:
        raise ValueError("a window that does not open each time needs a first date: give it")
    if any(day not in range(1, 32) for day in window.month_days):
        raise ValueError("a day of a month is 1 to 31")
    if window.week_of_month not in (0, 1, 2, 3, 4, LAST_WEEK) or abs(window.offset_days) > MAX_OFFSET_DAYS:
        raise ValueError("a window opens in the first to the fourth or the last week of a month, up to 6 days off")
    if window.week_of_month and (len(window.days) != 1 or window.month_days):
        raise ValueError("a window by weeks of a month needs one weekday, and no days of the month")
    if window.month_days and window.days:
        raise ValueError("a window opens on days of the month or on weekdays: give one of the two")
    if window.until:
        _check_local_time(window.until)


def _check_local_time(text: str) -> None:
    match = _DATE_TIME.fullmatch(text)
    if match is None or not _TIME.fullmatch(match[2]):
        raise ValueError(f"{text!r} is not a local time: write it like 2027-01-01T00:00")
    _parse_date(match[1])


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones())


def _parse_days(words: str, text: str) -> tuple[int, ...]:
    days: set[int] = set()
    for word in words.casefold().split(","):
        first, dash, last = word.partition("-")
        if first not in DAY_NAMES or (dash and last not in DAY_NAMES):
            raise ValueError(f"{text!r} is not a maintenance window: write it like {_EXAMPLE}")
        begin, end = DAY_NAMES.index(first), DAY_NAMES.index(last or first)
        days |= {day % 7 for day in range(begin, (end if end >= begin else end + 7) + 1)}
    return tuple(sorted(days))


def parse_blackout(text: str) -> BlackoutDates:
    """Return the blackout dates of `2026-12-24` or `2026-12-24..2026-12-26`; ValueError with a sentence."""
    first, dots, last = text.strip().partition("..")
    blackout = BlackoutDates(first=_parse_date(first), last=_parse_date(last if dots else first))
    if blackout.last < blackout.first:
        raise ValueError(f"the blackout {text!r} ends before it begins: exchange the two dates")
    return blackout


def _parse_date(text: str) -> str:
    try:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
            raise ValueError
        parsed = date.fromisoformat(text)
        if parsed.year not in _YEARS:
            raise ValueError
        return parsed.isoformat()
    except ValueError:
        raise ValueError(f"{text!r} is not a date: write it like 2026-12-24") from None


def check_count(texts: Sequence[str], noun: str) -> None:
    """Raise ValueError with a sentence if these are more than 100, the most that a calendar has."""
    if len(texts) > _MAX_TEXTS:
        raise ValueError(f"{len(texts)} {noun} are too many: give at most {_MAX_TEXTS}")


def make_calendar(
    windows: Iterable[str], blackouts: Iterable[str], deadline: float | None
) -> MaintenanceCalendar | None:
    """Return the calendar of these texts of windows and blackout dates; None if all three are missing."""
    windows, blackouts = tuple(windows), tuple(blackouts)
    check_count(windows, "maintenance windows")
    check_count(blackouts, "blackout dates")
    calendar = MaintenanceCalendar(
        windows=tuple(map(parse_window, windows)), blackouts=tuple(map(parse_blackout, blackouts)), deadline=deadline
    )
    if deadline is not None and not 0 <= deadline < _LATEST:
        raise ValueError(f"the deadline {time_text(deadline)} is not possible: give one before the year {_YEARS.stop}")
    if calendar.windows:
        return calendar
    if calendar.blackouts or deadline is not None:
        raise ValueError("blackout dates and a deadline belong to maintenance windows: give a window, too")
    return None


def calendar_text(calendar: MaintenanceCalendar) -> str:
    """Return the calendar for people: `sat 02:00 4h UTC; not on 2026-12-24; at the latest Thu …`."""
    sets = (calendar.windows, *calendar.other_sets)
    parts = [" and ".join(", ".join(map(window_text, windows)) for windows in sets)]
    if calendar.blackouts:
        parts.append("not on " + ", ".join(map(blackout_text, calendar.blackouts)))
    if calendar.deadline is not None:
        parts.append(f"at the latest {local_time_text(calendar, calendar.deadline)}")
    return "; ".join(parts)


def window_source(calendar: MaintenanceCalendar) -> str:
    """Return whose windows these are, to follow a noun: ` of configuration nightly`; "": a rollout's own."""
    return f" of {calendar.source}" if calendar.source else ""


def window_text(window: MaintenanceWindow) -> str:
    """Return the window for people, such as `sat,sun 02:00 4h Europe/Berlin`."""
    start = f"{window.on}T{window.start}" if window.on else window.start
    length = format_duration(window.length_s, units=4).replace(" ", "")
    begins = f"from {window.first}" if window.first else ""
    ends = f"until {window.until.replace('T', ' ')}" if window.until else ""
    parts = (_recurrence_text(window), start, length, window.zone, begins, ends)
    return " ".join(part for part in parts if part)


def _recurrence_text(window: MaintenanceWindow) -> str:
    days = ",".join(DAY_NAMES[day] for day in window.days)
    is_monthly = bool(window.week_of_month or window.month_days)
    unit = "month" if is_monthly else "week" if days else "day"
    each = f"every {window.every} {unit}s" if window.every > 1 else "every month" if is_monthly else ""
    if window.month_days:
        days = "on day " + ",".join(map(str, window.month_days))
    elif window.week_of_month:
        shift = f" {window.offset_days:+d}d" if window.offset_days else ""
        days = f"on the {_WEEK_NAMES[window.week_of_month]} {days}{shift}"
    return " ".join(part for part in (each, days) if part)


def blackout_text(blackout: BlackoutDates) -> str:
    """Return the dates as `parse_blackout` reads them: `2026-12-24`, or `2026-12-24..2026-12-26`."""
    return blackout.first if blackout.first == blackout.last else f"{blackout.first}..{blackout.last}"


def local_time_text(calendar: MaintenanceCalendar, at: float) -> str:
    """Return a time for people, in the zone of the calendar's first window: `Sat 2026-12-05 02:00 CET`."""
    local = datetime.fromtimestamp(at, UTC).astimezone(_zone(calendar.windows[0].zone))
    return f"{local:%a %Y-%m-%d %H:%M %Z}"
