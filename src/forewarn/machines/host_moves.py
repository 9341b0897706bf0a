"""The part of one host in moves of real VMs between hosts that have a hypervisor each.

The rules are those of `move`, which decides about both hosts of a move. Here the other host is out of sight: what is
known about it comes with the order. Each step is an act of its own in the journal of the host that performs it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from forewarn.base.clock import Clock
from forewarn.base.times import LabSeconds
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Rejected, Unavailable, full_message
from forewarn.machines.driver import IN_MEMORY, HostUnreachable, MachineDriver, MachineState
from forewarn.machines.interface import ActDone, ActNotTried, ActUnderWay
from forewarn.machines.journal import MachineJournal
from forewarn.machines.move import move_after_refusal, next_move
from forewarn.machines.moves import MoveHandover, MoveRelease, MoveStep, StepReport, step_act
from forewarn.machines.operations import HostFencer, MachineOperations
from forewarn.machines.steps import (
    Decision,
    Do,
    End,
    Enter,
    MachineActRecord,
    Observation,
    Operation,
    Release,
    Step,
    StepEntry,
    Wait,
    wait_for_host,
)

if TYPE_CHECKING:
    from forewarn.machines.acts import MachinePolicy

_RETRY_AFTER_S: LabSeconds = 1.0
_FIRST_STEPS = {
    MoveStep.PREPARE: Step.PREPARE,
    MoveStep.RELEASE: Step.PREPARE,  # of the decisions about a move; the destination is prepared already
    MoveStep.ACTIVATE: Step.ACTIVATE,
    MoveStep.UNDO: Step.UNDO,
    MoveStep.CLEAN_UP: Step.CLEAN_UP,
    MoveStep.RETURN: Step.RETURN,
}
_ON_DESTINATION = (MoveStep.PREPARE, MoveStep.ACTIVATE, MoveStep.UNDO)
_STEPS_WITH_PROGRESS = (Step.SEND, Step.ABORT, Step.UNDO)
_LIVE_RELEASES = {  # what the destination of a live migration makes of it: only with STOPPED the VM stays off
    MoveRelease.SENT: Release.SENT,
    MoveRelease.OFF: Release.STOPPED,
    MoveRelease.STOPPED: Release.FENCED,
    MoveRelease.FENCED: Release.FENCED,
}
_Perform = Callable[[Act, MoveHandover, float], Awaitable[StepReport]]


class HostMoves:
    """Performs one side's steps when VMs move between hosts that have a hypervisor each.

    A VM is activated only with a release, by which its source gives it up, and never after its preparation was undone.
    The source of a release never resumes the VM, unless it is told to take it back.
    """

    def __init__(
        self,
        driver: MachineDriver,
        journal: MachineJournal,
        policy: MachinePolicy,
        *,
        operations: MachineOperations,
        fencer: HostFencer,
        clock: Clock,
    ) -> None:
        self._driver, self._journal, self._policy = driver, journal, policy
        self._operations, self._fencer, self._clock = operations, fencer, clock
        self._done: dict[str, tuple[int, Operation]] = {}  # as in `MachineHypervisor`

    async def perform_step(self, act: Act, step: MoveStep, given: MoveHandover, now: float) -> StepReport:
        """Advance a step of a move for about `perform_wait_s` of real time, or return how it ended."""
        performers: dict[MoveStep, _Perform] = {
            MoveStep.DESCRIBE: self._describe,
            MoveStep.PREPARE: self._prepare,
            MoveStep.RELEASE: self._release,
            MoveStep.WITHDRAW: self._withdraw,
            MoveStep.FENCE: self._fence,
            MoveStep.ACTIVATE: self._activate,
            MoveStep.UNDO: self._undo,
            MoveStep.CLEAN_UP: self._clean_up,
            MoveStep.RETURN: self._return,
        }
        return await performers[step](act, given, now)

    async def settle(self, act: Act, now: float) -> ActUnderWay | None:
        """End the steps of earlier moves of a new act's VM that have not ended; return what they wait for, or None."""
        # A release that was given up is withdrawn, and an activation is completed. Other steps are given up: the VM may
        # have come back since.
        for record in self._journal.find_unfinished(act.vm):
            if (step := _step_of_record(record)) is None:
                continue
            if step not in (MoveStep.RELEASE, MoveStep.ACTIVATE):
                self._journal.end(record.act_id, ok=False, note=f"given up in favour of {act.verb} {act.id}")
                continue
            earlier = msgspec.structs.replace(
                act,
                id=record.act_id.rpartition("/")[0],
                verb=record.verb,
                from_host=record.source,
                to_host=record.destination,
            )
            following = MoveStep.WITHDRAW if step is MoveStep.RELEASE else step
            answer = (await self.perform_step(earlier, following, MoveHandover(), now)).answer
            if isinstance(answer, ActUnderWay):
                note = f"an earlier move must end first: {answer.note}"
                return ActUnderWay(at=answer.at, note=note, waits_for_host=answer.waits_for_host)
        return None

    async def _describe(self, act: Act, given: MoveHandover, now: float) -> StepReport:
        try:
            definition = await self._driver.read_definition(act.from_host, act.name)
        except Rejected as error:
            has_left = self._released(act) is not None  # the destination has its definition
            return StepReport.of(ActDone(has_left, "" if has_left else full_message(error)))
        except HostUnreachable as error:
            return _wait_report(wait_for_host(act.from_host), now, full_message(error))
        return StepReport.of(ActDone(True), MoveHandover(definition=definition))

    async def _prepare(self, act: Act, given: MoveHandover, now: float) -> StepReport:
        if self._is_undone(act):
            return StepReport.of(ActDone(False, _undone_text(act)))
        record = self._begin(act, MoveStep.PREPARE, now)
        if record.ok is False:
            return StepReport.of(ActDone(False, record.note))
        try:
            refusal = await self._make_ready(act, given) if record.ok is None else None
            if refusal is not None:
                self._journal.end(record.act_id, ok=False, note=refusal)
                return StepReport.of(ActDone(False, refusal))
            is_waiting = await self._driver.state(act.to_host, act.name) is MachineState.RECEIVING
            address = await self._driver.receive_address(act.to_host, act.name) if is_waiting else ""
        except ActNotTried:
            raise
        except Rejected as error:
            return _wait_report(Wait(full_message(error)), now)
        except Unavailable as error:
            return _wait_report(wait_for_host(act.to_host), now, full_message(error))
        self._journal.end(record.act_id, ok=True, note="")
        return StepReport.of(ActDone(True), MoveHandover(address=address))

    async def _make_ready(self, act: Act, given: MoveHandover) -> str | None:
        """Define the VM here, and let it receive a live migration; return why not, if that is refused."""
        driver, host, name = self._driver, act.to_host, act.name
        is_live = _is_live(act)
        state = await driver.state(host, name)
        if state in IN_MEMORY:
            return f"{name} is {state} on {host} already, and was not touched"
        if is_live and state is MachineState.RECEIVING:
            return None
        if state not in (MachineState.OFF, MachineState.ABSENT):
            await driver.power_off(host, name)  # an earlier move left it there; it does not run
        try:
            await self._define(act, given, host)
        except Rejected as error:  # what is here may be another VM, and stays
            return full_message(error)
        if not is_live:
            return None
        try:
            await driver.prepare_to_receive(host, name)
        except Rejected as error:
            await driver.power_off(host, name)
            await driver.remove(host, name, delete_disks=False)
            return full_message(error)
        return None

    async def _define(self, act: Act, given: MoveHandover, host: str) -> None:
        await self._driver.define(
            host, act.name, given.definition, from_host=act.from_host, fresh_ephemeral_disk=not _is_live(act)
        )

    async def _release(self, act: Act, given: MoveHandover, now: float) -> StepReport:
        if self._journal.find(step_act(act, MoveStep.RETURN).id) is not None:
            report = await self._return(act, given, now)
            return report if report.done is None else StepReport.of(ActDone(False, _taken_back_text(act)))
        record = self._journal.find(step_act(act, MoveStep.RELEASE).id)
        if record is None:
            try:
                mark = await self._driver.read_mark(act.from_host, act.name)
            except HostUnreachable as error:
                return _wait_report(wait_for_host(act.from_host), now, full_message(error))
            except Rejected as error:
                return _wait_report(Wait(full_message(error)), now)
            record = self._begin(act, MoveStep.RELEASE, now)
            # A service that has lost its journal continues where the mark on the VM says that it was.
            if mark is not None and mark.act_id == record.act_id and mark.step in list(Step):
                record = self._enter(record, Enter(Step(mark.step), detail="taken over from the mark on the VM"), now)
        return await self._advance(act, MoveStep.RELEASE, record, given, now)

    async def _withdraw(self, act: Act, given: MoveHandover, now: float) -> StepReport:
        """Refuse the release from now on, unless it was given; stop one that is under way."""
        if self._journal.find(step_act(act, MoveStep.RETURN).id) is not None:
            report = await self._return(act, given, now)
            return report if report.done is None else StepReport.of(ActDone(True, _taken_back_text(act)))
        record = self._journal.find(step_act(act, MoveStep.RELEASE).id)
        reason = f"{act.name} was not released"
        if record is None:
            record = self._begin(act, MoveStep.RELEASE, now)
            self._journal.end(record.act_id, ok=False, note=reason)
        elif record.ok is None and record.release is None and record.step not in (Step.ABORT, Step.UNDO):
            following = Step.ABORT if record.step is Step.SEND else Step.UNDO
            record = self._enter(record, Enter(following, failure=reason), now)
        report = await self._advance(act, MoveStep.RELEASE, self._find(record.act_id), given, now)
        return report if report.done is None else StepReport(ActDone(True), None, report.handover)

    async def _fence(self, act: Act, given: MoveHandover, now: float) -> StepReport:
        host, fencer = act.from_host, self._fencer
        if not fencer.is_fenced(host) and fencer.may_try(host):
            await fencer.fence(host, wait_s=self._policy.perform_wait_s)
            if not fencer.is_fenced(host) and fencer.may_try(host):
                return _wait_report(Wait(f"the fence command of {host} is running"), now)
        if fencer.is_fenced(host):
            return StepReport.of(ActDone(True))
        return StepReport.of(ActDone(False, f"{act.to_host} has no fence command for it, or the command failed"))

    async def _activate(self, act: Act, given: MoveHandover, now: float) -> StepReport:
        if self._is_undone(act):
            return StepReport.of(ActDone(False, _undone_text(act)))
        record = self._journal.find(step_act(act, MoveStep.ACTIVATE).id)
        if record is None:
            if given.release is None:
                return StepReport.of(ActDone(False, f"{act.from_host} has not released {act.name}"))
            release = _LIVE_RELEASES[given.release]
            if not _is_live(act):
                release = Release.FENCED if given.release is MoveRelease.FENCED else Release.STOPPED
            record = self._begin(act, MoveStep.ACTIVATE, now, release)
        return await self._advance(act, MoveStep.ACTIVATE, record, given, now)

    async def _undo(self, act: Act, given: MoveHandover, now: float) -> StepReport:
        activation, reason = self._journal.find(step_act(act, MoveStep.ACTIVATE).id), ""
        if activation is not None:
            report = await self._advance(act, MoveStep.ACTIVATE, activation, given, now)
            if report.done is None:
                return report
            if report.done.ok:
                return StepReport.of(ActDone(False, f"{act.name} has arrived on {act.to_host}"))
            reason = report.done.note
        prepared = self._journal.find(step_act(act, MoveStep.PREPARE).id)
        record = self._begin(act, MoveStep.UNDO, now)  # from now on it is never activated
        if prepared is None or prepared.ok is False:
            self._journal.end(record.act_id, ok=True, note="")
        elif prepared.ok is None:
            self._journal.end(prepared.act_id, ok=False, note=_undone_text(act))
        report = await self._advance(act, MoveStep.UNDO, self._find(record.act_id), given, now)
        return report if report.done is None or not reason else StepReport.of(ActDone(True, reason))

    async def _clean_up(self, act: Act, given: MoveHandover, now: float) -> StepReport:
        released = self._released(act)
        if released is not None and self._has_come_back(released):
            return StepReport.of(ActDone(True))
        if released is None:
            note = f"{act.from_host} has no record that it released {act.name}, and keeps it: check where it runs"
            return StepReport.of(ActDone(True, note))
        record = self._begin(act, MoveStep.CLEAN_UP, now)
        return await self._advance(act, MoveStep.CLEAN_UP, record, given, now)

    async def _return(self, act: Act, given: MoveHandover, now: float) -> StepReport:
        released = self._released(act)
        if released is not None and self._has_come_back(released):
            return StepReport.of(ActDone(True))
        record = self._begin(act, MoveStep.RETURN, now)
        return await self._advance(act, MoveStep.RETURN, record, given, now)

    async def _advance(
        self, act: Act, step: MoveStep, record: MachineActRecord, given: MoveHandover, now: float
    ) -> StepReport:
        deadline = self._clock.now() + self._policy.perform_wait_s
        before: Decision | None = None
        while record.ok is None:
            decision = await self._next_decision(act, step, record, now)
            if isinstance(decision, Do):
                if decision == before:
                    decision = Wait(f"{decision.operation} on {decision.host} has had no effect yet")
                else:
                    before = decision
                    decision = await self._carry_out(act, record, decision, given)
            match decision:
                case End():
                    self._end(record, ok=decision.ok, note=decision.note)
                case Enter():
                    before = None
                    record = self._enter(record, decision, now)
                case Wait():
                    if self._clock.now() + self._policy.poll_interval_s > deadline:
                        return _wait_report(decision, now)
                    before = None
                    host, within_s = _host_of(act, step), self._policy.poll_interval_s
                    await self._operations.wait_for_change(host, act.name, within_s=within_s, clock=self._clock)
                case _:
                    pass
            record = self._find(record.act_id)
        return _report_of(step, record)

    async def _next_decision(self, act: Act, step: MoveStep, record: MachineActRecord, now: float) -> Decision:
        if _has_succeeded(step, record):
            return End(True, record.detail)
        seen_record = msgspec.structs.replace(record, destination=act.to_host, source=act.from_host)
        host = _host_of(act, step)
        done = self._done.get(record.act_id)
        last = done[1] if done is not None and done[0] == len(record.steps) else None
        limit_s = self._policy.step_limit_s(record.step)
        try:
            progress = None
            if step is MoveStep.RELEASE and record.is_live and record.step in _STEPS_WITH_PROGRESS:
                progress = await self._driver.migration(host, act.name)
            state = await self._driver.state(host, act.name)
            if state is MachineState.SENT and progress is not None and progress.is_active:
                progress = await self._driver.migration(host, act.name)  # it ended in between, and has a downtime now
            reason = await self._driver.stop_reason(host, act.name) if state is MachineState.HALTED else ""
        except HostUnreachable:
            return wait_for_host(host)
        except Rejected as error:  # a host that refuses to be looked at may let itself be again
            return Wait(full_message(error))
        if step is MoveStep.ACTIVATE and record.step is Step.RETURN and state is MachineState.ABSENT:
            return End(False, record.failure)
        seen = Observation(
            source=MachineState.OFF if step in _ON_DESTINATION else state,
            destination=state if step in _ON_DESTINATION else _assumed_destination(record),
            progress=progress,
            stop_reason=reason,
            is_overdue=limit_s is not None and self._clock.now() - record.steps[-1].real_at >= limit_s,
            done=Operation.COPY_DEFINITION if record.step is Step.PREPARE else last,
            now=now,
        )
        return next_move(seen_record, seen)

    async def _carry_out(self, act: Act, record: MachineActRecord, decision: Do, given: MoveHandover) -> Decision:
        """Carry an operation out; return the same decision if that succeeded, else the one that follows."""
        seen_record = msgspec.structs.replace(record, destination=act.to_host, source=act.from_host)
        host, operation = decision.host, decision.operation
        try:
            if operation is Operation.SEND:
                await self._operations.write_mark(seen_record, host)
                await self._driver.send_to(host, act.name, act.to_host, given.address)
            elif operation is Operation.COPY_DEFINITION:
                await self._define(act, given, host)
            else:
                await self._operations.carry_out(seen_record, operation, host, wait_s=0.0)
        except ActNotTried:
            raise
        except Rejected as error:
            return move_after_refusal(seen_record, operation, full_message(error))
        except Unavailable as error:
            return Wait(full_message(error))
        self._done[record.act_id] = (len(record.steps), operation)
        return decision

    def _released(self, act: Act) -> MachineActRecord | None:
        record = self._journal.find(step_act(act, MoveStep.RELEASE).id)
        return record if record is not None and record.release is not None else None

    def _has_come_back(self, released: MachineActRecord) -> bool:
        """Whether a later move has brought the VM to this host again: then late orders do not concern it."""
        return self._journal.has_begun_since(released.vm, f"/{MoveStep.ACTIVATE}", released.steps[0].lab_at)

    def _is_undone(self, act: Act) -> bool:
        return self._journal.find(step_act(act, MoveStep.UNDO).id) is not None

    def _begin(self, act: Act, step: MoveStep, now: float, release: Release | None = None) -> MachineActRecord:
        is_here = step is MoveStep.ACTIVATE
        record = MachineActRecord(
            act_id=step_act(act, step).id,
            verb=act.verb,
            vm=act.vm,
            name=act.name,
            source=act.from_host,
            destination=act.to_host if is_here else "",  # only an activation brings the VM to this host
            is_abrupt=act.abrupt,
            is_stopped=act.is_stopped,
            steps=(StepEntry(step=_FIRST_STEPS[step], lab_at=now, real_at=self._clock.now()),),
            release=release,
        )
        self._journal.begin(record)
        return self._find(record.act_id)

    def _enter(self, record: MachineActRecord, decision: Enter, now: float) -> MachineActRecord:
        self._journal.enter(record.act_id, decision, lab_at=now, real_at=self._clock.now())
        return self._find(record.act_id)

    def _end(self, record: MachineActRecord, *, ok: bool, note: str) -> None:
        self._journal.end(record.act_id, ok=ok, note=note)
        self._done.pop(record.act_id, None)
        self._operations.forget(record.act_id)

    def _find(self, act_id: str) -> MachineActRecord:
        record = self._journal.find(act_id)
        if record is None:
            raise ActNotTried(f"the journal has lost act {act_id!r}")
        return record


def _step_of_record(record: MachineActRecord) -> MoveStep | None:
    step = record.act_id.rpartition("/")[2]
    return MoveStep(step) if step in list(MoveStep) else None


def _host_of(act: Act, step: MoveStep) -> str:
    return act.to_host if step in _ON_DESTINATION else act.from_host


def _is_live(act: Act) -> bool:
    return act.verb is Verb.MIGRATE


def _has_succeeded(step: MoveStep, record: MachineActRecord) -> bool:
    """Whether the decisions about the move have gone beyond this step."""
    if step is MoveStep.RELEASE:
        return record.release is not None
    return step is MoveStep.ACTIVATE and record.step is Step.CLEAN_UP


def _assumed_destination(record: MachineActRecord) -> MachineState:
    """Return what the source takes the destination to be, which was prepared before the release."""
    if record.step not in (Step.PREPARE, Step.SEND):
        return MachineState.ABSENT
    return MachineState.RECEIVING if record.is_live else MachineState.OFF


def _report_of(step: MoveStep, record: MachineActRecord) -> StepReport:
    if step in (MoveStep.UNDO, MoveStep.RETURN):  # as decisions about a move, these end with its failure
        return StepReport.of(ActDone(True, record.note))
    done = ActDone(ok=bool(record.ok), note=record.note)
    if step is not MoveStep.RELEASE or record.release is None:
        return StepReport.of(done)
    release = MoveRelease(record.release.value)
    if record.is_live and record.stays_off:
        release = MoveRelease.OFF
    if record.downtime_ms is not None:
        done = ActDone(True, f"paused for about {record.downtime_ms} ms by the migration")
    return StepReport.of(done, MoveHandover(release=release))


def _wait_report(wait: Wait, now: float, note: str = "") -> StepReport:
    return StepReport.of(ActUnderWay(at=now + _RETRY_AFTER_S, note=note or wait.note, waits_for_host=wait.host))


def _taken_back_text(act: Act) -> str:
    return f"{act.name} was taken back by {act.from_host}"


def _undone_text(act: Act) -> str:
    return f"what {act.to_host} had prepared for {act.name} was undone"
