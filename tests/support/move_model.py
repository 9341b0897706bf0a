"""A model of a move: two hosts, a VM, the service and everything that can go wrong, one small change at a time.

`explore` visits every state that any order of changes can reach, breadth first. Between a look at the hosts and the
operation that follows, anything may happen; the service may be killed, a host may become silent, crash or be fenced, an
answer may be lost, and an operation may take effect late. A late power-off of the destination is left out, and one of a
source where the VM was booted again may leave it off: nothing could tell it from a wanted one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from forewarn.core.cause import Verb
from forewarn.machines.driver import MachineState, MigrationProgress
from forewarn.machines.move import move_after_refusal, next_move
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
)

SOURCE, DESTINATION = "host-1", "host-2"
RUNNING, PAUSED, OFF, ABSENT = MachineState.RUNNING, MachineState.PAUSED, MachineState.OFF, MachineState.ABSENT
RECEIVING, RECEIVED, SENT = MachineState.RECEIVING, MachineState.RECEIVED, MachineState.SENT
HALTED = MachineState.HALTED
LOCK_STEPS = (Step.PREPARE, Step.SHUT_DOWN, Step.POWER_OFF)  # of cold moves, in which the locks are tried
RECEIVE_STEPS = (Step.PREPARE, Step.SEND)  # of live moves, in which the destination gets ready to receive
UP = (RUNNING, HALTED)  # a VM that is halted may be let go on at any time
Decider = Callable[[MachineActRecord, Observation], Decision]


class ModelState(NamedTuple):
    """Everything that matters about a move at one time. The record is durable; `decision` and `done` are not."""

    verb: Verb
    is_abrupt: bool
    has_locks: bool = False  # a VM that runs holds locks on its disks, and does not start without them
    source: MachineState = RUNNING
    destination: MachineState = ABSENT
    is_undefined: bool = False  # its definition on the destination is not durable yet
    is_sending: bool = False
    is_source_silent: bool = False
    is_destination_silent: bool = False
    is_source_dead: bool = False
    is_destination_dead: bool = False
    is_confirmed: bool = False  # the operator said that the source is down, which was true
    is_destination_confirmed: bool = False  # the same for the destination
    is_fenced: bool = False  # the service has just fenced the source
    was_asked: bool = False  # the power button was pressed
    step: Step = Step.PREPARE
    is_taken_over: bool = False  # the journal was lost, and the act begins where the source's mark says
    has_sent: bool = False  # the step SEND was entered
    release: Release | None = None
    decision: Decision | None = None  # None: the service looks at the hosts next
    done: Operation | None = None
    late: Do | None = None  # an operation whose answer was lost, and that may still take effect
    faults: int = 0  # how many disturbances there were
    has_source_crashed: bool = False  # the VM may be off there at the end
    has_destination_crashed: bool = False  # the VM may be off at the end of a successful move
    is_excused: bool = False  # the guest shut down by itself, or has no host that can boot it: the VM may be off
    ok: bool | None = None  # None: the act has not ended


class Violation(AssertionError):
    """A rule of moves does not hold in a reachable state."""


@cache
def _record(
    verb: Verb, is_abrupt: bool, step: Step, is_taken_over: bool, has_sent: bool, release: Release | None
) -> MachineActRecord:
    steps = ([] if is_taken_over else [Step.PREPARE]) + ([Step.SEND] if has_sent else []) + [step]
    return MachineActRecord(
        act_id="act",
        verb=verb,
        vm="web-1",
        name="web-1",
        source=SOURCE,
        destination=DESTINATION,
        is_abrupt=is_abrupt,
        steps=tuple(StepEntry(step=each, lab_at=0.0, real_at=0.0) for each in steps),
        release=release,
        failure="why",
    )


class MoveModel:
    """The changes of a move's state under a decider: `next_move`, or a wrong one that must be found out.

    Wrong hosts, against their contract: with `resumes_sent` they let a VM go on that was sent, with `has_false_locks`
    they say that the locks of disks are free although the VM does not take any, and with `locks_in_migrations` they
    also say it of the source of a live migration, which gives its locks up before it has released the VM. With
    `keeps_undefined` a destination goes on to wait although the service was killed before its definition was durable.
    """

    def __init__(
        self,
        decide: Decider = next_move,
        *,
        max_faults: int = 2,
        resumes_sent: bool = False,
        has_false_locks: bool = False,
        locks_in_migrations: bool = False,
        keeps_undefined: bool = False,
    ) -> None:
        self._decide = cache(decide)
        self._max_faults = max_faults
        self._resumes_sent = resumes_sent
        self._has_false_locks = has_false_locks
        self._locks_in_migrations = locks_in_migrations
        self._keeps_undefined = keeps_undefined

    def explore(self, start: ModelState) -> tuple[int, int]:
        """Visit all states from this one; return how many there are, and how many of them are ends.

        Raises Violation if a rule is broken in one of them, or if there is one from which the act can never end.
        """
        parents: dict[ModelState, list[ModelState]] = {start: []}
        queue = deque([start])
        ends = []
        while queue:
            state = queue.popleft()
            if state.ok is not None:
                ends.append(state)
                continue
            for following in self.changes(state):
                self._check(state, following)
                if following not in parents:
                    parents[following] = []
                    queue.append(following)
                parents[following].append(state)
        can_end = set(ends)
        queue.extend(ends)
        while queue:
            for parent in parents[queue.popleft()]:
                if parent not in can_end:
                    can_end.add(parent)
                    queue.append(parent)
        for state in parents:
            if state not in can_end:
                raise Violation(f"the act can never end: {state}")
        return len(parents), len(ends)

    def _check(self, before: ModelState, after: ModelState) -> None:
        if after.source in UP and after.destination in UP:
            raise Violation(f"two running copies: {before} → {after}")
        if before.destination is RECEIVED and after.destination in UP and before.release is not Release.SENT:
            raise Violation(f"it goes on with memory that may be older than its disks: {before}")
        if after.is_undefined and after.destination in UP:
            raise Violation(f"it runs on a host that does not know it: {before} → {after}")
        if after.ok is None or after.is_excused:
            return
        was_off = after.has_source_crashed and after.verb is Verb.MIGRATE and not after.has_sent
        if after.ok and after.destination not in UP and not (was_off or after.has_destination_crashed):
            raise Violation(f"a successful move has lost the VM: {before} → {after}")
        has_no_host = after.has_source_crashed or (after.is_abrupt and after.has_destination_crashed)
        if not after.ok and after.source not in UP and not has_no_host:
            raise Violation(f"a failed move has not left the VM running: {before} → {after}")

    def changes(self, state: ModelState) -> Iterator[ModelState]:
        """Yield every state that can follow at once."""
        yield from self._service_changes(state)
        yield from self._host_changes(state)
        if state.late is not None:
            yield state._replace(late=None)
            if not (state.is_source_dead if state.late.host == SOURCE else state.is_destination_dead):
                changed = self._effect(state._replace(late=None), state.late)
                if changed is not None:
                    ends_vm = state.late.operation in (Operation.POWER_OFF, Operation.PRESS_POWER_BUTTON)
                    yield changed._replace(is_excused=changed.is_excused or (ends_vm and state.step is Step.RETURN))
        if state.faults < self._max_faults:
            for fault in self._faults(state):
                yield fault._replace(faults=state.faults + 1)

    def _record_of(self, state: ModelState) -> MachineActRecord:
        return _record(state.verb, state.is_abrupt, state.step, state.is_taken_over, state.has_sent, state.release)

    def _service_changes(self, state: ModelState) -> Iterator[ModelState]:
        match state.decision:
            case None:
                for is_overdue in (False, True):
                    yield state._replace(
                        decision=self._decide(self._record_of(state), self._observe(state, is_overdue))
                    )
            case Enter() as enter:
                entered = state._replace(
                    step=enter.step,
                    has_sent=state.has_sent or enter.step is Step.SEND,
                    release=enter.release or state.release,
                    decision=None,
                    done=None,
                    is_fenced=False,
                )
                yield entered
                if enter.step is Step.SEND:  # what it has seen of the hosts before may count for that, too
                    yield entered._replace(decision=Do(Operation.SEND, SOURCE))
            case End() as end:
                yield state._replace(ok=end.ok, decision=None)
            case Do(operation=Operation.FENCE):
                yield state._replace(decision=None, done=Operation.FENCE)  # it failed
                yield _crash_source(state)._replace(decision=None, is_fenced=True)
            case Do() as do:
                yield from self._carry_out(state, do)
            case _:
                yield state._replace(decision=None)

    def _observe(self, state: ModelState, is_overdue: bool) -> Observation:
        has_progress = state.verb is Verb.MIGRATE and not state.is_source_silent
        return Observation(
            source=None if state.is_source_silent else state.source,
            destination=None if state.is_destination_silent else state.destination,
            progress=MigrationProgress(is_active=state.is_sending) if has_progress else None,
            is_source_down=state.is_source_silent and (state.is_fenced or state.is_confirmed),
            is_destination_down=state.is_destination_silent and state.is_destination_confirmed,
            can_lock_disks=state.is_source_silent and self._can_lock_disks(state),
            may_fence=state.is_source_silent and state.done is not Operation.FENCE,
            is_overdue=is_overdue,
            done=state.done,
        )

    def _can_lock_disks(self, state: ModelState) -> bool:
        if self._has_false_locks:
            return True
        if self._locks_in_migrations:
            return not self._has_lock(state, SOURCE)
        is_asked = state.verb is Verb.REDEPLOY and state.step in LOCK_STEPS
        return state.has_locks and is_asked and not self._has_lock(state, SOURCE)

    def _has_lock(self, state: ModelState, host: str) -> bool:
        """Return whether the VM holds the locks of its disks on this host; its migration gives them up at the end."""
        if host == DESTINATION:
            return state.destination in (RUNNING, PAUSED, HALTED)
        return state.source in (RUNNING, PAUSED, HALTED) and not (state.is_sending and state.destination is RECEIVED)

    def _carry_out(self, state: ModelState, do: Do) -> Iterator[ModelState]:
        is_silent = state.is_source_silent if do.host == SOURCE else state.is_destination_silent
        after = state._replace(decision=None)
        if is_silent:
            yield after
            return
        changed = self._effect(after, do)
        if changed is None:
            refusal = move_after_refusal(self._record_of(state), do.operation, "refused")
            yield state._replace(decision=refusal)
            return
        if do.operation is Operation.COPY_DEFINITION and state.verb is Verb.MIGRATE and state.step in RECEIVE_STEPS:
            is_new = state.destination is ABSENT  # only then it is written while the destination gets ready
            changed = changed._replace(is_undefined=is_new or state.is_undefined)
            if state.step is Step.PREPARE:
                yield changed._replace(done=do.operation, decision=Do(Operation.PREPARE_TO_RECEIVE, DESTINATION))
        elif do.operation is Operation.PREPARE_TO_RECEIVE and state.is_undefined and state.faults < self._max_faults:
            yield self._kill(changed._replace(is_undefined=True))._replace(faults=state.faults + 1)
        yield changed._replace(done=do.operation)
        if do == Do(Operation.POWER_ON, DESTINATION) and state.faults < self._max_faults:
            refusal = move_after_refusal(self._record_of(state), do.operation, "refused")
            is_excused = state.is_excused or state.is_abrupt
            yield state._replace(decision=refusal, faults=state.faults + 1, is_excused=is_excused)
        is_stray_power_off = do.operation is Operation.POWER_OFF and do.host == DESTINATION
        if state.faults < self._max_faults and state.late is None and not is_stray_power_off:
            yield after._replace(late=do, faults=state.faults + 1)

    def _effect(self, state: ModelState, do: Do) -> ModelState | None:
        """Return the state after an operation on a host that answers; None: refused."""
        is_source = do.host == SOURCE
        machine = state.source if is_source else state.destination

        def with_machine(machine: MachineState) -> ModelState:
            if is_source:
                return state._replace(source=machine)
            # All operations but this one wait until the definition is durable, or delete it.
            is_undefined = state.is_undefined and do.operation is Operation.RESUME
            return state._replace(destination=machine, is_undefined=is_undefined)

        match do.operation, machine:
            case Operation.COPY_DEFINITION, _:
                return with_machine(OFF) if machine is ABSENT else state
            case Operation.PREPARE_TO_RECEIVE, MachineState.OFF | MachineState.RECEIVING:
                return with_machine(RECEIVING)
            case Operation.SEND, MachineState.RUNNING | MachineState.PAUSED | MachineState.HALTED if (
                state.destination is RECEIVING
            ):
                return state._replace(is_sending=True)
            case Operation.CANCEL_SEND, _:
                is_late_send = state.late is not None and state.late.operation is Operation.SEND
                return state._replace(is_sending=False, late=None if is_late_send else state.late)
            case Operation.PRESS_POWER_BUTTON, _:
                return state._replace(was_asked=machine is RUNNING)
            case Operation.RESUME, MachineState.PAUSED | MachineState.RECEIVED | MachineState.HALTED:
                return with_machine(RUNNING)
            case Operation.RESUME, MachineState.SENT if self._resumes_sent:
                return with_machine(RUNNING)
            case Operation.RESUME | Operation.POWER_ON, MachineState.RUNNING:
                return state
            case Operation.POWER_ON, MachineState.HALTED:
                return state
            case Operation.POWER_ON, MachineState.OFF:
                is_locked = state.has_locks and self._has_lock(state, DESTINATION if is_source else SOURCE)
                return None if is_locked else with_machine(RUNNING)
            case Operation.POWER_OFF, _:
                changed = with_machine(machine if machine is ABSENT else OFF)
                return changed._replace(is_sending=False, was_asked=False) if is_source else changed
            case Operation.REMOVE, MachineState.OFF | MachineState.ABSENT:
                return with_machine(ABSENT)
            case _:
                return None

    def _host_changes(self, state: ModelState) -> Iterator[ModelState]:
        """Yield what hosts and operators do without a fault."""
        if state.is_sending:
            yield state._replace(is_sending=False)  # it fails, perhaps in its last moment
            if state.destination is RECEIVING:
                yield state._replace(destination=RECEIVED)
            elif state.destination is RECEIVED:
                yield state._replace(source=SENT, is_sending=False)
        if state.was_asked and state.source is RUNNING:
            yield state._replace(source=OFF, was_asked=False, is_sending=False)
        if state.is_source_silent and not state.is_source_dead:
            yield state._replace(is_source_silent=False)
        if state.is_source_dead:
            yield state._replace(is_confirmed=True)
            yield state._replace(is_source_dead=False, is_source_silent=False, is_confirmed=False, is_fenced=False)
        if state.is_destination_silent and not state.is_destination_dead:
            yield state._replace(is_destination_silent=False)
        if state.is_destination_dead:
            yield state._replace(is_destination_confirmed=True)
            yield state._replace(is_destination_dead=False, is_destination_silent=False, is_destination_confirmed=False)

    def _kill(self, state: ModelState) -> ModelState:
        """Return the state when the service was killed, and starts again: what is not durable is lost."""
        killed = state._replace(decision=None, done=None, is_fenced=False)
        if not state.is_undefined or (state.destination is not OFF and self._keeps_undefined):
            return killed
        return killed._replace(destination=ABSENT, is_undefined=False)  # a destination without a definition ends

    def _faults(self, state: ModelState) -> Iterator[ModelState]:
        yield self._kill(state)
        if not state.is_source_silent:
            yield state._replace(is_source_silent=True)
        if not state.is_destination_silent:
            yield state._replace(is_destination_silent=True)
        if not state.is_source_dead:
            yield _crash_source(state)
        if state.has_locks and state.source is OFF and not (state.is_source_dead or state.destination in UP):
            # Somebody starts it there, and perhaps ends it again. Without locks nothing could prevent a second copy.
            yield state._replace(source=RUNNING, is_excused=True)
        if state.source is RUNNING:
            yield state._replace(source=HALTED, was_asked=False)  # a disk fails
        if state.destination is RUNNING:
            yield state._replace(destination=HALTED)
        if state.destination is not ABSENT:
            yield state._replace(destination=OFF, has_destination_crashed=True)
        if not state.is_destination_dead:
            yield _crash_destination(state)
        if state.source is RUNNING:  # the guest shuts down by itself
            yield state._replace(source=OFF, is_sending=False, was_asked=False, is_excused=True)


def _crash_destination(state: ModelState) -> ModelState:
    is_late_there = state.late is not None and state.late.host == DESTINATION  # the order is lost with the host
    return state._replace(
        destination=ABSENT if state.destination is ABSENT else OFF,
        is_undefined=False,
        is_destination_dead=True,
        is_destination_silent=True,
        has_destination_crashed=True,
        late=None if is_late_there else state.late,
    )


def _crash_source(state: ModelState) -> ModelState:
    source = ABSENT if state.source is ABSENT else OFF
    return state._replace(
        source=source,
        is_sending=False,
        was_asked=False,
        is_source_dead=True,
        is_source_silent=True,
        has_source_crashed=True,
    )
