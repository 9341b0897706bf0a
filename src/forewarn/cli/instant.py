"""Instants as people read them: local time, and how far that is from the service's own now (lab time, spec §12)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from forewarn.cli.duration import span


def local(at: float) -> datetime:
    return datetime.fromtimestamp(at).astimezone()


def clock_time(at: float, now: float, *, dated: bool = False) -> str:
    """The time of day, with its date where that is not today's or where its neighbours have one."""
    try:
        shown, today = local(at), local(now).date()
    except (ValueError, OverflowError, OSError):
        return "never"
    return f"{shown:%H:%M:%S}" if shown.date() == today and not dated else f"{shown:%Y-%m-%d %H:%M:%S}"


def clock_times(ats: Iterable[float], now: float) -> list[str]:
    """Times that stand below each other: all with their date as soon as one needs it."""
    listed = list(ats)
    plain = [clock_time(at, now) for at in listed]
    alike = len({len(text) for text in plain if text != "never"}) <= 1
    return plain if alike else [clock_time(at, now, dated=True) for at in listed]


def distance(at: float, now: float, *, units: int = 2) -> str:
    if abs(at - now) < 1:
        return "now"
    far = " ".join(span(abs(at - now)).split()[:units])
    return f"in {far}" if at > now else f"{far} ago"


def when(at: float | None, now: float) -> str:
    return "-" if at is None else f"{clock_time(at, now)} ({distance(at, now)})"
