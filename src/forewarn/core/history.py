"""The append-only history: entries of what happened, deliveries of events to VMs, and their last polls."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from forewarn.base.times import LabTime, RealTime

SERVICE_STARTED = "service started"  # the beginning of the entry of a service that starts: explanations look for it
SERVICE_STOPPED = "service stopped"  # the entry of a service that stops; one that crashes leaves none


class EntryKind(StrEnum):
    """What a history entry is about. The values are stored, and `forewarn history` shows them."""

    REQUESTED = "requested"  # a maintenance request was accepted
    PUBLISHED = "published"  # an event was, with notice
    AT_ONCE = "at once"  # performed without an event that VMs see
    SKIPPED = "skipped"  # part of a request that is no longer possible
    APPROVED = "approved"
    RELEASED = "released"  # a gate let its events start together, or, if none of them did, was closed again
    STARTED = "started"
    PERFORMED = "performed"  # an act on one VM succeeded
    FAILED = "failed"  # an act on one VM failed
    RETRIED = "retried"  # an act will be, because an attempt failed or the hypervisor was unavailable
    FINISHED = "finished"  # an event is over, even if some of its acts failed
    WITHDRAWN = "withdrawn"  # an event ended without a start
    NOT_NEEDED = "not needed"  # likewise, because its VMs have all left its host (spec §6.4), or it has no impact
    ENABLED = "enabled"  # scheduled events of a scope
    DISABLED = "disabled"  # scheduled events of a scope
    PAUSED = "paused"  # a rollout, also one whose checks let it publish nothing; or all of them are on hold
    RESUMED = "resumed"  # a rollout, also one whose checks are clear again; or the hold on all is lifted
    WAVE = "wave"  # a wave of a rollout began, or is over and settles
    STOPPED = "stopped"  # a rollout stopped itself or was aborted, or a replay ended early
    COMPLETED = "completed"  # a rollout has nothing left to do, or a replay has shown all
    REPLAYED = "replayed"  # a step of a recording was shown
    FLEET = "fleet"  # VMs, hosts, maintenance configurations or settings of VMs were added, changed or removed
    HOST = "host"  # its health changed, or it was confirmed down
    UNANNOUNCED = "unannounced"  # a VM or host changed without an act: a crash, a move by hand, no answer
    CLOCK = "clock"  # lab time jumped, or its speed changed
    FAULT = "fault"  # set, cleared, expired, or in effect
    ACCESS = "access"  # clients and grants were added or removed, or a client got a new secret
    WEBHOOK = "webhook"  # added or removed
    SERVICE = "service"  # it started or stopped, or has lost commits
    UPKEEP = "upkeep"  # the history was pruned or the store was copied
    BUDGET = "budget"  # set or removed
    STANDING_ORDER = "standing order"  # set or removed
    PROGRAM = "program"  # the program in a namespace VM started or ended


class HistoryEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One entry of the append-only history: who did what when, as a sentence, and what it is about.

    Ids and names are "" where the entry is not about such a thing; `vm` is set only if it is about a single VM. The
    store sets `seq`.
    """

    at: LabTime
    kind: EntryKind  # its kind
    text: str  # a sentence for people
    actor: str = ""  # the name of the user or client, or of the service itself
    scope_id: str = ""  # for entries of a decision, `Scope.with_entries` sets it
    event_id: str = ""  # GUID, upper case
    request_id: str = ""  # GUID, lower case; for an event that a fault made, the id of the fault
    vm: str = ""  # the name of the VM, if the entry is about a single one
    host: str = ""  # its name
    seq: int = 0  # given by the store, from 1; 0: not stored yet


class EventDelivery(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The first poll in which a VM was given an event in a state (scheduled or started)."""

    event_id: str  # GUID, upper case
    scope_id: str  # the id of the VM when it polled
    vm: str  # its key
    status: str  # a value of EventState
    version: str  # the api-version of the poll
    incarnation: int  # the incarnation of the document
    at: LabTime


class LastPoll(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The latest poll or approval of one VM, and how many it has sent. The store keeps one for each VM."""

    vm: str  # the key of the VM
    scope_id: str  # the id of the VM's scope
    at: LabTime
    version: str  # api-version of the request
    count: int = 0  # polls and approvals of this VM since it was added; in the batch of a worker, since its last batch
    agent: str = ""  # the client program, from its User-Agent
    wait_s: int = 0  # for how many seconds the server may hold the response; until then it counts as polling
    vm_id: str = ""  # tells VMs apart that had the same key one after the other; "": not known
    real_at: RealTime = RealTime(0)  # by the clock of the process that stores it; 0: not known
