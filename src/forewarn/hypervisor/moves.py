"""Moves between two hosts with a hypervisor each: their steps, and what they hand over.

On one machine, a hypervisor moves a VM in one act. With a hypervisor on each host, a move is *prepare* (destination),
*release* (source) and *activate* (destination), each durable in the ledger of the host that performs it. The VM runs on
the destination only after a release.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.hypervisor.interface import ActDone, ActUnderWay


class MoveStep(StrEnum):
    """A step of a move of a VM between two hosts that have a hypervisor each; all may be repeated."""

    DESCRIBE = "describe"  # source: says what the destination must know; changes nothing
    PREPARE = "prepare"  # destination: gets ready to take the VM
    RELEASE = "release"  # source: stops or sends the VM, or refuses, in which case the VM continues there
    WITHDRAW = "withdraw"  # source: from now on it refuses the release, unless it has given it already
    FENCE = "fence"  # destination: cuts the source off, which does not answer
    ACTIVATE = "activate"  # destination: the VM continues here
    UNDO = "undo"  # destination: forgets what was prepared, and refuses to activate it; fails if that was done
    CLEAN_UP = "clean-up"  # source: forgets the VM
    RETURN = "return"  # source: takes the VM back, which the destination cannot run; from then on it is not released


class MoveRelease(StrEnum):
    """Why a VM certainly does not run on the source of its move, so that it may run elsewhere."""

    STOPPED = "stopped"  # the source reported that it is off: it stopped in the move, or was off before a redeploy
    OFF = "off"  # of a live migration: the VM was off before it, or its user has stopped it, and it stays off
    SENT = "sent"  # the source reported that its live migration has completed
    FENCED = "fenced"  # the source was fenced, or the operator confirmed that it is down


class MoveHandover(msgspec.Struct, frozen=True, array_like=True):
    """What the hosts of a move hand over to each other; the report of a step has only what that step adds."""

    definition: bytes = b""  # of the VM, in the format of its hypervisor; b"": not known, or not needed
    address: str = ""  # where the destination waits for a live migration; "": not known, or not needed
    release: MoveRelease | None = None  # None: the VM may run on the source


class StepReport(msgspec.Struct, frozen=True, array_like=True):
    """How a step of a move is going, and what it hands over. Exactly one of `done` and `under_way` is set."""

    done: ActDone | None = None  # with `ok` False: the step failed; None: it is under way
    under_way: ActUnderWay | None = None  # None: the step is over
    handover: MoveHandover = MoveHandover()  # empty while it is under way, and if the step hands over nothing

    @classmethod
    def of(cls, answer: ActDone | ActUnderWay, handover: MoveHandover = MoveHandover()) -> StepReport:
        """Return the report with this answer, as `done` or `under_way`, and with what is handed over."""
        return cls(answer, None, handover) if isinstance(answer, ActDone) else cls(None, answer, handover)

    @property
    def answer(self) -> ActDone | ActUnderWay:
        """`done` or `under_way`, the one that is set: how the step ended, or when to ask again."""
        return self.done or self.under_way or ActUnderWay(at=0.0)


@runtime_checkable
class SteppedHypervisor(Protocol):
    """A hypervisor of one host that takes part in moves to and from other hosts, one `MoveStep` at a time."""

    async def perform_step(self, act: Act, step: MoveStep, given: MoveHandover, now: float) -> StepReport:
        """Begin this step of a move, or return how it is going; does not wait for lab time.

        A step, known by the act's id and `step`, takes effect at most once; only an operator's command without a check
        may run again after an interruption. A RELEASE fails after WITHDRAW or RETURN, an ACTIVATE after UNDO; a step
        that a hypervisor does not need succeeds at once, but a FENCE that it does not have fails. `given` is what the
        hosts have handed over so far.
        """


def is_move(act: Act) -> bool:
    """Return whether the act brings a VM from one host to another, so that two hosts take part."""
    return act.verb in (Verb.MIGRATE, Verb.REDEPLOY) and bool(act.from_host and act.to_host)


def release_of(act: Act) -> MoveRelease:
    """Return the release to report for a source that knows only that it has released the VM."""
    return MoveRelease.SENT if act.verb is Verb.MIGRATE else MoveRelease.STOPPED


def step_act(act: Act, step: MoveStep) -> Act:
    """Return the step of a move as an act of its own: `act` with the id `ACT/STEP`."""
    return msgspec.structs.replace(act, id=f"{act.id}/{step}")
