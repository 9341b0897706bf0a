"""Whether a VM polls for events, and whether it or a neighbour knows of a scheduled event.

A VM knows of an event that was delivered to it while it was scheduled. Another VM of the scope that knows of it may
prepare on its behalf. If it was delivered to no VM and none is about to poll, no handler can prepare.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from forewarn.core.event import Event, EventState
from forewarn.core.history import EventDelivery
from forewarn.protocol.versions import VERSIONS, version_lists_kind

SILENCE_LIMIT_S = 60.0  # a VM without a poll for longer has stopped polling: clients poll once a second (spec §8.5)


class PollingPace(NamedTuple):
    """How long a VM is silent and the gap between its polls (None: not known), in seconds of real time."""

    silent_s: float  # since its last poll, or since the end of its long poll; after a restart, a lower bound
    gap_s: float | None = None  # between its recent polls

    @property
    def is_silent(self) -> bool:
        """Whether it has stopped polling: its last poll or long poll ended over SILENCE_LIMIT_S ago."""
        return self.silent_s > SILENCE_LIMIT_S


class PollingState(StrEnum):
    """Whether a VM polls for events: now, no longer, never so far, or it is not running."""

    STOPPED = "stopped"  # it has polled, but not recently
    NEVER = "never"  # it has not polled yet
    ACTIVE = "now"
    OFF = "off"  # the VM is not running


class EventAwareness(StrEnum):
    """Whether a VM knows of a scheduled event that affects it, the worst first.

    No VM of its scope knows; one will soon, because it polls; only a neighbour knows; the VM itself was given it.
    """

    NO_VM = "nobody"  # no VM of the scope knows of it, and none is about to poll
    SOON = "soon"  # a VM of the scope polls, but has not since the event was published
    NEIGHBOUR = "neighbour"  # only other VMs of the scope know of it
    GIVEN = "given"  # it was delivered to the VM


def polling_state(pace: PollingPace | None, *, is_off: bool = False) -> PollingState:
    """Return whether a VM polls; `pace` is None if it never did, `is_off` (it does not run) comes first."""
    if is_off:
        return PollingState.OFF
    if pace is None:
        return PollingState.NEVER
    return PollingState.STOPPED if pace.is_silent else PollingState.ACTIVE


def can_still_prepare(event: Event) -> bool:
    """Return whether VMs that know of the event could still prepare: it is listed and has not started."""
    return event.status is EventState.SCHEDULED and event.listed and event.rules.kind is not None


def vms_given_before_start(deliveries: Iterable[EventDelivery]) -> set[str]:
    """Return the keys of the VMs that got an event before it started; `deliveries` are all of that event."""
    return {delivery.vm for delivery in deliveries if delivery.status == EventState.SCHEDULED}


class ScopePoller:
    """A VM of a scope that has polled: its pace now, the lab time of its last poll, and the api-version."""

    __slots__ = ("at", "pace", "version")

    def __init__(self, *, pace: PollingPace | None, at: float, version: str) -> None:
        self.pace, self.at, self.version = pace, at, version

    def will_poll_for(self, event: Event) -> bool:
        """Return whether its next poll will be the first to deliver the event.

        It must be polling, not have polled since the publication, and use an api-version that lists the kind (spec §3).
        """
        kind = event.rules.kind
        shows = kind is not None and self.version in VERSIONS and version_lists_kind(self.version, kind)
        return shows and polling_state(self.pace) is PollingState.ACTIVE and self.at <= event.published_at


def event_awareness(
    event: Event, vm: str, *, given: Collection[str], scope: Mapping[str, ScopePoller]
) -> EventAwareness:
    """Return whether the VM with this key knows of the event.

    `given` are the keys of the VMs that know of it; `scope` are the VMs of the scope that have polled, by key.
    """
    if vm in given:
        return EventAwareness.GIVEN
    if given:
        return EventAwareness.NEIGHBOUR
    return (
        EventAwareness.SOON if any(poller.will_poll_for(event) for poller in scope.values()) else EventAwareness.NO_VM
    )
