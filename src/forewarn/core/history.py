"""The append-only history: entries of what happened, and deliveries of events to VMs."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class EntryKind(StrEnum):
    """What a history entry is about. The values are stored, and `forewarn history` shows them."""

    REQUESTED = "requested"
    PUBLISHED = "published"
    AT_ONCE = "at once"  # performed without an event
    SKIPPED = "skipped"  # part of a request that is no longer possible
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
    REPLAYED = "replayed"  # a step of a recording was shown
    FLEET = "fleet"  # VMs or hosts were added, changed or removed, or settings of VMs changed
    HOST = "host"  # its health changed
    CLOCK = "clock"  # lab time jumped, or its speed changed
    FAULT = "fault"  # set, cleared, expired, or in effect
    ACCESS = "access"  # clients and grants were added or removed
    WEBHOOK = "webhook"  # added or removed
    SERVICE = "service"  # it started or stopped
    UPKEEP = "upkeep"  # the history was pruned or the store was copied
    PROGRAM = "program"  # the program in a namespace VM started or ended


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the append-only history: who did what when, as a sentence, and what it is about.

    `vm` is a name, set only if the entry is about a single VM. The store sets `seq`, which grows with every entry.
    """

    at: float  # lab time
    what: EntryKind
    text: str  # a sentence for people
    who: str = ""
    scope_id: str = ""
    event_id: str = ""
    request_id: str = ""
    vm: str = ""  # the name of the VM, if the entry is about a single one
    host: str = ""
    seq: int = 0  # given by the store


class EventDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """The first poll in which a VM (by its key) was given an event with this status."""

    event_id: str
    scope_id: str
    vm: str  # its key
    status: str  # a value of EventState
    version: str  # the api-version of the poll
    incarnation: int  # of the document
    at: float  # lab time
