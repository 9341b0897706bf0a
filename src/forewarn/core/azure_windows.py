"""Maintenance windows as Azure writes them: start, duration, time zone, recurrence, expiration."""

from __future__ import annotations

import re
from datetime import date, datetime
from enum import StrEnum

import msgspec

from forewarn.core.windows import LAST_WEEK, MAX_OFFSET_DAYS, MaintenanceWindow, checked_window

# The names that Windows and Azure give to time zones, with the IANA time zone that each one means.

IANA_ZONE_BY_WINDOWS_NAME = {
    "Dateline Standard Time": "Etc/GMT+12",
    "UTC-11": "Etc/GMT+11",
    "Aleutian Standard Time": "America/Adak",
    "Hawaiian Standard Time": "Pacific/Honolulu",
    "Marquesas Standard Time": "Pacific/Marquesas",
    "Alaskan Standard Time": "America/Anchorage",
    "UTC-09": "Etc/GMT+9",
    "Pacific Standard Time (Mexico)": "America/Tijuana",
    "UTC-08": "Etc/GMT+8",
    "Pacific Standard Time": "America/Los_Angeles",
    "US Mountain Standard Time": "America/Phoenix",
    "Mountain Standard Time (Mexico)": "America/Mazatlan",
    "Mountain Standard Time": "America/Denver",
    "Yukon Standard Time": "America/Whitehorse",
    "Central America Standard Time": "America/Guatemala",
    "Central Standard Time": "America/Chicago",
    "Easter Island Standard Time": "Pacific/Easter",
    "Central Standard Time (Mexico)": "America/Mexico_City",
    "Canada Central Standard Time": "America/Regina",
    "SA Pacific Standard Time": "America/Bogota",
    "Eastern Standard Time (Mexico)": "America/Cancun",
    "Eastern Standard Time": "America/New_York",
    "Haiti Standard Time": "America/Port-au-Prince",
    "Cuba Standard Time": "America/Havana",
    "US Eastern Standard Time": "America/Indiana/Indianapolis",
    "Turks And Caicos Standard Time": "America/Grand_Turk",
    "Paraguay Standard Time": "America/Asuncion",
    "Atlantic Standard Time": "America/Halifax",
    "Venezuela Standard Time": "America/Caracas",
    "Central Brazilian Standard Time": "America/Cuiaba",
    "SA Western Standard Time": "America/La_Paz",
    "Pacific SA Standard Time": "America/Santiago",
    "Newfoundland Standard Time": "America/St_Johns",
    "Tocantins Standard Time": "America/Araguaina",
    "E. South America Standard Time": "America/Sao_Paulo",
    "SA Eastern Standard Time": "America/Cayenne",
    "Argentina Standard Time": "America/Argentina/Buenos_Aires",
    "Greenland Standard Time": "America/Nuuk",
    "Montevideo Standard Time": "America/Montevideo",
    "Magallanes Standard Time": "America/Punta_Arenas",
    "Saint Pierre Standard Time": "America/Miquelon",
    "Bahia Standard Time": "America/Bahia",
    "UTC-02": "Etc/GMT+2",
    "Azores Standard Time": "Atlantic/Azores",
    "Cape Verde Standard Time": "Atlantic/Cape_Verde",
    "UTC": "UTC",
    "GMT Standard Time": "Europe/London",
    "Greenwich Standard Time": "Atlantic/Reykjavik",
    "Sao Tome Standard Time": "Africa/Sao_Tome",
    "Morocco Standard Time": "Africa/Casablanca",
    "W. Europe Standard Time": "Europe/Berlin",
    "Central Europe Standard Time": "Europe/Budapest",
    "Romance Standard Time": "Europe/Paris",
    "Central European Standard Time": "Europe/Warsaw",
    "W. Central Africa Standard Time": "Africa/Lagos",
    "Jordan Standard Time": "Asia/Amman",
    "GTB Standard Time": "Europe/Bucharest",
    "Middle East Standard Time": "Asia/Beirut",
    "Egypt Standard Time": "Africa/Cairo",
    "E. Europe Standard Time": "Europe/Chisinau",
    "Syria Standard Time": "Asia/Damascus",
    "West Bank Standard Time": "Asia/Hebron",
    "South Africa Standard Time": "Africa/Johannesburg",
    "FLE Standard Time": "Europe/Kyiv",
    "Israel Standard Time": "Asia/Jerusalem",
    "South Sudan Standard Time": "Africa/Juba",
    "Kaliningrad Standard Time": "Europe/Kaliningrad",
    "Sudan Standard Time": "Africa/Khartoum",
    "Libya Standard Time": "Africa/Tripoli",
    "Namibia Standard Time": "Africa/Windhoek",
    "Arabic Standard Time": "Asia/Baghdad",
    "Turkey Standard Time": "Europe/Istanbul",
    "Arab Standard Time": "Asia/Riyadh",
    "Belarus Standard Time": "Europe/Minsk",
    "Russian Standard Time": "Europe/Moscow",
    "E. Africa Standard Time": "Africa/Nairobi",
    "Volgograd Standard Time": "Europe/Volgograd",
    "Iran Standard Time": "Asia/Tehran",
    "Arabian Standard Time": "Asia/Dubai",
    "Astrakhan Standard Time": "Europe/Astrakhan",
    "Azerbaijan Standard Time": "Asia/Baku",
    "Russia Time Zone 3": "Europe/Samara",
    "Mauritius Standard Time": "Indian/Mauritius",
    "Saratov Standard Time": "Europe/Saratov",
    "Georgian Standard Time": "Asia/Tbilisi",
    "Caucasus Standard Time": "Asia/Yerevan",
    "Afghanistan Standard Time": "Asia/Kabul",
    "West Asia Standard Time": "Asia/Tashkent",
    "Ekaterinburg Standard Time": "Asia/Yekaterinburg",
    "Pakistan Standard Time": "Asia/Karachi",
    "Qyzylorda Standard Time": "Asia/Qyzylorda",
    "India Standard Time": "Asia/Kolkata",
    "Sri Lanka Standard Time": "Asia/Colombo",
    "Nepal Standard Time": "Asia/Kathmandu",
    "Central Asia Standard Time": "Asia/Bishkek",
    "Bangladesh Standard Time": "Asia/Dhaka",
    "Omsk Standard Time": "Asia/Omsk",
    "Myanmar Standard Time": "Asia/Yangon",
    "SE Asia Standard Time": "Asia/Bangkok",
    "Altai Standard Time": "Asia/Barnaul",
    "W. Mongolia Standard Time": "Asia/Hovd",
    "North Asia Standard Time": "Asia/Krasnoyarsk",
    "N. Central Asia Standard Time": "Asia/Novosibirsk",
    "Tomsk Standard Time": "Asia/Tomsk",
    "China Standard Time": "Asia/Shanghai",
    "North Asia East Standard Time": "Asia/Irkutsk",
    "Singapore Standard Time": "Asia/Singapore",
    "W. Australia Standard Time": "Australia/Perth",
    "Taipei Standard Time": "Asia/Taipei",
    "Ulaanbaatar Standard Time": "Asia/Ulaanbaatar",
    "Aus Central W. Standard Time": "Australia/Eucla",
    "Transbaikal Standard Time": "Asia/Chita",
    "Tokyo Standard Time": "Asia/Tokyo",
    "North Korea Standard Time": "Asia/Pyongyang",
    "Korea Standard Time": "Asia/Seoul",
    "Yakutsk Standard Time": "Asia/Yakutsk",
    "Cen. Australia Standard Time": "Australia/Adelaide",
    "AUS Central Standard Time": "Australia/Darwin",
    "E. Australia Standard Time": "Australia/Brisbane",
    "AUS Eastern Standard Time": "Australia/Sydney",
    "West Pacific Standard Time": "Pacific/Port_Moresby",
    "Tasmania Standard Time": "Australia/Hobart",
    "Vladivostok Standard Time": "Asia/Vladivostok",
    "Lord Howe Standard Time": "Australia/Lord_Howe",
    "Bougainville Standard Time": "Pacific/Bougainville",
    "Russia Time Zone 10": "Asia/Srednekolymsk",
    "Magadan Standard Time": "Asia/Magadan",
    "Norfolk Standard Time": "Pacific/Norfolk",
    "Sakhalin Standard Time": "Asia/Sakhalin",
    "Central Pacific Standard Time": "Pacific/Guadalcanal",
    "Russia Time Zone 11": "Asia/Kamchatka",
    "New Zealand Standard Time": "Pacific/Auckland",
    "UTC+12": "Etc/GMT-12",
    "Fiji Standard Time": "Pacific/Fiji",
    "Chatham Islands Standard Time": "Pacific/Chatham",
    "UTC+13": "Etc/GMT-13",
    "Tonga Standard Time": "Pacific/Tongatapu",
    "Samoa Standard Time": "Pacific/Apia",
    "Line Islands Standard Time": "Pacific/Kiritimati",
}
_BY_FOLDED_NAME = {name.casefold(): name for name in IANA_ZONE_BY_WINDOWS_NAME}
_WINDOWS_NAME_BY_IANA_ZONE = {zone.casefold(): name for name, zone in IANA_ZONE_BY_WINDOWS_NAME.items()}


def iana_time_zone(windows_name: str) -> str:
    """Return the IANA name of the time zone that Windows calls by this name, ignoring letter case."""
    found = _BY_FOLDED_NAME.get(windows_name.strip().casefold())
    if found is not None:
        return IANA_ZONE_BY_WINDOWS_NAME[found]
    similar = _WINDOWS_NAME_BY_IANA_ZONE.get(windows_name.strip().casefold(), "W. Europe Standard Time")
    raise ValueError(
        f"the time zone {windows_name[:60]!r} is not a name that Windows gives to one: give one such as {similar!r}"
    )


NO_EXPIRATION = "9999-12-31 23:59:59"  # what Azure shows for a configuration that does not expire
_FIRST_ENDLESS_YEAR = 9000  # an expiration in this year or later is none
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "last": LAST_WEEK}
_DATE_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d)(?::\d\d)?", re.ASCII)
_DURATION = re.compile(r"(\d\d):([0-5]\d)", re.ASCII)
_RECURRENCE = re.compile(r"(\d{1,3})?\s*(day|week|month)s?(?:\s+(\S.*))?", re.ASCII | re.IGNORECASE)
_MONTH_DAY = re.compile(r"day([1-9]|[12]\d|3[01])", re.ASCII | re.IGNORECASE)
_WEEK_OF_MONTH = re.compile(r"(\w+)\s+(\w+)(?:\s+offset([+-]?\d))?", re.ASCII | re.IGNORECASE)
_LONGEST_PERIOD = {"day": 366, "week": 52, "month": 12}  # of the scopes other than Host
_LONGEST_HOST_PERIOD = {"day": 35, "week": 5, "month": 1}  # at most 35 days
_HOST_LIMIT = "Azure applies updates of hosts automatically after 35 days"
_LAST_DAY_OF_EVERY_MONTH = 28
_RECURRENCE_EXAMPLES = "'Day', '2Weeks Saturday,Sunday', 'Month day1,day15' or 'Month Third Sunday Offset2'"


class MaintenanceScope(StrEnum):
    """What a maintenance configuration is about, in Azure's names; Azure's other scopes are not supported."""

    HOST = "Host"  # maintenance of the platform: what rollouts do
    OS_IMAGE = "OSImage"  # automatic upgrades of OS images, which never happen here
    IN_GUEST_PATCH = "InGuestPatch"  # patches of the guest's OS, which never happen here


# Shortest, longest and default duration in minutes.
_DURATIONS_MIN = {
    MaintenanceScope.HOST: (120, 24 * 60, 120),
    MaintenanceScope.OS_IMAGE: (300, 24 * 60, 300),
    MaintenanceScope.IN_GUEST_PATCH: (90, 235, 235),
}


class AzureWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A maintenance window in Azure's words, as a user wrote it. Stored, and shown to Azure's clients."""

    start: str  # local time, such as `2026-12-05 02:00`; seconds are ignored
    time_zone: str  # as Windows calls it, such as `W. Europe Standard Time`, ignoring letter case; not an IANA name
    duration: str = ""  # hours and minutes, such as `02:00`; "": the default of its scope
    recur_every: str = ""  # such as `Week Saturday`; "": opens once
    expires: str = ""  # local time; "", or any year from 9000 on: never


def with_default_duration(window: AzureWindow, scope: MaintenanceScope) -> AzureWindow:
    if window.duration:
        return window
    minutes = _DURATIONS_MIN[scope][2]
    return msgspec.structs.replace(window, duration=f"{minutes // 60:02}:{minutes % 60:02}")


def parse_azure_window(window: AzureWindow, scope: MaintenanceScope) -> MaintenanceWindow:
    """Return the window that Azure's words describe, in the form that decisions use."""
    start, at = _parse_date_time("startDateTime", window.start)
    length_s = _parse_duration(with_default_duration(window, scope).duration, scope)
    zone = iana_time_zone(window.time_zone)
    fields = _parse_recurrence(window.recur_every, start, scope)
    until = _parse_expiration(window.expires)
    if until and until <= f"{start}T{at}":
        raise ValueError(f"expirationDateTime {window.expires!r} is not after startDateTime: give a later one")
    return checked_window(msgspec.structs.replace(fields, start=at, length_s=length_s, zone=zone, until=until))


def _parse_date_time(member: str, text: str) -> tuple[date, str]:
    match = _DATE_TIME.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        parsed = datetime.fromisoformat(f"{match[1]}T{match[2]}")
    except ValueError:
        raise ValueError(f"{member} {text[:40]!r} is not a local time: write it like '2026-12-05 02:00'") from None
    return parsed.date(), f"{parsed:%H:%M}"


def _parse_duration(text: str, scope: MaintenanceScope) -> float:
    shortest, longest, _ = _DURATIONS_MIN[scope]
    match = _DURATION.fullmatch(text.strip())
    minutes = int(match[1]) * 60 + int(match[2]) if match else 0
    if not shortest <= minutes <= longest:
        limits = f"{shortest // 60:02}:{shortest % 60:02} to {longest // 60:02}:{longest % 60:02}"
        raise ValueError(f"duration {text[:40]!r} is not possible for scope {scope}: give hours and minutes, {limits}")
    return minutes * 60.0


def _parse_expiration(text: str) -> str:
    if not text:
        return ""
    day, at = _parse_date_time("expirationDateTime", text)
    return f"{day}T{at}" if day.year < _FIRST_ENDLESS_YEAR else ""


def _parse_recurrence(text: str, start: date, scope: MaintenanceScope) -> MaintenanceWindow:
    """Return a window with only the fields that say on which days it opens."""
    once = MaintenanceWindow(start="00:00", length_s=60, zone="UTC", on=start.isoformat())
    if not text.strip():
        return once
    match = _RECURRENCE.fullmatch(text.strip())
    if match is None:
        raise _bad_recurrence(text)
    every, unit, rest = int(match[1] or 1), match[2].lower(), (match[3] or "").strip()
    longest = (_LONGEST_HOST_PERIOD if scope is MaintenanceScope.HOST else _LONGEST_PERIOD)[unit]
    if not 1 <= every <= longest:
        reason = f", because {_HOST_LIMIT}" if scope is MaintenanceScope.HOST else ""
        periods = f"1 to {longest} {unit}s" if longest > 1 else f"1 {unit}"
        raise ValueError(f"recurEvery {text[:60]!r} is not possible for scope {scope}{reason}: give {periods}")
    window = msgspec.structs.replace(once, on="", first=start.isoformat(), every=every)
    if unit == "week":
        return msgspec.structs.replace(window, days=_parse_weekdays(rest, text) if rest else (start.weekday(),))
    if unit == "month":
        window = _monthly(window, rest, start, text)
        if scope is MaintenanceScope.HOST and window.month_days and window.month_days[0] > _LAST_DAY_OF_EVERY_MONTH:
            raise ValueError(
                f"recurEvery {text[:60]!r} opens no window in months without day {window.month_days[0]}, and "
                f"{_HOST_LIMIT}: give a day from 1 to {_LAST_DAY_OF_EVERY_MONTH} too, or 'Month Last Sunday'"
            )
        return window
    if rest:
        raise _bad_recurrence(text)
    return window


def _parse_weekdays(words: str, text: str) -> tuple[int, ...]:
    names = [word.strip().lower() for word in words.split(",")]
    if any(name not in _WEEKDAYS for name in names):
        raise _bad_recurrence(text)
    return tuple(sorted({_WEEKDAYS.index(name) for name in names}))


def _monthly(window: MaintenanceWindow, rest: str, start: date, text: str) -> MaintenanceWindow:
    if not rest:
        return msgspec.structs.replace(window, month_days=(start.day,))
    matches = [_MONTH_DAY.fullmatch(word.strip()) for word in rest.split(",")]
    if all(matches):
        return msgspec.structs.replace(window, month_days=tuple(sorted({int(match[1]) for match in matches if match})))
    week = _WEEK_OF_MONTH.fullmatch(rest)
    if week is None or week[1].lower() not in _WEEKS or week[2].lower() not in _WEEKDAYS:
        raise _bad_recurrence(text)
    offset = int(week[3] or 0)
    if abs(offset) > MAX_OFFSET_DAYS:
        raise ValueError(f"recurEvery {text[:60]!r} has an offset beyond {MAX_OFFSET_DAYS} days: give -6 to 6")
    day = _WEEKDAYS.index(week[2].lower())
    return msgspec.structs.replace(window, week_of_month=_WEEKS[week[1].lower()], days=(day,), offset_days=offset)


def _bad_recurrence(text: str) -> ValueError:
    return ValueError(f"recurEvery {text[:60]!r} is not a recurrence: write it like {_RECURRENCE_EXAMPLES}")
