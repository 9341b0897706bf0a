"""An event, the acts it owes once started, and the gate that starts the events of one host together.

Facts (approved by, started at, …) are fields. Only `lifecycle` changes `status`. A gate is released once, when every
event behind it is ready (spec §6.2); a release is never taken back, so no transaction spans scopes.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from forewarn.core.cause import CAUSE_RULES, Cause, CauseRules, Verb


class EventState(StrEnum):
    SCHEDULED = "scheduled"
    STARTED = "started"
    OVER = "over"


class Ending(StrEnum):
    """How an event came to be over."""

    FINISHED = "finished"
    FAILED = "failed"  # it ran its course, but at least one VM's act failed
    WITHDRAWN = "withdrawn"


class ActOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one act ended, as its hypervisor told."""

    ok: bool
    at: float
    note: str = ""


class Act(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing done to one VM, owed until its outcome is known. Performing it again by its id changes nothing."""

    id: str
    vm: str  # the VM's key
    name: str  # its name, as documents show it
    verb: Verb
    event_id: str
    from_host: str = ""
    to_host: str = ""
    duration_s: int = -1
    keeps_vm: bool = True  # an eviction by policy Deallocate keeps it, Delete does not
    abrupt: bool = False  # its host has failed: what runs inside is given no moment to end
    outcome: ActOutcome | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str  # GUID, upper case
    scope_id: str
    request_id: str
    cause: Cause
    who: str  # who asked for it
    vms: tuple[str, ...]  # names as documents show them
    published_at: float
    not_before: float
    seq: int = 0  # order of publication within the scope
    update_domain: int = 0
    host: str = ""  # the host that the work is about, if any
    gate_id: str = ""
    listed: bool = True  # False: carried out at once, no document ever shows it
    note: str = ""  # why it is as it is, for people
    status: EventState = EventState.SCHEDULED
    approved_at: float | None = None
    approved_by: str = ""
    started_at: float | None = None
    acts: tuple[Act, ...] = ()
    over_at: float | None = None
    ending: Ending | None = None
    reason: str = ""
    replaces: tuple[str, ...] = ()  # ids of the pending ones whose place it took
    faults: tuple[str, ...] = ()  # ids of those that touched it

    @property
    def rules(self) -> CauseRules:
        return CAUSE_RULES[self.cause]

    @property
    def is_live(self) -> bool:
        return self.status is not EventState.OVER

    @property
    def unfinished_acts(self) -> tuple[Act, ...]:
        """The acts whose outcome is not known yet: what must still be done, read off the record."""
        return tuple(act for act in self.acts if act.outcome is None)

    @property
    def failed_acts(self) -> tuple[Act, ...]:
        return tuple(act for act in self.acts if act.outcome is not None and not act.outcome.ok)

    def is_ready(self, now: float) -> bool:
        """Spec §6.2: approved, or NotBefore has passed."""
        return self.approved_at is not None or now >= self.not_before


def act_id(event_id: str, vm_name: str) -> str:
    return f"{event_id}:{vm_name.casefold()}"


class Gate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    request_id: str
    host: str
    version: int = 0
    released_at: float | None = None
    wakes_at: float | None = 0.0  # when to look at it next; None once there is nothing left to look at
