"""The scheduled events document of a scope as values, before an api-version narrows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What will happen to the VMs (spec §4.2)."""

    FREEZE = "Freeze"
    REBOOT = "Reboot"
    REDEPLOY = "Redeploy"
    PREEMPT = "Preempt"
    TERMINATE = "Terminate"


class NoticeStatus(StrEnum):
    """A finished or withdrawn event has no status: it is no longer listed."""

    SCHEDULED = "Scheduled"
    STARTED = "Started"


class EventSource(StrEnum):
    PLATFORM = "Platform"
    USER = "User"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventNotice:
    """One event as the wire shows it."""

    id: str
    status: NoticeStatus
    kind: Kind
    resources: tuple[str, ...]  # names as in compute.name, no underscore
    not_before: float | None  # POSIX seconds; None once started
    description: str = ""
    source: EventSource = EventSource.PLATFORM
    duration_s: int = -1  # 0: no interruption, -1: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Same incarnation, same content (spec §4.2). Notices stand in the order they were published."""

    incarnation: int
    notices: tuple[EventNotice, ...] = ()
    roles: bool = False  # True: the scope is a cloud service, its names carry no 2017 underscore
