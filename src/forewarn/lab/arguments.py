"""What tests pass to a lab: durations such as "15m", and fleets as VM names, a file or its text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from forewarn.base.duration import parse_duration
from forewarn.base.tomlfile import read_text_file, toml_value
from forewarn.core.fleetfile.reader import DeclaredFleet, read_fleet_file
from forewarn.errors import Rejected

DurationLike = str | float | timedelta  # "15m", "7d", "1h30m"; seconds; a timedelta


def duration_seconds(duration: DurationLike) -> float:
    """Return a duration in seconds; a number is seconds already."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if not isinstance(duration, str):
        return float(duration)
    try:
        return parse_duration(duration)
    except ValueError as error:
        raise Rejected(str(error)) from error


def utc_datetime(at: float) -> datetime:
    """Convert a time in seconds since 1970 to a datetime with the time zone UTC."""
    return datetime.fromtimestamp(at, UTC)


MAX_UPDATE_DOMAINS = 20  # of an availability set; with more VMs, several share a domain
_TERMINATE_NOTICE_MIN = 5


def load_fleet(path: str | Path) -> DeclaredFleet:
    """Read a fleet file and return the fleet that it declares; errors in it name the path."""
    return read_fleet_file(read_text_file(Path(path), "fleet file", "give another"), source=str(path))


def fleet_file_text(vms: Sequence[str], *, spot: Sequence[str] = (), availability_set: str = "") -> str:
    """Return the TOML text of a fleet file with the VMs of both lists, each on its own host.

    Maintenance of a host therefore affects one VM. Only `vms` have a terminate notification, and only they are in the
    availability set, which has as many update domains as `vms`, at most MAX_UPDATE_DOMAINS.
    """
    names = (*_name_list("vms", vms), *_name_list("spot", spot))
    if not names:
        raise Rejected("a lab needs at least one VM: give its name, as in Lab(vms=['web-0'])")
    return "\n".join(_fleet_tables(names, set(spot), availability_set, set_size=len(vms)))


def _name_list(parameter: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        raise Rejected(f"{parameter} is the text {names!r}: give a list of names, as in {parameter}=[{names!r}]")
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise Rejected(f"{parameter} is {names!r}: give a list of names, as in {parameter}=['web-0']")
    return tuple(names)


def _fleet_tables(names: Sequence[str], spot: set[str], availability_set: str, *, set_size: int) -> Iterator[str]:
    yield f'[[hosts]]\nname = "host-{{n}}"\ncount = {len(names) + 1}\n'
    if availability_set:
        domains = max(1, min(set_size, MAX_UPDATE_DOMAINS))
        yield f"[[availability_sets]]\nname = {toml_value(availability_set)}\nupdate_domains = {domains}\n"
    for number, name in enumerate(names):
        yield f'[[vms]]\nname = {toml_value(name)}\nhost = "host-{number}"'
        if name in spot:
            yield 'priority = "Spot"\n'
            continue
        if availability_set:
            yield f"availability_set = {toml_value(availability_set)}"
        # Without it a deletion would happen at once, with no event to test.
        yield f"terminate_notification = {_TERMINATE_NOTICE_MIN}\n"
