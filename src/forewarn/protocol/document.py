"""The scheduled events document of a scope as values, before an api-version narrows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """The event types: what will happen to the VMs, in the spelling of documents (spec §4.2)."""

    FREEZE = "Freeze"  # paused for seconds; memory and open files stay
    REBOOT = "Reboot"  # memory is lost, disks stay
    REDEPLOY = "Redeploy"  # moved to another host; ephemeral disks are lost
    PREEMPT = "Preempt"  # a Spot VM is evicted
    TERMINATE = "Terminate"  # deleted
    SPOT_REBALANCE = "SpotRebalanceRecommendation"  # a Spot VM is likely to be evicted; nothing happens to it now


class NoticeStatus(StrEnum):
    """Whether a listed event has started. A finished or withdrawn event is not listed at all."""

    SCHEDULED = "Scheduled"  # it has not started: it waits for approval, for NotBefore or for something else
    STARTED = "Started"  # it is happening, or about to


class EventSource(StrEnum):
    """Who caused an event: PLATFORM ("Platform"), or USER ("User"), a user of the subscription."""

    PLATFORM = "Platform"
    USER = "User"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventNotice:
    """One event as the service lists it in a document, before an api-version selects its fields."""

    id: str  # EventId: a GUID in upper case
    status: NoticeStatus  # EventStatus: Scheduled or Started
    kind: Kind  # EventType
    resources: tuple[str, ...]  # names of the affected VMs as in compute.name, no underscore
    not_before: float | None  # POSIX seconds; None once started, or if a replayed event had none
    description: str = ""  # Description; "": none
    source: EventSource = EventSource.PLATFORM  # EventSource: Platform or User
    duration_s: int = -1  # expected length of the interruption, in seconds; 0: none, -1: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The scheduled events of one scope, in the order they were published.

    Documents of a scope with the same incarnation have the same content, until it is enabled anew (spec §4.2).
    """

    incarnation: int  # grows with each event that is added, started or removed
    notices: tuple[EventNotice, ...] = ()  # events of every kind; encoding leaves out what a version does not list
    roles: bool = False  # True: the scope is a cloud service; then names have no underscore in 2017-03-01

    def narrowed_to(self, vm: str) -> Document:
        """Return the document with only the events whose resources name this VM; the incarnation stays (spec §14.6)."""
        wanted = vm.casefold()
        own = tuple([one for one in self.notices if any(name.casefold() == wanted for name in one.resources)])
        return self if len(own) == len(self.notices) else replace(self, notices=own)
