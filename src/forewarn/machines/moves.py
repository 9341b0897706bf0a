"""Moves between two hosts with a hypervisor each: their steps, and what they hand over."""

# How a VM moves between two hosts, and why there are never two of it.
#
# The invariants, the most important first:
#
# - Never two running copies. They write to the same disks and destroy them.
# - Never lost. A VM that its source gave up runs on the destination, or on the source again.
# - Never left behind, paused or half prepared.
#
# In doubt an earlier one wins: a VM stays down rather than running twice. All of it rests on one rule. The destination
# runs the VM only with a *release*, and a release is a fact that the source has written down (stopped, off, sent), or
# that somebody outside vouches for (fenced, confirmed down; and, where one process sees both hosts and the settings
# allow it, the free locks of the VM's disks). Silence is never a release: a host that does not answer may run all of
# its VMs behind a broken cable.
#
# The order is PREPARE on the destination, RELEASE by the source, ACTIVATE on the destination, CLEAN_UP on the source.
#
# - PREPARE first, because it is the last step that may fail without consequences: the VM still runs on its source, and
#   UNDO makes the destination forget it. A host without enough memory refuses here.
# - RELEASE before ACTIVATE, always, and it says how: the memory of a VM is resumed only if it was SENT. Otherwise the
#   VM boots, since its memory may be older than its disks. OFF is kept apart from STOPPED, so that a VM that its user
#   has stopped stays off.
# - CLEAN_UP last: until the VM runs on the destination, the source's definition is what RETURN needs. A source that
#   stays silent delays the end for a minute at most; the outcome then says that it still has its definition.
#
# After the release there are two ways back, and both first make sure that the destination never runs the VM: it refused
# to boot it and has forgotten it, or an operator has confirmed that it is down.
#
# Each step is an act of its own (`step_act`), with an id, in the ledger of the host that performs it, written before it
# takes effect. A repeated order is answered from there. Three steps are promises about the future, which the ledger
# keeps as well: after UNDO a host refuses to activate, after WITHDRAW and after RETURN it refuses to release. So an
# order that was lost on the way, and arrives after everything is over, does nothing.
#
# What a crash leaves. A host that dies in a step has it in its ledger as begun, and continues or repeats it. The one
# who gives the orders (`cluster.move_plan`) keeps its progress in memory alone. When it dies, the next active node asks
# for every step from the first one on, and the ledgers answer what was done:
#
# - before RELEASE was ordered: the VM runs on the source; PREPARE is answered as done;
# - while the source releases: it answers *under way*, or that it has released the VM, or that it refused;
# - after the release, before ACTIVATE: the VM runs on neither host; ACTIVATE is ordered again;
# - after ACTIVATE: both ledgers say so, and only CLEAN_UP is left.
#
# Three facts are in no ledger, so the active node stores them (`cluster.move_plan`). Two before it gives the
# order that they are about: that a destination may activate without a release by the source, because that was fenced;
# and that a source is taking a VM back from a destination that is down and does not know it. The third is where a VM
# was found when a failed move was settled.
#
# A move that was given up is not over. Its orders may still be on the way, and its hosts may complete it while the next
# act believes that the VM is elsewhere. So the next move of the VM *settles* each failed one first: the source is asked
# to withdraw. If it has released the VM, the move is completed; if not, or if the source is silent, the destination is
# told to undo, and its answer says whether the VM is there. What was found is stored before the new act begins and is
# never asked again, because afterwards the answers are about another time.
#
# Silence. The source, before the release: wait, or FENCE if the host has failed; never for planned work, since a silent
# host may still serve its other VMs. A fence command's success counts for a few seconds only, because a host may be
# switched on again. The destination: wait for it, or for a person who confirms that it is down; then the source
# withdraws the release, or takes the VM back. The source, after the release: does not matter.
#
# What was tried and taken back:
#
# - A move to a destination that was confirmed down waited for it for ever. It ends as failed now. For that the source
#   must be able to withdraw a release and to take the VM back *for good*: from then on it does not report the release
#   any more, or a destination that returns could start a second copy.
# - RETURN succeeded at once for commands that have no such step. With the usual command, which moves the whole VM in
#   RELEASE, the fleet then said that the VM was on its source although it had moved. RETURN fails unless the command
#   has it.
#
# On one machine with several hosts, one process sees both sides, and `machines.move` decides by the same
# rules, in one journal. That decision and `cluster.move_plan` are pure functions, and each has an exhaustive test that
# explores the orders of crashes, losses and silent hosts, and that finds protocols which are wrong on purpose.

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.machines.interface import ActDone, ActUnderWay


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
    return act.verb.rules.moves and bool(act.from_host and act.to_host)


def release_of(act: Act) -> MoveRelease:
    """Return the release to report for a source that knows only that it has released the VM."""
    return MoveRelease.SENT if act.verb is Verb.MIGRATE else MoveRelease.STOPPED


def step_act(act: Act, step: MoveStep) -> Act:
    """Return the step of a move as an act of its own: `act` with the id `ACT/STEP`."""
    return msgspec.structs.replace(act, id=f"{act.id}/{step}")
