"""What an act on a real VM consists of: durable steps, the operations in them, and decisions.

`move` and `in_place` decide, as pure functions, from the journal's record of an act and what is observed on its hosts.
`acts` carries the decisions out. A step is in the journal before an operation of that step takes effect.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from forewarn.base.duration import exact_duration_text
from forewarn.base.times import LabSeconds, LabTime
from forewarn.core.cause import Verb
from forewarn.machines.driver import MachineState, MigrationProgress


class Step(StrEnum):
    """A durable step of an act on a real VM: it is in the journal before one of its operations takes effect."""

    BEGIN = "begin"  # nothing has been done; the marks on the hosts are read
    PAUSE = "pause"
    HOLD = "hold"  # paused, until the announced time is over
    RESUME = "resume"
    SHUT_DOWN = "shut-down"  # the guest is asked to shut down
    POWER_OFF = "power-off"  # the VM is ended without asking the guest
    RESET = "reset"  # of a paused or halted VM, which is then resumed
    BOOT = "boot"
    REMOVE = "remove"
    REIMAGE = "reimage"
    PREPARE = "prepare"  # this and the following ones are steps of a move; the VM gets ready on the destination
    SEND = "send"  # a live migration from the source has begun
    ABORT = "abort"  # the migration is cancelled, and the VM continues on the source
    UNDO = "undo"  # the destination forgets the VM; also of a start that was given up
    ACTIVATE = "activate"  # the source has released the VM: it continues on the destination
    CLEAN_UP = "clean-up"  # the VM is on the destination: the source forgets it
    RETURN = "return"  # the destination cannot run the VM and forgets it, or is down: the VM goes back to the source


class Release(StrEnum):
    """Why a VM certainly does not run on the source of its move, so that it may run elsewhere. Stored."""

    STOPPED = "stopped"  # the source reported that it is off, or does not know it
    SENT = "sent"  # the source reported that its live migration has completed
    FENCED = "fenced"  # the source was fenced, or the operator confirmed that it is down
    LOCKED = "locked"  # the locks of its disks were free, which the source would hold if the VM ran there


class StepEntry(msgspec.Struct, frozen=True, kw_only=True):
    """When an act entered a step; part of the journal's record of the act."""

    step: Step  # the one that was entered
    lab_at: LabTime
    real_at: float  # real time; both are POSIX seconds


class MachineActRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's record of one act on a real VM, or of one step of a move between two hypervisors."""

    act_id: str  # of a step of a move between two hypervisors: `ACT/STEP`
    verb: Verb
    vm: str  # the VM's key
    name: str  # the VM's name, as drivers know it
    source: str  # the host where the VM is, or where a start brings it; "": none
    destination: str = ""  # the host that the act brings it to; "": none, or a step of a move other than its activation
    is_abrupt: bool = False  # the source has failed: the guest is not asked, and the source is fenced
    is_stopped: bool = False  # the VM was stopped by its user, and stays off unless the act starts it
    keeps_disks: bool = True  # False: its disks are deleted when the VM is removed
    hold_s: LabSeconds = 0.0  # how long a freeze lasts
    steps: tuple[StepEntry, ...] = ()  # oldest first; a step may occur again
    release: Release | None = None  # None: the VM may run on the source
    failure: str = ""  # for people: why it is given up, unless a move completes all the same; "": it is not
    detail: str = ""  # for people: what the outcome also says
    downtime_ms: int | None = None  # of a live migration, as its source measured it; None: not known
    ok: bool | None = None  # None: it has not ended
    note: str = ""  # for people: the outcome

    @property
    def step(self) -> Step:
        return self.steps[-1].step

    @property
    def is_move(self) -> bool:
        """Whether the act moves the VM between two hosts: its verb is migrate or redeploy."""
        return self.verb.rules.moves

    @property
    def is_live(self) -> bool:
        """Whether the act moves the VM with its memory, running: its verb is migrate."""
        return self.verb is Verb.MIGRATE

    @property
    def boots_with_fresh_disk(self) -> bool:
        """Whether the VM gets a new and empty ephemeral disk when the act boots it."""
        return bool(self.destination) and self.step is not Step.RETURN

    @property
    def stays_off(self) -> bool:
        """Whether a move leaves the VM off: its user stopped it, or it was off before its live migration."""
        was_off = self.is_live and self.release is Release.STOPPED and self.entry(Step.SEND) is None
        return self.is_stopped or was_off

    def entry(self, step: Step) -> StepEntry | None:
        """Return when the act last entered this step; None if it never did."""
        return next((entry for entry in reversed(self.steps) if entry.step is step), None)


class Operation(StrEnum):
    """An operation of `MachineDriver` that an act performs in one of its steps; all may be repeated there."""

    PAUSE = "pause"
    RESUME = "resume"
    RESET = "reset"  # then resume
    PRESS_POWER_BUTTON = "press the power button"
    POWER_ON = "power on"
    POWER_OFF = "power off"
    REMOVE = "remove"
    REIMAGE = "reimage"
    COPY_DEFINITION = "define"
    PREPARE_TO_RECEIVE = "prepare to receive"
    SEND = "send"
    CANCEL_SEND = "cancel the migration"
    FENCE = "fence"


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the hosts of an act when the next decision about it is made."""

    source: MachineState | None  # of the VM on the act's source; ABSENT if it has none
    destination: MachineState | None = MachineState.ABSENT  # of the VM on the act's destination, if the act moves it
    progress: MigrationProgress | None = None  # of a live migration; None: not asked, or no answer
    is_source_down: bool = False  # it is silent, and was fenced just now, or the operator confirmed that it is down
    is_destination_down: bool = False  # the same for the destination
    can_lock_disks: bool = False  # the source is silent, and does not hold the locks of the disks; not asked: False
    may_fence: bool = False  # whether the source is silent, and its fence command runs, or may be tried (again)
    stop_reason: str = ""  # for people: why the VM is HALTED, where it is; "": it is not, or that is not known
    is_overdue: bool = False  # whether the step has taken longer than its limit
    done: Operation | None = None  # the last operation that this process completed in this step
    now: LabTime = 0.0

    @property
    def is_sending(self) -> bool:
        """Whether the source reports that a live migration from it is active."""
        return self.progress is not None and self.progress.is_active


class Do(msgspec.Struct, frozen=True):
    """Decision about an act: perform an operation of the current step on a host, then observe again."""

    operation: Operation
    host: str  # the name of the host


class Enter(msgspec.Struct, frozen=True):
    """Decision about an act: store in the journal that it enters this step, then observe again."""

    step: Step
    release: Release | None = None  # why the VM does not run on the source; None: as before
    failure: str = ""  # for people: why the act is given up; "": as before
    detail: str = ""  # for people: what the outcome also says; "": as before
    downtime_ms: int | None = None  # of a live migration; None: as before


class Wait(msgspec.Struct, frozen=True):
    """Decision about an act: nothing can be done now; observe again later."""

    note: str  # for people: progress, or what it waits for
    until: LabTime | None = None  # None: observe again soon
    host: str = ""  # the host that does not answer, and that it waits for; "": it waits for something else


class End(msgspec.Struct, frozen=True):
    """Decision about an act: it is over."""

    ok: bool  # whether it succeeded
    note: str = ""  # for people: why it failed, or what else there is to know


Decision = Do | Enter | Wait | End


def halted_note(act: MachineActRecord, host: str, seen: Observation) -> str:
    """Return a clause for people: the VM is halted by an error on this host, and why if that is known."""
    reason = f" ({seen.stop_reason})" if seen.stop_reason else ""
    return f"{act.name} is halted by an error on {host}{reason}"


def wait_for_source(act: MachineActRecord) -> Wait:
    """Return the decision to wait for the act's source, which does not answer and may still run the VM."""
    note = (
        f"{act.source} does not answer, and {act.name} may still run there: fence {act.source}, or confirm that it "
        f"is down once it is certain that {act.name} does not run there"
    )
    return Wait(note, host=act.source)


def wait_for_host(host: str) -> Wait:
    """Return the decision to wait until the host with this name answers again, with a note that says so."""
    return Wait(f"{host} does not answer: waiting for it", host=host)


# Words the outcome of an act on a real VM: its duration, the downtime, and what was unusual.

_FORCED = {Step.RESET: "reset", Step.POWER_OFF: "powered off"}  # steps that do not ask the guest


def outcome_note(act: MachineActRecord, end: End, *, real_now: float, acpi_timeout_s: float) -> str:
    """Return what the history says, for people, about an act that ends now."""
    if not end.ok:
        return end.note
    took = exact_duration_text(round(real_now - act.steps[0].real_at, 1))
    parts = [f"{act.verb} took {took}"]
    if (downtime := _downtime_text(act)) is not None:
        parts.append(downtime)
    if act.is_move:
        parts.append(f"now on {act.destination!r}")
    notes = [", ".join(parts), _guest_text(act, acpi_timeout_s), act.detail, end.note]
    return "; ".join(note for note in notes if note)


def _downtime_text(act: MachineActRecord) -> str | None:
    """Return how long the VM was paused or down, as far as the steps show it."""
    held, resumed = act.entry(Step.HOLD), act.entry(Step.RESUME)
    if act.verb is Verb.FREEZE and held is not None and resumed is not None:
        return f"paused for {exact_duration_text(round(resumed.lab_at - held.lab_at, 1))}"
    activated, arrived = act.entry(Step.ACTIVATE), act.entry(Step.CLEAN_UP)
    if not act.is_move or activated is None or arrived is None or act.release is None:
        return None
    if act.stays_off:
        return "off throughout"
    down_s = arrived.real_at - activated.real_at + (act.downtime_ms or 0) / 1000
    return f"{'paused' if act.release is Release.SENT else 'down'} for {exact_duration_text(round(down_s, 2))}"


def _guest_text(act: MachineActRecord, acpi_timeout_s: float) -> str:
    asked = act.entry(Step.SHUT_DOWN)
    forced = next((entry for entry in act.steps if entry.step in _FORCED), None)
    if asked is None or forced is None:
        return ""
    if forced.real_at - asked.real_at < acpi_timeout_s:
        return f"the guest could not be asked through ACPI and was {_FORCED[forced.step]}"
    return f"the guest ignored ACPI for {exact_duration_text(acpi_timeout_s)} and was {_FORCED[forced.step]}"
