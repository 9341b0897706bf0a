"""Whether a VM polls for events, and whether anybody in its scope knows of an event that is scheduled.

A VM knows of an event if it was given it while it was scheduled. Another VM of the scope that was given it may
prepare on its behalf. Where no VM was given it and none is about to poll, no handler can prepare.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from forewarn.core.event import Event, EventState
from forewarn.core.history import EventDelivery
from forewarn.protocol.versions import VERSIONS, version_lists_kind

SILENCE_LIMIT_S = 60.0  # whoever has asked within this time still asks


class PollingPace(NamedTuple):
    silent_s: float  # since it last asked, and a long poll it sent was to be answered; at least, after a restart
    gap_s: float | None = None  # between two requests, of late

    @property
    def is_silent(self) -> bool:
        return self.silent_s > SILENCE_LIMIT_S


class PollingState(StrEnum):
    """Whether a VM asks for events."""

    STOPPED = "stopped"  # it did once
    NEVER = "never"
    ACTIVE = "now"
    OFF = "off"  # it does not run, so nothing in it can ask


class EventAwareness(StrEnum):
    """Whether a VM knows of an event that awaits it, the worst first."""

    NOBODY = "nobody"  # was given it: unprepared
    SOON = "soon"  # it asks, and has not since the event was published
    NEIGHBOUR = "neighbour"  # only others of its scope were given it
    GIVEN = "given"


def polling_state(pace: PollingPace | None, *, is_off: bool = False) -> PollingState:
    if is_off:
        return PollingState.OFF
    if pace is None:
        return PollingState.NEVER
    return PollingState.STOPPED if pace.is_silent else PollingState.ACTIVE


def can_still_prepare(event: Event) -> bool:
    """Whether VMs could still prepare for it, if they knew."""
    return event.status is EventState.SCHEDULED and event.listed and event.rules.kind is not None


def vms_given_before_start(sightings: Iterable[EventDelivery]) -> set[str]:
    """The keys of the VMs that were given an event before it started."""
    return {sighting.vm for sighting in sightings if sighting.status == EventState.SCHEDULED}


class ScopePoller:
    """One VM of a scope that has ever asked: how it does now, when it last did in lab time, and in which version."""

    __slots__ = ("at", "pace", "version")

    def __init__(self, *, pace: PollingPace | None, at: float, version: str) -> None:
        self.pace, self.at, self.version = pace, at, version

    def will_poll_for(self, event: Event) -> bool:
        """It has not had the chance yet, and what it asks with shows events of this kind (spec §3)."""
        kind = event.rules.kind
        shows = kind is not None and self.version in VERSIONS and version_lists_kind(self.version, kind)
        return shows and polling_state(self.pace) is PollingState.ACTIVE and self.at <= event.published_at


def event_awareness(
    event: Event, vm: str, *, given: Collection[str], scope: Mapping[str, ScopePoller]
) -> EventAwareness:
    """Of the VM with this key; `scope` are those in its scope that have ever asked, by their keys."""
    if vm in given:
        return EventAwareness.GIVEN
    if given:
        return EventAwareness.NEIGHBOUR
    return EventAwareness.SOON if any(one.will_poll_for(event) for one in scope.values()) else EventAwareness.NOBODY
