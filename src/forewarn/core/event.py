"""An event, the acts that it performs, and the gate that starts the events of one host together.

Facts (approved by, started at, …) are fields. Only `lifecycle` changes `status`. A gate is released once, when every
event behind it is ready (spec §6.2); a release is never taken back, so no transaction spans scopes.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from forewarn.core.cause import CAUSE_RULES, Cause, CauseRules, Verb


class EventState(StrEnum):
    """The state of an event: scheduled, started, over. It never goes back. The values are stored."""

    SCHEDULED = "scheduled"
    STARTED = "started"
    OVER = "over"


class Ending(StrEnum):
    """How an event ended: finished, failed (an act did), or without a start: withdrawn or not needed.

    The values are stored.
    """

    FINISHED = "finished"
    FAILED = "failed"  # every act was tried, and at least one failed
    WITHDRAWN = "withdrawn"  # it never started
    NOT_NEEDED = "not needed"  # it never started, because all its VMs left the host that it is about (spec §6.4)


class ActOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one act ended, as the hypervisor reported it; also a failure because no host was free."""

    ok: bool
    at: float
    note: str = ""  # for people, above all why it failed


class Act(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation on one VM, to be performed until its outcome is known. Its id makes it idempotent."""

    id: str
    vm: str  # the VM's key
    name: str  # its name, as documents show it
    verb: Verb
    event_id: str
    from_host: str = ""
    to_host: str = ""
    duration_s: int = -1  # how long it should take; -1: not known
    keeps_vm: bool = True  # False: an eviction with policy Delete
    abrupt: bool = False  # the host has failed, so the VM cannot shut down
    outcome: ActOutcome | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Maintenance of VMs of one scope and one update domain, from publication to its end. Stored as JSON.

    Times are lab time.
    """

    id: str  # GUID, upper case
    scope_id: str
    request_id: str
    cause: Cause
    who: str  # who requested it
    vms: tuple[str, ...]  # names as documents show them
    published_at: float
    not_before: float
    seq: int = 0  # order of publication within the scope
    update_domain: int = 0
    host: str = ""  # the host that the work is about, if any
    gate_id: str = ""
    listed: bool = True  # False: performed at once, and no document shows it
    note: str = ""  # for people: why it has no or less notice than usual
    status: EventState = EventState.SCHEDULED
    approved_at: float | None = None
    approved_by: str = ""
    started_at: float | None = None
    acts: tuple[Act, ...] = ()
    over_at: float | None = None
    ending: Ending | None = None
    reason: str = ""  # for people: why it failed or was withdrawn
    replaces: tuple[str, ...] = ()  # ids of the pending events that it replaced
    faults: tuple[str, ...] = ()  # ids of the faults that changed it

    @property
    def rules(self) -> CauseRules:
        """The rules of its cause."""
        return CAUSE_RULES[self.cause]

    @property
    def is_live(self) -> bool:
        """Whether it is scheduled or started."""
        return self.status is not EventState.OVER

    @property
    def is_withdrawn(self) -> bool:
        """Whether it ended without having started, for any reason."""
        return self.ending in (Ending.WITHDRAWN, Ending.NOT_NEEDED)

    @property
    def unfinished_acts(self) -> tuple[Act, ...]:
        """The acts whose outcome is not known yet; () before the start."""
        return tuple(act for act in self.acts if act.outcome is None)

    @property
    def failed_acts(self) -> tuple[Act, ...]:
        """The acts that ended with a failure; () before the start."""
        return tuple(act for act in self.acts if act.outcome is not None and not act.outcome.ok)

    def is_ready(self, now: float) -> bool:
        """Return whether it is approved, or its NotBefore has passed (spec §6.2).

        It may still wait for other events: `release.start_wait` says whether it starts.
        """
        return self.approved_at is not None or now >= self.not_before


def act_id(event_id: str, vm_name: str) -> str:
    """Return the id of an event's act on the VM of this name: `EVENT_ID:name`, the name in lower case."""
    return f"{event_id}:{vm_name.casefold()}"


class Gate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Starts the events of several scopes on one host together: released once, when all of them are ready."""

    id: str
    request_id: str
    host: str
    version: int = 0
    released_at: float | None = None
    wakes_at: float | None = 0.0  # when to check it next; None: never again
