"""Who pays attention: whether a VM still asks for events, and whether anybody was told of the one that awaits it.

An event is known to a VM when it was given it while it was scheduled; a neighbour in the scope who was given it may
prepare for the VM. Where nobody was, and nobody is about to ask, the VM will be hit unprepared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from forewarn.core.event import Event, Status
from forewarn.core.history import Sighting
from forewarn.core.pace import Pace
from forewarn.protocol.versions import VERSIONS, shows_kind


class Asks(StrEnum):
    """Whether a VM asks for events."""

    STOPPED = "stopped"  # it did once
    NEVER = "never"
    NOW = "now"
    OFF = "off"  # it does not run, so nothing in it can ask


class Told(StrEnum):
    """Whether a VM knows of an event that awaits it, the worst first."""

    NOBODY = "nobody"  # was given it: unprepared
    SOON = "soon"  # it asks, and has not since the event was published
    NEIGHBOUR = "neighbour"  # only others of its scope were given it
    GIVEN = "given"


def asks(pace: Pace | None, *, is_off: bool = False) -> Asks:
    if is_off:
        return Asks.OFF
    if pace is None:
        return Asks.NEVER
    return Asks.STOPPED if pace.is_silent else Asks.NOW


def awaits(event: Event) -> bool:
    """Whether VMs could still prepare for it, if they knew."""
    return event.status is Status.SCHEDULED and event.listed and event.row.kind is not None


def given_to(sightings: Iterable[Sighting]) -> set[str]:
    """The keys of the VMs that were given an event before it started."""
    return {sighting.vm for sighting in sightings if sighting.status == Status.SCHEDULED}


class Neighbour:
    """One VM of a scope that has ever asked: how it does now, when it last did in lab time, and in which version."""

    __slots__ = ("at", "pace", "version")

    def __init__(self, *, pace: Pace | None, at: float, version: str) -> None:
        self.pace, self.at, self.version = pace, at, version

    def will_ask_for(self, event: Event) -> bool:
        """It has not had the chance yet, and what it asks with shows events of this kind (spec §3)."""
        kind = event.row.kind
        shows = kind is not None and self.version in VERSIONS and shows_kind(self.version, kind)
        return shows and asks(self.pace) is Asks.NOW and self.at <= event.published_at


def told(event: Event, vm: str, *, given: Collection[str], scope: Mapping[str, Neighbour]) -> Told:
    """Of the VM with this key; `scope` are those in its scope that have ever asked, by their keys."""
    if vm in given:
        return Told.GIVEN
    if given:
        return Told.NEIGHBOUR
    return Told.SOON if any(one.will_ask_for(event) for one in scope.values()) else Told.NOBODY
