"""The append-only history: entries of what happened, and deliveries of events to VMs."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class EntryKind(StrEnum):
    """Everything the history can say."""

    REQUESTED = "requested"
    PUBLISHED = "published"
    AT_ONCE = "at once"  # carried out with no event, and why
    SKIPPED = "skipped"  # part of a request that no longer made sense
    APPROVED = "approved"
    RELEASED = "released"  # a gate let its events start together
    STARTED = "started"
    PERFORMED = "performed"
    FAILED = "failed"
    RETRIED = "retried"
    FINISHED = "finished"
    WITHDRAWN = "withdrawn"
    ENABLED = "enabled"
    DISABLED = "disabled"
    PAUSED = "paused"
    RESUMED = "resumed"
    STOPPED = "stopped"  # a rollout stopped itself or was aborted
    COMPLETED = "completed"  # a rollout has nothing left to do
    REPLAYED = "replayed"  # a step of a recorded story was shown
    FLEET = "fleet"
    HOST = "host"
    CLOCK = "clock"
    FAULT = "fault"  # set, cleared, run out, or at work
    ACCESS = "access"  # clients and grants come and go
    WEBHOOK = "webhook"  # somebody outside is told from now on, or no longer
    SERVICE = "service"
    UPKEEP = "upkeep"  # somebody pruned the history or copied the store
    PROGRAM = "program"  # what runs inside a VM began or ended


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: float
    what: EntryKind
    text: str  # a sentence for people
    who: str = ""
    scope_id: str = ""
    event_id: str = ""
    request_id: str = ""
    vm: str = ""  # a VM's name, where the entry is about one
    host: str = ""
    seq: int = 0  # given by the store


class EventDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A VM was given an event for the first time in this status."""

    event_id: str
    scope_id: str
    vm: str
    status: str
    version: str  # the api-version it asked with
    incarnation: int
    at: float
