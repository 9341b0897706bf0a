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
    """How long ago a VM polled, and how often it does, in seconds of real time.

    A VM that never polled has None instead of a pace. For a VM that has polled, but not since the service started,
    `silent_s` counts from the start of the service. A pace from stored polls is in lab time instead, always counts from
    the poll, and has no `gap_s`.
    """

    silent_s: float  # since the last poll; for a long poll since it must have ended, and 0 before that
    gap_s: float | None = None  # the average between its recent polls; None: not known

    @property
    def is_silent(self) -> bool:
        """Whether the VM has stopped polling: more than 60 s (SILENCE_LIMIT_S) since its last poll ended.

        A long poll counts as polling until its longest end. For a VM that has not polled since the service started, the
        60 s count from that start.
        """
        return self.silent_s > SILENCE_LIMIT_S


class PollingState(StrEnum):
    """Whether a VM polls for events: `now`, `stopped`, `never` or `off`; see `polling_state`.

    ACTIVE (`now`): it polled within 60 s of real time (of lab time, if its pace is from stored polls), a long poll of
    it is held, or it polled before and the service started less than 60 s ago. STOPPED: it has polled, but not so
    recently. NEVER: it has not polled yet. OFF: the VM is not running. Metrics show the values.
    """

    STOPPED = "stopped"  # it has polled, but not recently
    NEVER = "never"  # it has not polled yet
    ACTIVE = "now"  # it polled within SILENCE_LIMIT_S (60 s), a long poll of it is held, or the service just started
    OFF = "off"  # the VM is not running


class EventAwareness(StrEnum):
    """Whether a VM can know of a scheduled event that affects it; members in order, the worst first.

    NO_VM (`nobody`): no VM of its scope knows, and none is about to poll. SOON: none knows yet, but one that polls is
    about to get it. NEIGHBOUR: only other VMs of the scope know. GIVEN: the event was delivered to the VM itself.
    """

    NO_VM = "nobody"  # no VM of the scope knows of it, and none is about to poll
    SOON = "soon"  # a VM of the scope polls, in a version that lists it, but not since it was published
    NEIGHBOUR = "neighbour"  # only other VMs of the scope know of it
    GIVEN = "given"  # it was delivered to the VM


def polling_state(pace: PollingPace | None, *, is_off: bool = False) -> PollingState:
    """Return OFF if `is_off` (the VM is not running), else NEVER without a `pace`, else STOPPED or ACTIVE.

    `pace` is None if the VM has never polled. It is STOPPED if the VM has been silent for more than SILENCE_LIMIT_S (60
    s), counted from the start of the service if the VM has not polled since.
    """
    if is_off:
        return PollingState.OFF
    if pace is None:
        return PollingState.NEVER
    return PollingState.STOPPED if pace.is_silent else PollingState.ACTIVE


def can_still_prepare(event: Event) -> bool:
    """Return True if the event is scheduled and documents list it: VMs that know of it can still prepare."""
    return event.status is EventState.SCHEDULED and event.listed and event.rules.kind is not None


def vms_given_before_start(deliveries: Iterable[EventDelivery]) -> set[str]:
    """Return the keys of the VMs to which an event was delivered while it was scheduled.

    `deliveries` are those of that event, to all VMs and in any status.
    """
    return {delivery.vm for delivery in deliveries if delivery.status == EventState.SCHEDULED}


class ScopePoller:
    """A VM of a scope that has polled: its pace now, and the time and api-version of its last poll.

    `at` is the lab time of that poll in POSIX seconds, `version` its api-version. `pace` says how long ago it polled;
    None: not known, and then the VM does not count as polling. `event_awareness` takes one for each such VM.
    """

    __slots__ = ("at", "pace", "version")

    def __init__(self, *, pace: PollingPace | None, at: float, version: str) -> None:
        self.pace, self.at, self.version = pace, at, version

    def _will_poll_for(self, event: Event) -> bool:
        """Return True if the next poll of this VM is expected to deliver the event to it for the first time.

        The VM must be polling (not silent for over SILENCE_LIMIT_S), not have polled since the event was published, and
        use an api-version that lists the event's kind (spec §3). Returns False for an event without a kind.
        """
        kind = event.rules.kind
        shows = kind is not None and self.version in ALL_VERSIONS and version_lists_kind(self.version, kind)
        return shows and polling_state(self.pace) is PollingState.ACTIVE and self.at <= event.published_at


def event_awareness(
    event: Event, vm: str, *, given: Collection[str], scope: Mapping[str, ScopePoller]
) -> EventAwareness:
    """Return whether the VM with the key `vm` knows of a scheduled event that affects it.

    `given` are the keys of the VMs to which the event was delivered while it was scheduled. `scope` has the VMs of the
    scope that have polled, by key, without VMs to which narrow delivery does not show the event. It is GIVEN if `vm` is
    in `given`, else NEIGHBOUR if another VM is, else SOON if a VM in `scope` is about to get it, else NO_VM. A VM is
    about to get it if it polls now, has not polled since the publication, and uses an api-version that lists the
    event's kind.
    """
    if vm in given:
        return EventAwareness.GIVEN
    if given:
        return EventAwareness.NEIGHBOUR
    return (
        EventAwareness.SOON if any(poller._will_poll_for(event) for poller in scope.values()) else EventAwareness.NO_VM
    )
