"""What a move over two host nodes does next, as a pure function; `forewarn.machines.moves` has the argument."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from forewarn.base.times import RealTime
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.machines.interface import ActDone
from forewarn.machines.moves import MoveHandover, MoveRelease, MoveStep, StepReport
from forewarn.store.interface import Store

# What stays known of moves between host nodes that were given up, kept in the active node's store.
#
# The next move of the VM settles them first. It does so once: after it has begun, a restarted active node that asked
# the hosts again could complete an old move, and start a second copy of the VM.

SETTLED_MOVES_NAME = "settled-moves"  # of the saved value


class _SavedMoves(msgspec.Struct, frozen=True):
    """The saved value, as JSON. Only moves that are under way or have failed are in it."""

    found: dict[str, str] = {}  # act id of a settled move → the host that its VM was on then; "": it did not move
    fenced: tuple[str, ...] = ()  # ids of acts whose destination may have activated the VM without a release
    returning: tuple[str, ...] = ()  # ids of acts whose source takes the VM back, because their destination is down


class MoveSettlements:
    """Remembers in the store what is known of moves that are under way or have failed, by the act's id."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = asyncio.Lock()  # all of it is one saved value

    def found(self, failed: Act) -> str | None:
        """Return the host to which this failed move had brought the VM when it was settled."""
        return self._load().found.get(failed.id)

    def is_fenced(self, failed: Act) -> bool:
        """Return whether this move's destination may have activated the VM without a release by the source."""
        return failed.id in self._load().fenced

    def is_returning(self, failed: Act) -> bool:
        """Return whether the source of this move takes the VM back, or is about to (`keep_returning`)."""
        return failed.id in self._load().returning

    async def keep_found(self, failed: Act, host: str) -> None:
        """Store that this failed move is settled, and to which host it brought the VM; durable on return."""
        async with self._lock:
            saved = self._load()
            await self._save(replace(saved, found=saved.found | {failed.id: host}))

    async def keep_fenced(self, act: Act) -> None:
        """Store that this move continues without a release by its source, which is fenced or down."""
        async with self._lock:
            saved = self._load()
            if act.id not in saved.fenced:
                await self._save(replace(saved, fenced=(*saved.fenced, act.id)))

    async def keep_returning(self, failed: Act) -> None:
        """Store that the source of this move is about to take the VM back; durable on return."""
        async with self._lock:
            saved = self._load()
            if failed.id not in saved.returning:
                await self._save(replace(saved, returning=(*saved.returning, failed.id)))

    def _load(self) -> _SavedMoves:
        saved = self._store().load(SETTLED_MOVES_NAME)
        return msgspec.json.decode(saved, type=_SavedMoves) if saved else _SavedMoves()

    async def _save(self, moves: _SavedMoves) -> None:
        store = self._store()
        kept = _SavedMoves(
            {id: host for id, host in moves.found.items() if _may_matter(store, id)},
            tuple(id for id in moves.fenced if _may_matter(store, id)),
            tuple(id for id in moves.returning if _may_matter(store, id)),
        )
        await store.save(SETTLED_MOVES_NAME, msgspec.json.encode(kept))


def _may_matter(store: Store, act_id: str) -> bool:
    """Whether a later move may have to settle this act: it is stored, and has not succeeded."""
    event = store.event(act_id.partition(":")[0])
    acts = event.acts if event is not None else ()
    return any(act.id == act_id and not (act.outcome is not None and act.outcome.ok) for act in acts)


CLEAN_UP_S = 60.0  # of real time: how long a move waits for a silent source to forget the VM
_ON_SOURCE = (MoveStep.DESCRIBE, MoveStep.RELEASE, MoveStep.WITHDRAW, MoveStep.CLEAN_UP, MoveStep.RETURN)
_STEPS_WITH_NOTES = (MoveStep.RELEASE, MoveStep.ACTIVATE, MoveStep.CLEAN_UP)


@dataclass(frozen=True, slots=True)
class StepOrder:
    """A decision about a move: order this step next, from the node of this host."""

    host: str  # its name in the fleet
    step: MoveStep
    given: MoveHandover  # what the move's hosts have handed over so far, to send along


@dataclass(frozen=True, slots=True)
class StepWait:
    """A decision about a move: nothing can be ordered now; a person or a host must do something first."""

    note: str  # for people: what the move waits for
    host: str = ""  # by name, which does not answer; "": none


@dataclass(slots=True)
class MoveProgress:
    """What the active control node knows about one move of a VM between two hosts, in memory only."""

    act: Act  # the move, with the host that the VM is on now as its source
    reports: dict[MoveStep, StepReport] = field(default_factory=dict)  # of steps that are over
    given: MoveHandover = field(default_factory=MoveHandover)  # what the hosts have handed over so far
    clean_up_since: RealTime | None = None  # of the first clean-up that got no answer; None: there was none
    lost_destination: str = ""  # why the destination cannot take the VM any more: it is down; "": it can

    @property
    def answers(self) -> dict[MoveStep, ActDone]:
        """How each step that is over ended, by step, in a new dict; `ok` False: the step failed."""
        return {step: report.done for step, report in self.reports.items() if report.done is not None}

    def record(self, step: MoveStep, report: StepReport) -> None:
        """Take over the report of a step that is over, and add what the step handed over to `given`."""
        assert report.done is not None
        self.reports[step] = report
        found = report.handover
        self.given = MoveHandover(
            found.definition or self.given.definition,
            found.address or self.given.address,
            found.release or self.given.release,
        )


def next_step(progress: MoveProgress) -> StepOrder | ActDone:
    """Return the next step of the move to order, or how the move ended."""
    step = _next_in_order(progress)
    if step is None:
        return _outcome(progress)
    act = progress.act
    return StepOrder(act.from_host if step in _ON_SOURCE else act.to_host, step, progress.given)


def _next_in_order(progress: MoveProgress) -> MoveStep | None:
    reports, release = progress.reports, progress.given.release
    if progress.lost_destination:
        return _next_without_destination(progress)
    for step in (MoveStep.DESCRIBE, MoveStep.PREPARE):
        if step not in reports:
            return step
        if not _is_ok(progress, step):
            return None
    if release is None:
        if MoveStep.RELEASE not in reports:
            return MoveStep.RELEASE
        return MoveStep.UNDO if MoveStep.UNDO not in reports else None
    if MoveStep.ACTIVATE not in reports:
        return MoveStep.ACTIVATE
    if release is MoveRelease.FENCED:
        return None
    if not _is_ok(progress, MoveStep.ACTIVATE):
        # The source of an abrupt move has failed: nobody could take the VM back.
        return None if progress.act.abrupt or MoveStep.RETURN in reports else MoveStep.RETURN
    return MoveStep.CLEAN_UP if MoveStep.CLEAN_UP not in reports else None


def _next_without_destination(progress: MoveProgress) -> MoveStep | None:
    """The next step of a move whose destination is down, which certainly does not run the VM."""
    # The source must not release it any more; if it has done so, as before a restart of the active node, it takes the
    # VM back. A source that has failed, or was fenced, has nothing to take back.
    if progress.given.release is MoveRelease.FENCED:
        return None
    # First of all, and also after a restart: the source says whether it has released the VM.
    if MoveStep.WITHDRAW not in progress.reports:
        return MoveStep.WITHDRAW
    if progress.given.release is None or progress.act.abrupt or MoveStep.RETURN in progress.reports:
        return None
    return MoveStep.RETURN


def after_silence(
    progress: MoveProgress,
    order: StepOrder,
    text: str,
    *,
    is_down: bool,
    may_fence: bool,
    real_now: RealTime,
    is_destination_down: bool = False,
) -> StepOrder | StepWait | ActDone:
    """Return what a move does next if the node that got `order` does not answer: a step, a wait or its end.

    It records in `progress` what it concludes from the silence, such as that the VM is released. A move to a
    destination that is down ends as failed, and the VM stays on its source or goes back to it, unless the source has
    failed too. A source that does not answer the clean-up for a minute no longer delays the end.
    """
    act, step = progress.act, order.step
    # A person has said so; a destination that is merely silent is waited for.
    if step not in _ON_SOURCE and is_destination_down:
        return _after_loss_of_destination(progress, step)
    if step in (MoveStep.WITHDRAW, MoveStep.RETURN) and (is_down or (act.abrupt and step is MoveStep.WITHDRAW)):
        note = f"{act.from_host} is down, too" if is_down else f"{act.from_host} does not answer either"
        if step is MoveStep.WITHDRAW:
            progress.lost_destination = _joined(progress.lost_destination, note)
        progress.record(step, StepReport.of(ActDone(True, note)))
        return next_step(progress)
    if step is MoveStep.DESCRIBE and (is_down or act.abrupt):
        progress.record(step, StepReport.of(ActDone(True)))  # the destination has a copy of the definition, or refuses
        return next_step(progress)
    if step is MoveStep.RELEASE:
        if is_down:
            progress.given = replace(progress.given, release=MoveRelease.FENCED)
            return next_step(progress)
        # Only for a failed host: for planned work the other VMs there would be killed.
        if act.abrupt and may_fence:
            return StepOrder(act.to_host, MoveStep.FENCE, progress.given)
        return StepWait(
            f"{text}, and {act.name} may still run there: fence {act.from_host}, or confirm that it is down once it is "
            f"certain that {act.name} does not run there",
            act.from_host,
        )
    if step is MoveStep.ACTIVATE:
        return StepWait(f"{text}: {act.name} has left {act.from_host}", act.to_host)
    if step is MoveStep.CLEAN_UP:
        progress.clean_up_since = real_now if progress.clean_up_since is None else progress.clean_up_since
        # The VM runs on its destination; only a definition is left behind.
        if is_down or real_now - progress.clean_up_since >= CLEAN_UP_S:
            note = f"{act.from_host} did not answer, and still has its definition of {act.name}"
            progress.record(step, StepReport.of(ActDone(True, note)))
            return next_step(progress)
    return StepWait(text, order.host)


def _after_loss_of_destination(progress: MoveProgress, step: MoveStep) -> StepOrder | StepWait | ActDone:
    act = progress.act
    if step is MoveStep.UNDO:  # its source has not released the VM, and never will
        progress.record(step, StepReport.of(ActDone(True)))
    else:
        progress.lost_destination = f"{act.to_host} went down before {act.name} was known to run there"
    return next_step(progress)


def after_fencing(progress: MoveProgress, answer: ActDone) -> StepOrder | StepWait | ActDone:
    """Return what a move does next after its destination tried to fence the source. Orders nothing itself."""
    act = progress.act
    if answer.ok:
        progress.given = replace(progress.given, release=MoveRelease.FENCED)
        return next_step(progress)
    return StepWait(
        f"{act.from_host} could not be fenced ({answer.note}), and {act.name} may still run there: confirm that it is "
        f"down once it is certain that {act.name} does not run there",
        act.from_host,
    )


def _is_ok(progress: MoveProgress, step: MoveStep) -> bool:
    return progress.answers[step].ok


def _outcome(progress: MoveProgress) -> ActDone:
    answers = progress.answers
    if progress.lost_destination:
        back = answers.get(MoveStep.RETURN) or answers.get(MoveStep.WITHDRAW)  # after a restart, only the latter
        return ActDone(False, _joined(*progress.lost_destination.split("; "), back.note if back else ""))
    for step in (MoveStep.DESCRIBE, MoveStep.PREPARE, MoveStep.RELEASE, MoveStep.ACTIVATE):
        if step in answers and not answers[step].ok:
            back = answers.get(MoveStep.UNDO) or answers.get(MoveStep.RETURN)
            return ActDone(False, _joined(answers[step].note, back.note if back else ""))
    act = progress.act
    verb = "migrated" if act.verb is Verb.MIGRATE else "redeployed"
    notes = [answers[step].note for step in _STEPS_WITH_NOTES if step in answers]
    return ActDone(True, _joined(*notes) or f"{verb} to {act.to_host}")


def _joined(*notes: str) -> str:
    return "; ".join(dict.fromkeys(note for note in notes if note))
