"""An event, the acts that it performs, and the gate that starts the events of one host together.

Facts (approved by, started at, …) are fields. Only `lifecycle` changes `status`. A gate is released when every
event behind it is ready (spec §6.2). A release is taken back only if none of them has started, so no transaction spans
scopes.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from forewarn.base.times import LabTime
from forewarn.core.cause import CAUSE_RULES, Cause, CauseRules, Verb
from forewarn.core.windows import MaintenanceCalendar, is_open


class EventState(StrEnum):
    """The state of an event: scheduled, started, over. It never goes back. The values are stored."""

    SCHEDULED = "scheduled"  # published, and not started
    STARTED = "started"  # its acts are being performed, or have ended and it is still listed for a while
    OVER = "over"  # `Ending` says how it ended


class Ending(StrEnum):
    """How an event ended: finished, failed (an act did), or without a start: withdrawn or not needed."""

    FINISHED = "finished"  # every act succeeded
    FAILED = "failed"  # every act has ended, and at least one failed
    WITHDRAWN = "withdrawn"  # it never started: withdrawn, replaced, or without VMs
    NOT_NEEDED = "not needed"  # it never started: its VMs left the host that it is about, or it has no impact


class ActOutcome(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How one act ended, as the hypervisor reported it, or why the service itself ended it as failed."""

    ok: bool  # whether the act succeeded
    at: LabTime
    note: str = ""  # for people, above all why it failed


class Act(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One operation on one VM, made when its event starts. Hypervisors know it by its id when it is repeated."""

    id: str  # `EVENT_ID:name`, with the VM's name in lower case; `act_id` makes it
    vm: str  # the VM's key
    name: str  # its name, as documents show it
    verb: Verb
    event_id: str  # of the event that it belongs to
    from_host: str = ""  # where the VM is when the act is made; "": on no host
    to_host: str = ""  # where the act brings it; "": it stays where it is, leaves its host, or no host is free
    duration_s: int = -1  # how long it should take, in seconds; -1: not known
    keeps_vm: bool = True  # False: an eviction with policy Delete
    abrupt: bool = False  # the host has failed, so the VM cannot shut down
    is_stopped: bool = False  # the VM was stopped on purpose when the act was made: it stays off, unless it is started
    outcome: ActOutcome | None = None  # None: not known yet


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Maintenance of VMs of one scope and one update domain, from publication to its end. Stored as JSON.

    Only a fault makes an event whose VMs are in several update domains. Only the functions of `lifecycle` change
    `status`.
    """

    id: str  # GUID, upper case
    scope_id: str  # the id of the scope that all its VMs are in
    request_id: str  # of the request; for an event that a fault made, the id of the fault
    cause: Cause
    requested_by: str  # the name of who requested it
    vms: tuple[str, ...]  # names as documents show them
    published_at: float  # when it was published; if it is not listed, performed
    not_before: float  # when it may start without an approval
    seq: int = 0  # order of publication within the scope; `Scope.with_event` sets it
    update_domain: int = 0  # the update domain of its first VM, and in general of all, from 0
    host: str = ""  # the name of the host that the work is about; "": none
    gate_id: str = ""  # of the gate that it waits for; "": none
    listed: bool = True  # False: performed at once, and no document shows it
    note: str = ""  # for people: why it has no, less or more notice than usual, or which fault made it
    status: EventState = EventState.SCHEDULED  # scheduled, started or over
    approved_at: float | None = None  # None: not approved
    approved_by: str = ""  # a name, or "policy": `Vm.auto_approve` approved it
    started_at: float | None = None  # None: it has not started
    removed_vms: tuple[str, ...] = ()  # of `vms`: removed while it was scheduled; it skips VMs added under these names
    acts: tuple[Act, ...] = ()  # one per VM that it still affected when it started; () before
    over_at: float | None = None  # None: it is live
    ending: Ending | None = None  # None: it is live
    reason: str = ""  # for people: why it failed, was withdrawn or was not needed
    replaces: tuple[str, ...] = ()  # ids of the pending events that it replaced
    faults: tuple[str, ...] = ()  # ids of the faults that made or changed it
    calendar: MaintenanceCalendar | None = None  # when it may start without an approval, as of now; None: at any time
    is_postponed: bool = False  # withdrawn because a check paused its rollout: its VMs get new events when that resumes

    @property
    def rules(self) -> CauseRules:
        """The rules of the event's cause: type, source, verb, notice and so on."""
        return CAUSE_RULES[self.cause]

    @property
    def is_live(self) -> bool:
        """Whether the event is scheduled or started, so not over."""
        return self.status is not EventState.OVER

    @property
    def is_withdrawn(self) -> bool:
        """Whether the event ended without having started: its ending is WITHDRAWN or NOT_NEEDED."""
        return self.ending in (Ending.WITHDRAWN, Ending.NOT_NEEDED)

    @property
    def starts_at_deadline(self) -> bool:
        """Whether the event may start outside of its maintenance windows, because of a deadline (spec §13.3)."""
        if self.calendar is None or self.calendar.deadline is None or self.not_before < self.calendar.deadline:
            return False
        return not is_open(self.calendar, self.not_before)

    @property
    def unfinished_acts(self) -> tuple[Act, ...]:
        """The event's acts (each an operation on one VM) that have no outcome yet; () before the start."""
        return tuple(act for act in self.acts if act.outcome is None)

    @property
    def failed_acts(self) -> tuple[Act, ...]:
        """The event's acts (each an operation on one VM) that have failed so far; () before the start."""
        return tuple(act for act in self.acts if act.outcome is not None and not act.outcome.ok)

    def is_ready(self, now: float) -> bool:
        """Return whether the event is approved, or lab time `now` has reached its NotBefore (spec §6.2)."""
        # A ready event may still wait for others, for a gate or for a hold: `release.start_wait` says whether it
        # starts.
        return self.approved_at is not None or now >= self.not_before


def act_id(event_id: str, vm_name: str) -> str:
    """Return the id of an event's act on the VM of this name: `EVENT_ID:name`, the name in lower case."""
    return f"{event_id}:{vm_name.casefold()}"


class Gate(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Starts the events of all scopes on one host together: released when all of them are ready.

    The release is final once an event behind it has started; until then it may be taken back.
    """

    id: str  # GUID, upper case
    request_id: str  # of the rollout
    host: str  # its name
    version: int = 0  # the version of the stored row, for optimistic commits
    released_at: float | None = None  # None: not released
    wakes_at: float | None = 0.0  # when to check it next; 0.0: at once; None: only when a commit wakes it
