"""The hypervisor of real VMs: performs each act as durable steps over a driver.

One `perform` advances the act's steps for about a second of real time, and then says what the act waits for. Timeouts
are in real time; only the length of a freeze is in lab time.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping

import msgspec

from forewarn.base.clock import Clock, SystemClock
from forewarn.base.times import LabSeconds
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.core.unannounced import HostObservation
from forewarn.errors import ForewarnError, Rejected, Unavailable, full_message
from forewarn.machines.driver import IN_MEMORY, HostUnreachable, MachineDriver, MachineState
from forewarn.machines.host_capacity import HostCapacityMonitor
from forewarn.machines.host_moves import HostMoves
from forewarn.machines.in_place import first_step, immediate_end, in_place_after_refusal, next_in_place
from forewarn.machines.interface import ActDone, ActNotTried, ActUnderWay
from forewarn.machines.journal import MachineJournal
from forewarn.machines.move import move_after_refusal, next_move
from forewarn.machines.moves import MoveHandover, MoveStep, StepReport
from forewarn.machines.operations import HostFencer, MachineOperations
from forewarn.machines.steps import (
    Decision,
    Do,
    End,
    Enter,
    MachineActRecord,
    Observation,
    Operation,
    Step,
    StepEntry,
    Wait,
    outcome_note,
)

log = logging.getLogger(__name__)
_RETRY_AFTER_S: LabSeconds = 1.0
_GIVEN_UP_AFTER_S = 3600.0  # real time; by then an act that was given up has no effect any more


class MachinePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long acts on real VMs wait for guests, hosts and migrations, in seconds of real time."""

    acpi_timeout_s: float = 60.0  # until a guest that was asked to shut down is powered off or reset
    migration_deadline_s: float = 300.0  # for the steps BEGIN, PREPARE and SEND
    clean_up_timeout_s: float = 60.0  # for the steps UNDO, ACTIVATE and CLEAN_UP
    fence_interval_s: float = 30.0  # between the starts of two attempts to fence a host
    poll_interval_s: float = 0.25  # between observations of hosts that report no change
    perform_wait_s: float = 1.0  # how long one `perform` advances an act
    observe_interval_s: float = 30.0  # between comparisons of all VMs of a host with the fleet; 0: never
    capacity_interval_s: float = 15.0  # between looks at what a host has free

    def step_limit_s(self, step: Step) -> float | None:
        """Return the number of seconds of real time after which this step is overdue; None: never."""
        match step:
            case Step.SHUT_DOWN:
                return self.acpi_timeout_s
            case Step.BEGIN | Step.PREPARE | Step.SEND:
                return self.migration_deadline_s
            case Step.UNDO | Step.ACTIVATE | Step.CLEAN_UP:
                return self.clean_up_timeout_s
            case _:
                return None


class MachineHypervisor:
    """Performs acts on real VMs through a driver, and keeps each step in a journal. It owns both.

    A VM that moves runs on its destination only once its source has confirmed that it stopped or sent it, or was fenced
    or confirmed down, or the VM's disk locks are free.
    """

    def __init__(
        self,
        driver: MachineDriver,
        journal: MachineJournal,
        policy: MachinePolicy = MachinePolicy(),
        *,
        is_confirmed_down: Callable[[str], bool] = lambda host: False,
        real_clock: Clock | None = None,
    ) -> None:
        self._driver = driver
        self._journal = journal
        self._policy = policy
        self._is_confirmed_down = is_confirmed_down
        self._clock = real_clock or SystemClock()
        self._fencer = HostFencer(driver, self._clock, interval_s=policy.fence_interval_s)
        self._operations = MachineOperations(driver, self._fencer, is_confirmed_down)
        self._capacity = HostCapacityMonitor(driver, interval_s=policy.capacity_interval_s)
        self._moves = HostMoves(
            driver, journal, policy, operations=self._operations, fencer=self._fencer, clock=self._clock
        )
        self._busy: set[str] = set()  # keys of VMs with a `perform` in progress
        self._done: dict[
            str, tuple[int, Operation]
        ] = {}  # by act id: the last operation, and how many steps there were
        self._is_closed = False

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        record = self._journal.find(act.id)
        if record is not None and record.ok is not None:
            return ActDone(ok=record.ok, note=record.note)
        if act.vm in self._busy:
            return ActUnderWay(at=now + _RETRY_AFTER_S)
        self._busy.add(act.vm)
        try:
            return await self._perform_alone(act, now)
        finally:
            self._busy.discard(act.vm)

    async def perform_step(self, act: Act, step: MoveStep, given: MoveHandover, now: float) -> StepReport:
        if act.vm in self._busy:
            return StepReport.of(ActUnderWay(at=now + _RETRY_AFTER_S))
        self._busy.add(act.vm)
        try:
            return await self._moves.perform_step(act, step, given, now)
        finally:
            self._busy.discard(act.vm)

    async def _perform_alone(self, act: Act, now: float) -> ActDone | ActUnderWay:
        record = self._journal.find(act.id)
        if record is None:
            if (ending := await self._moves.settle(act, now)) is not None:
                return ending
            for earlier in self._journal.find_unfinished(act.vm):
                if (waiting := await self._settle(earlier, act, now)) is not None:
                    return waiting
            source = await self._find_source(act, now)
            if isinstance(source, ActUnderWay):
                return source
            record = await self._begin(act, source, now)
            if act.verb is Verb.START and act.to_host and source not in ("", act.to_host):
                return self._end(record, End(False, f"{act.name} runs on {source} already, and was not started again"))
        return await self._advance(record, now)

    async def _find_source(self, act: Act, now: float) -> str | ActUnderWay:
        """Return the host that the VM is on: not the act's if an earlier move completed after it was given up."""
        arrived_on = self._journal.last_destination(act.vm)
        if not arrived_on or arrived_on == act.from_host or self._is_confirmed_down(arrived_on):
            return act.from_host
        try:
            state = await self._driver.state(arrived_on, act.name)
        except ActNotTried:
            raise
        except Unavailable:
            note = f"{arrived_on}, to which {act.name} was moved, does not answer: waiting for it"
            return ActUnderWay(at=now + _RETRY_AFTER_S, note=note, waits_for_host=arrived_on)
        except Rejected as error:
            note = f"it is not known whether {act.name} still runs on {arrived_on}, to which it was moved: "
            return ActUnderWay(at=now + _RETRY_AFTER_S, note=note + full_message(error))
        return arrived_on if state in IN_MEMORY else act.from_host

    async def _begin(self, act: Act, source: str, now: float) -> MachineActRecord:
        """Store the record of a new act, together with the step after BEGIN if its hosts answer at once."""
        is_start_elsewhere = act.verb is Verb.START and bool(act.to_host)
        duration_s = float(act.duration_s) if act.duration_s >= 0 else act.verb.rules.usual_duration_s
        record = MachineActRecord(
            act_id=act.id,
            verb=act.verb,
            vm=act.vm,
            name=act.name,
            source=act.to_host if is_start_elsewhere else source,
            destination=act.to_host,
            is_abrupt=act.abrupt,
            is_stopped=act.is_stopped,
            keeps_disks=act.verb is not Verb.DELETE and act.keeps_vm,
            hold_s=duration_s if act.verb is Verb.FREEZE else 0.0,
            steps=(StepEntry(step=Step.BEGIN, lab_at=now, real_at=self._clock.now()),),
        )
        decision = await self._next_decision(record, None)  # only reads
        if isinstance(decision, Enter):
            entry = StepEntry(step=decision.step, lab_at=now, real_at=self._clock.now())
            record = msgspec.structs.replace(
                record, steps=(*record.steps, entry), release=decision.release, detail=decision.detail
            )
        self._journal.begin(record)
        return record

    async def _settle(self, earlier: MachineActRecord, act: Act, now: float) -> ActUnderWay | None:
        """End an act that was given up before it was done; return what it waits for, None once it has ended."""
        # A move that its source has not released is undone, and one that was released is completed.
        reason = f"given up in favour of {act.verb} {act.id}"
        is_start_elsewhere = bool(earlier.destination) and earlier.destination not in (act.from_host, act.to_host)
        needs_undo = earlier.is_move or (earlier.verb is Verb.START and is_start_elsewhere)
        if not needs_undo or earlier.step is Step.BEGIN:
            await self._resume_if_paused(earlier)
            self._journal.end(earlier.act_id, ok=False, note=reason)
            return None
        if earlier.release is None and earlier.step not in (Step.ABORT, Step.UNDO):
            step = Step.ABORT if earlier.step is Step.SEND else Step.UNDO
            earlier = self._enter(earlier, Enter(step, failure=reason), now)
        may_fence = earlier.is_abrupt or act.abrupt
        answer = await self._advance(msgspec.structs.replace(earlier, is_abrupt=may_fence), now)
        if isinstance(answer, ActUnderWay):
            note = f"an earlier {earlier.verb} must end first: {answer.note}"
            return ActUnderWay(at=answer.at, note=note, waits_for_host=answer.waits_for_host)
        return None

    async def _advance(self, record: MachineActRecord, now: float) -> ActDone | ActUnderWay:
        deadline = self._clock.now() + self._policy.perform_wait_s
        before: Decision | None = None
        obstacle: Wait | None = None  # why the last operation had no effect, if its host said so
        known: Observation | None = None  # what was just seen, and counts for the next decision, too
        while True:
            seen = await self._observe(record, now, known)
            decision = await self._next_decision(record, seen)
            known = None
            if isinstance(decision, Do) and decision == before:
                decision = obstacle or Wait(f"{decision.operation} on {decision.host} has had no effect yet")
            before = decision
            if isinstance(decision, Do):
                decision = await self._carry_out(record, decision, wait_s=max(0.0, deadline - self._clock.now()))
                obstacle = decision if isinstance(decision, Wait) else None
            match decision:
                case End():
                    return self._end(record, decision)
                case Enter():
                    record = self._enter(record, decision, now)
                    known = seen if isinstance(seen, Observation) and _can_go_on(record, seen) else None
                case Wait(until=float() as until):
                    return ActUnderWay(at=until, note=decision.note, waits_for_host=decision.host)
                case Wait():
                    if (left_s := deadline - self._clock.now()) <= 0:
                        return ActUnderWay(at=now + _RETRY_AFTER_S, note=decision.note, waits_for_host=decision.host)
                    host = record.destination if record.step is Step.ACTIVATE else record.source
                    within_s = min(self._policy.poll_interval_s, left_s)
                    await self._operations.wait_for_change(host, record.name, within_s=within_s, clock=self._clock)
                case Do(operation=Operation.COPY_DEFINITION):
                    known = seen if isinstance(seen, Observation) else None
                case _:
                    pass

    async def _observe(
        self, record: MachineActRecord, now: float, known: Observation | None
    ) -> Observation | Wait | None:
        # What is `known` from a moment ago is not asked again: a guest that runs keeps its QEMU from answering quickly.
        if record.step is Step.BEGIN:
            return None
        if known is not None and record.step in (Step.SEND, Step.ACTIVATE):  # it has just been entered
            return msgspec.structs.replace(known, progress=None, is_overdue=False, done=None)
        done = self._done.get(record.act_id)
        try:
            return await self._operations.observe(
                record,
                is_overdue=self._is_overdue(record),
                done=done[1] if done is not None and done[0] == len(record.steps) else None,
                now=now,
                source=known.source if known is not None else None,
            )
        except ActNotTried:
            raise
        except (Rejected, Unavailable) as error:  # a host that refuses to be looked at may let itself be again
            return Wait(full_message(error))

    async def _next_decision(self, record: MachineActRecord, seen: Observation | Wait | None) -> Decision:
        if seen is None:
            return immediate_end(record, can_reimage=self._driver.can_reimage) or await self._begin_or_adopt(record)
        if isinstance(seen, Wait):
            return seen
        return next_move(record, seen) if record.is_move else next_in_place(record, seen)

    async def _begin_or_adopt(self, record: MachineActRecord) -> Decision:
        """Return the first step, or the one that the marks have for this act if the journal has been lost."""
        is_overdue = self._is_overdue(record)
        try:
            mark = await self._operations.find_mark(record, is_final=is_overdue)
        except (HostUnreachable, Rejected) as error:
            return Wait(full_message(error), host=record.source if isinstance(error, HostUnreachable) else "")
        if mark is None:
            return Enter(first_step(record))
        return Enter(mark.step, release=mark.release, detail="taken over from the mark on the VM")

    async def _carry_out(self, record: MachineActRecord, decision: Do, *, wait_s: float) -> Decision:
        """Carry the operation out; return the same decision if that succeeded, else the one that follows."""
        try:
            await self._operations.carry_out(record, decision.operation, decision.host, wait_s=wait_s)
        except ActNotTried:
            raise
        except Rejected as error:
            reason = full_message(error)
            if record.is_move:
                return move_after_refusal(record, decision.operation, reason)
            return in_place_after_refusal(record, decision.operation, reason)
        except Unavailable as error:
            return Wait(full_message(error))
        self._done[record.act_id] = (len(record.steps), decision.operation)
        return decision

    def _is_overdue(self, record: MachineActRecord) -> bool:
        limit_s = self._policy.step_limit_s(record.step)
        return limit_s is not None and self._clock.now() - record.steps[-1].real_at >= limit_s

    def _enter(self, record: MachineActRecord, decision: Enter, now: float) -> MachineActRecord:
        self._journal.enter(record.act_id, decision, lab_at=now, real_at=self._clock.now())
        return msgspec.structs.replace(self._find(record.act_id), is_abrupt=record.is_abrupt)

    def _find(self, act_id: str) -> MachineActRecord:
        record = self._journal.find(act_id)
        if record is None:
            raise ActNotTried(f"the journal has lost act {act_id!r}")
        return record

    def _end(self, record: MachineActRecord, decision: End) -> ActDone:
        note = outcome_note(record, decision, real_now=self._clock.now(), acpi_timeout_s=self._policy.acpi_timeout_s)
        self._journal.end(record.act_id, ok=decision.ok, note=note)
        self._done.pop(record.act_id, None)
        self._operations.forget(record.act_id)
        self._capacity.look_again(record.source, record.destination)
        return ActDone(ok=decision.ok, note=note)

    async def _resume_if_paused(self, record: MachineActRecord) -> None:
        """Resume a VM that was paused by an act that was given up, if its host answers."""
        if record.step in (Step.PAUSE, Step.HOLD, Step.RESUME, Step.RESET):
            try:
                await self._operations.carry_out(record, Operation.RESUME, record.source, wait_s=0.0)
            except ActNotTried:
                raise
            except (Unavailable, Rejected) as error:
                log.warning("VM %s could not be resumed after %s: %s", record.name, record.verb, full_message(error))

    @property
    def observed_hosts(self) -> tuple[str, ...]:
        return self._driver.hosts

    @property
    def observe_interval_s(self) -> float:
        return self._policy.observe_interval_s

    async def observe(self, host: str) -> HostObservation:
        since = self._clock.now() - _GIVEN_UP_AFTER_S
        acting_on = self._journal.vms_acted_on(since)
        try:
            machines = await self._driver.observe(host)
        except ActNotTried:
            raise
        except ForewarnError as error:
            return HostObservation(host=host, problem=full_message(error))
        acting_on |= self._journal.vms_acted_on(since)
        return HostObservation(host=host, machines=machines, acting_on=acting_on)

    def changed_hosts(self) -> AsyncGenerator[str, None]:
        return self._driver.changed_hosts()

    @property
    def free_mib(self) -> Mapping[str, int]:
        return self._capacity.free_mib

    @property
    def size_mib(self) -> Mapping[str, int]:
        return {}

    @property
    def vm_mib(self) -> Mapping[str, int]:
        return self._capacity.vm_mib

    @property
    def incompatible_hosts(self) -> Mapping[str, frozenset[str]]:
        return self._capacity.incompatible_hosts

    @property
    def vm_cpus(self) -> Mapping[str, str]:
        return self._capacity.vm_cpus

    async def can_run_cpu(self, host: str, cpu: str) -> bool | None:
        return await self._capacity.can_run_cpu(host, cpu)

    @property
    def silent_hosts(self) -> frozenset[str]:
        return self._capacity.silent_hosts

    async def watch_capacity(self) -> None:
        """Look at what hosts have free and what VMs need, again and again, until cancelled."""
        await self._capacity.run()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await self._fencer.close()
        await self._driver.close()
        self._journal.close()


def _can_go_on(record: MachineActRecord, seen: Observation) -> bool:
    """Return whether what was seen before this step was entered is enough for its first operation."""
    has_arrived = seen.source is MachineState.SENT and seen.destination is MachineState.RECEIVED
    return record.step is Step.SEND or (record.step is Step.ACTIVATE and has_arrived)
