"""Instants as people read them: local time, and how far that is from the service's own now (lab time, spec §12)."""

from __future__ import annotations

from datetime import datetime

from forewarn.cli.duration import span


def local(at: float) -> datetime:
    return datetime.fromtimestamp(at).astimezone()


def clock_time(at: float, now: float) -> str:
    """The time of day, with its date where that is not today's."""
    try:
        shown, today = local(at), local(now).date()
    except (ValueError, OverflowError, OSError):
        return "never"
    return f"{shown:%H:%M:%S}" if shown.date() == today else f"{shown:%Y-%m-%d %H:%M:%S}"


def distance(at: float, now: float) -> str:
    if abs(at - now) < 1:
        return "now"
    return f"in {span(at - now)}" if at > now else f"{span(now - at)} ago"


def when(at: float | None, now: float) -> str:
    return "-" if at is None else f"{clock_time(at, now)} ({distance(at, now)})"
