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
from forewarn.protocol.versions import ALL_VERSIONS, version_lists_kind

SILENCE_LIMIT_S = 60.0  # a VM without a poll for longer has stopped polling: clients poll once a second (spec §8.5)


class PollingPace(NamedTuple):
    """How long ago a VM polled, and how often it does, in seconds of real time."""

    # A pace from stored polls is in lab time instead, and has no `gap_s`.

    silent_s: float  # since the last poll; for a long poll since it must have ended, and 0 before that
    gap_s: float | None = None  # the average between its recent polls; None: not known
    listened_s: float | None = None  # since the service started, if the VM has not polled since then; None: it has

    @property
    def is_silent(self) -> bool:
        """Whether the VM has stopped polling: more than 60 s (SILENCE_LIMIT_S) since its last poll ended."""
        return self.counted_s > SILENCE_LIMIT_S

    @property
    def counted_s(self) -> float:
        """How long the VM has been silent while the service ran: polls that it missed are not the VM's silence."""
        return self.silent_s if self.listened_s is None else self.listened_s


class PollingState(StrEnum):
    """Whether a VM polls for events: `now`, `stopped`, `never` or `off`; see `polling_state`."""

    STOPPED = "stopped"  # it has polled, but not recently
    NEVER = "never"  # it has not polled yet
    ACTIVE = "now"  # it polled within SILENCE_LIMIT_S (60 s), a long poll of it is held, or the service just started
    OFF = "off"  # the VM is not running


class EventAwareness(StrEnum):
    """Whether a VM can know of a scheduled event that affects it; members in order, the worst first."""

    NO_VM = "none"  # no VM of the scope knows of it, and none is about to poll
    PENDING = "pending"  # a VM of the scope polls, in a version that lists it, but not since it was published
    NEIGHBOUR = "neighbour"  # only other VMs of the scope know of it
    DELIVERED = "delivered"  # it was delivered to the VM


def polling_state(pace: PollingPace | None, *, is_off: bool = False) -> PollingState:
    """Return OFF if `is_off` (the VM is not running), else NEVER without a `pace`, else STOPPED or ACTIVE."""
    if is_off:
        return PollingState.OFF
    if pace is None:
        return PollingState.NEVER
    return PollingState.STOPPED if pace.is_silent else PollingState.ACTIVE


def can_still_prepare(event: Event) -> bool:
    """Return True if the event is scheduled and documents list it: VMs that know of it can still prepare."""
    return event.status is EventState.SCHEDULED and event.listed and event.rules.kind is not None


def vms_given_before_start(deliveries: Iterable[EventDelivery]) -> set[str]:
    """Return the keys of the VMs to which an event was delivered while it was scheduled."""
    return {delivery.vm for delivery in deliveries if delivery.status == EventState.SCHEDULED}


class ScopePoller:
    """A VM of a scope that has polled: its pace (None: not known), and time and api-version of its last poll."""

    __slots__ = ("at", "pace", "version")

    def __init__(self, *, pace: PollingPace | None, at: float, version: str) -> None:
        self.pace, self.at, self.version = pace, at, version

    def _will_poll_for(self, event: Event) -> bool:
        kind = event.rules.kind
        shows = kind is not None and self.version in ALL_VERSIONS and version_lists_kind(self.version, kind)
        return shows and polling_state(self.pace) is PollingState.ACTIVE and self.at <= event.published_at


def event_awareness(
    event: Event, vm: str, *, given: Collection[str], scope: Mapping[str, ScopePoller]
) -> EventAwareness:
    """Return whether the VM with the key `vm` knows of a scheduled event that affects it."""
    if vm in given:
        return EventAwareness.DELIVERED
    if given:
        return EventAwareness.NEIGHBOUR
    return (
        EventAwareness.PENDING
        if any(poller._will_poll_for(event) for poller in scope.values())
        else EventAwareness.NO_VM
    )
