"""Performs due health checks of rollouts, and stores every measurement (spec §13.4).

What is due follows from the stored rollouts and measurements alone, so a crash loses at most a measurement that was
under way. Checks run as tasks beside the reconciler, which only starts them and stores their results.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from forewarn.base.clock import Clock
from forewarn.base.times import LabSeconds, LabTime
from forewarn.base.wording import first_names
from forewarn.control.health_probes import HealthProber
from forewarn.control.rollout_requests import rollout_vms
from forewarn.core.cause import CAUSE_RULES
from forewarn.core.commit import Commit
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.core.explain.polling import SILENCE_LIMIT_S, PollingPace, PollingState, polling_state
from forewarn.core.fleet import PowerState, Vm, VmCondition, vm_key_in_scope
from forewarn.core.health import (
    MAX_MEASUREMENTS,
    CheckKind,
    CheckOutcome,
    CheckResult,
    HealthCheck,
    HealthDecision,
    Measurement,
    OwnFigure,
    health_verdict,
    judge_values,
    measurement_of,
    next_measurement_at,
)
from forewarn.core.history import LastPoll
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutState
from forewarn.errors import ForewarnError
from forewarn.store.interface import AppliedCommit, Store

log = logging.getLogger(__name__)


# The service's own figures about the VMs of a rollout, which a health check may demand (spec §13.4).

RETURN_LIMIT_S: LabSeconds = 300.0  # within which a VM polls again after its maintenance, or counts as not back
_MAX_NAMES = 3

PaceLookup = Callable[[str], PollingPace | None]  # by VM key; None for a VM that never polled


def measure_figure(
    check: HealthCheck,
    store: Store,
    rollout: Rollout,
    vms: Sequence[Vm],
    events: Sequence[Event],
    pace: PaceLookup,
    now: float,
) -> CheckResult:
    """Return the figure of this check as it is now, compared with the condition of the check.

    What happened to its events before its current wave began, or before a person last resumed it, does not count. Reads
    deliveries, polls and VMs from the store, which takes long for many VMs: call it in a thread.
    """
    assert check.figure is not None
    ended = [
        (event, act, act.outcome)
        for event in events
        for act in event.acts
        if act.outcome is not None and _counts(rollout, act.outcome.at)
    ]
    match check.figure:
        case OwnFigure.FAILED_ACTS:
            names = [act.name for _, act, outcome in ended if not outcome.ok]
        case OwnFigure.WITHOUT_HANDLER:
            names = vms_without_handler(vms, pace)
        case OwnFigure.UNDELIVERED:
            started = [e for e in events if e.started_at is not None and _counts(rollout, e.started_at)]
            names = _undelivered_vms(store, started)
        case OwnFigure.NOT_BACK:
            waiting, names = _vms_not_back(store, vms, ended, now)
            if waiting and not names:
                text = f"{_count_text(waiting)} not polled yet since their maintenance"
                return CheckResult(CheckOutcome.UNCLEAR, text, float(len(waiting)))
    return figure_result(check, names)


def figure_result(check: HealthCheck, names: Sequence[str]) -> CheckResult:
    """Return what a figure means for a check: the number of these names, compared with its condition."""
    found = judge_values(check.condition, [("", float(len(names)))])
    text = f"{found.text} ({first_names(names, _MAX_NAMES)})" if names else found.text
    return CheckResult(found.outcome, text, found.value)


def vms_without_handler(vms: Iterable[Vm], pace: PaceLookup) -> list[str]:
    """Return the names of the running VMs that have not polled within the last 60 s, in their order."""
    silent = (PollingState.NEVER, PollingState.STOPPED)
    return [vm.name for vm in vms if vm.power is PowerState.RUNNING and polling_state(pace(vm.key)) in silent]


def pace_from_store(store: Store, now: Callable[[], float]) -> PaceLookup:
    """Return a lookup of how VMs poll, by VM key, from the polls in the store alone, in lab time."""
    known: dict[str, LastPoll] | None = None

    def pace(key: str) -> PollingPace | None:
        nonlocal known
        if known is None:
            known = {poll.vm: poll for poll in store.last_polls()}
        poll = known.get(key)
        return None if poll is None else PollingPace(silent_s=max(0.0, now() - poll.at - poll.wait_s))

    return pace


def _counts(rollout: Rollout, at: float) -> bool:
    """Return whether what happened at this lab time counts: in the current wave, and since it was resumed."""
    is_in_wave = rollout.wave_began_at is None or at >= rollout.wave_began_at
    return is_in_wave and (rollout.resumed_at is None or at > rollout.resumed_at)


def _undelivered_vms(store: Store, started: Sequence[Event]) -> list[str]:
    listed = [event for event in started if event.listed]
    given = store.events_given_before_start([event.id for event in listed]) if listed else set()
    return [name for event in listed if event.id not in given for name in event.vms]


def _vms_not_back(
    store: Store, vms: Iterable[Vm], ended: Iterable[tuple[Event, Act, ActOutcome]], now: float
) -> tuple[list[str], list[str]]:
    """Return the VMs that polled before their maintenance and not since: within the limit, and beyond."""
    # A VM that has never polled has no handler that could come back, so it does not count; nor does one that was
    # removed or turned off meanwhile.
    over = {
        vm_key_in_scope(event.scope_id, act.name): (act.name, outcome.at)
        for event, act, outcome in ended
        if outcome.ok and event.status is EventState.OVER and CAUSE_RULES[event.cause].verb
    }
    if not over:
        return [], []
    polls = {poll.vm: poll for poll in store.last_polls()}
    covered = {vm.key: vm for vm in vms}
    silent = {
        key: (name, at)
        for key, (name, at) in over.items()
        if key in polls and polls[key].at + min(polls[key].wait_s, SILENCE_LIMIT_S) < at
    }
    absent = [found for key, found in silent.items() if _should_run(covered.get(key) or store.vm(key))]
    waiting = [name for name, at in absent if now - at <= RETURN_LIMIT_S]
    return waiting, [name for name, at in absent if now - at > RETURN_LIMIT_S]


def _should_run(vm: Vm | None) -> bool:
    """Return whether the VM is present, and nobody has turned it off: one that crashed should run."""
    if vm is None or vm.removed_at is not None:
        return False
    return vm.power is PowerState.RUNNING or vm.condition is VmCondition.CRASHED


def _count_text(names: Sequence[str]) -> str:
    have = "VM has" if len(names) == 1 else "VMs have"
    return f"{len(names)} {have}"


_MAX_PROBES = 8  # under way at a time, shared equally by the running rollouts; the others wait
_MIN_PROBES = 2  # that each rollout may have under way, however many there are: those of others may hang
_VMS_PER_SLICE = 1000  # whose polls are looked up before other tasks run

CheckKey = tuple[str, str]  # the id of the rollout's request, and the name of the check


class HealthCheckService:
    """Measures the health checks of all open rollouts that are running.

    `reconcile` stores what was measured and starts what is due. Figures of the service are read in a thread, because a
    rollout may have 100,000 events.
    """

    def __init__(self, *, store: Store, clock: Clock, prober: HealthProber, wake: Callable[[], None]) -> None:
        self._store, self._clock = store, clock
        self.prober = prober
        self._wake = wake
        self.pace: Callable[[], PaceLookup] = lambda: pace_from_store(store, clock.now)
        self.open_rollouts: dict[str, MaintenanceRequest] = {}  # with checks, by the id of their request
        self._measured: dict[str, list[Measurement]] = {}  # request id → its measurements, oldest first
        self.running: dict[CheckKey, asyncio.Task[None]] = {}  # the checks under way
        self._probes: set[CheckKey] = set()  # those of them that are not figures, and may hang
        self._probes_per_rollout = _MAX_PROBES
        self._clear_until: dict[str, float] = {}  # request id → lab time until which its checks let its events start
        self.holding: set[str] = set()  # request ids of rollouts whose events may have waited for clear checks
        self._results: dict[CheckKey, Measurement] = {}  # not stored yet
        self._figure_slot = asyncio.Semaphore(1)  # the store does one long read at a time; probes need not wait for it
        for request in store.requests(open_only=True):
            self._index(request)
        self.holding |= {request.id for request in self._holders()}  # their events may wait since an earlier process

    def on_commit(self, applied: AppliedCommit) -> None:
        """Remember the rollouts and measurements of a commit, in memory."""
        for request in applied.commit.requests:
            self._index(request)
        for measurement in applied.commit.measurements:
            self._clear_until.pop(measurement.request_id, None)
            if (known := self._measured.get(measurement.request_id)) is not None:
                known.append(measurement)
                # As many as the store keeps, so that both judge by the same ones.
                del known[:-MAX_MEASUREMENTS]

    def counting(self, request_id: str, rollout: Rollout) -> list[Measurement]:
        """Return the measurements of a rollout's checks that count now, oldest first."""
        known = self._measured.get(request_id)
        if known is None:
            known = self._store.measurements(request_id)
            if request_id in self.open_rollouts:
                self._measured[request_id] = known = list(known)
        return [m for m in known if (m.wave, m.check_round) == (rollout.wave, rollout.check_round)]

    def held_rollouts(self) -> frozenset[str]:
        """Return the request ids of rollouts that hold their events now, and note them in `holding`."""
        now = self._clock.now()
        held = frozenset(request.id for request in self._holders() if now > self._clear_time(request, now))
        self.holding |= held
        return held

    def _holders(self) -> list[MaintenanceRequest]:
        return [r for r in self.open_rollouts.values() if r.rollout is not None and r.rollout.hold_if_unclear]

    def _clear_time(self, request: MaintenanceRequest, now: float) -> float:
        """Return until when the checks are clear if nothing is measured; each decision asks."""
        if (known := self._clear_until.get(request.id)) is None:
            assert request.rollout is not None
            counting = self.counting(request.id, request.rollout)
            verdict = health_verdict(request.rollout.checks, counting, now)
            latest = {measurement.check: measurement.at for measurement in counting}
            known = -math.inf
            if verdict.decision is HealthDecision.GO_ON:
                # Clear until the first of them is too old: a check that nobody measures any more must hold the events.
                known = min(latest[check.name] + check.stale_after_s for check in request.rollout.checks)
            self._clear_until[request.id] = known
        return known

    async def reconcile(self) -> bool:
        """Store measurements that have ended, and start checks that are due; return whether any was stored."""
        # What was measured is stored before anything new is started: a verdict counts stored measurements.
        results = dict(self._results)
        if results:
            await self._store.commit(Commit(measurements=tuple(results.values())))
            for key in results:
                del self._results[key]
        now = self._clock.now()
        due_times = self._due_times()
        # The longest due first, so that each check has its turn.
        for key in sorted(due_times, key=due_times.__getitem__):
            if due_times[key] <= now and self._has_slot(key):
                self._start(key)
        return bool(results)

    def next_due_at(self) -> float | None:
        """Return the lab time, perhaps past, at which the next check is due; None if none is."""
        # Checks that are under way, that wait for another check of their rollout to end, or whose result is not stored
        # yet, do not count. Raises Unavailable.
        return min((at for key, at in self._due_times().items() if self._has_slot(key)), default=None)

    async def wait_for_any(self) -> None:
        """Wait until one of the checks under way has ended; return at once if there is none."""
        if self.running:
            await asyncio.wait(list(self.running.values()), return_when=asyncio.FIRST_COMPLETED)

    async def try_once(self, check: HealthCheck, rollout: Rollout) -> CheckResult:
        """Perform a check once for a rollout, which need not be stored, and return what it found."""
        return await self._measure(check, rollout, "")

    async def close(self) -> None:
        """Cancel the checks under way, kill their commands, and wait for that. Their results are lost."""
        tasks = list(self.running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _index(self, request: MaintenanceRequest) -> None:
        rollout = request.rollout
        self._clear_until.pop(request.id, None)
        if request.is_open and rollout is not None and rollout.checks:
            self.open_rollouts[request.id] = request
        else:
            self.open_rollouts.pop(request.id, None)
            self._measured.pop(request.id, None)
            self.holding.discard(request.id)
        sharers = sum(map(_is_running, self.open_rollouts.values()))
        # Shared equally: probes of one rollout that hang must not stop the checks of the others.
        self._probes_per_rollout = max(_MIN_PROBES, _MAX_PROBES // max(1, sharers))
        if not _is_running(request):
            for key in self._probes_of(request.id):
                self.running[key].cancel()  # a result would count no more; the rollout may be resumed at once

    def _probes_of(self, request_id: str) -> list[CheckKey]:
        return [key for key in self._probes if key[0] == request_id]

    def _has_slot(self, key: CheckKey) -> bool:
        if self._check(key).kind is CheckKind.FIGURE:
            return True  # it waits in its task
        return len(self._probes_of(key[0])) < self._probes_per_rollout

    def _check(self, key: CheckKey) -> HealthCheck:
        rollout = self.open_rollouts[key[0]].rollout
        assert rollout is not None
        return next(check for check in rollout.checks if check.name == key[1])

    def _due_times(self) -> dict[CheckKey, float]:
        due: dict[CheckKey, float] = {}
        for request in self.open_rollouts.values():
            rollout = request.rollout
            if rollout is None or not _is_running(request):
                continue
            counting = self.counting(request.id, rollout)
            for check in rollout.checks:
                key = (request.id, check.name)
                # One at a time for each check: its result decides when it is due again.
                if key not in self.running and key not in self._results:
                    due[key] = next_measurement_at(check, counting)
        return due

    def _start(self, key: CheckKey) -> None:
        check, rollout = self._check(key), self.open_rollouts[key[0]].rollout
        assert rollout is not None
        if check.kind is not CheckKind.FIGURE:
            self._probes.add(key)
        self.running[key] = task = asyncio.create_task(self._perform(key, check, rollout))
        task.add_done_callback(lambda _: self._end(key))  # even of a task that was cancelled before its first step

    def _end(self, key: CheckKey) -> None:
        del self.running[key]
        self._probes.discard(key)
        self._wake()

    async def _perform(self, key: CheckKey, check: HealthCheck, rollout: Rollout) -> None:
        is_figure = check.kind is CheckKind.FIGURE
        async with self._figure_slot if is_figure else nullcontext():
            began_at = self._clock.now()
            result = await self._measure(check, rollout, key[0])
        if key[0] not in self.open_rollouts:
            return  # it was closed meanwhile
        self._results[key] = measurement_of(
            check,
            result,
            request_id=key[0],
            wave=rollout.wave,
            check_round=rollout.check_round,
            at=began_at if is_figure else self._clock.now(),  # what happens during its read may be missing in it
        )

    async def _measure(self, check: HealthCheck, rollout: Rollout, request_id: str) -> CheckResult:
        try:
            if check.kind is not CheckKind.FIGURE:
                return await self.prober.probe(check)
            if check.figure is OwnFigure.WITHOUT_HANDLER:
                return await self._count_without_handler(check, rollout)
            return await self._store.read_in_thread(_FigureRead(check, rollout, request_id, self._clock.now()))
        except ForewarnError as error:
            return CheckResult(CheckOutcome.ERROR, str(error))
        except Exception as error:
            log.exception("check %r failed with an internal error", check.name)
            return CheckResult(CheckOutcome.ERROR, f"forewarn failed with an internal error ({type(error).__name__})")

    async def _count_without_handler(self, check: HealthCheck, rollout: Rollout) -> CheckResult:
        """Measure `vms-without-handler`: reads the VMs in a thread, and looks up polls here, in short slices."""
        vms = await self._store.read_in_thread(lambda store: rollout_vms(store, rollout))
        pace, names = self.pace(), list[str]()
        for at in range(0, len(vms), _VMS_PER_SLICE):
            names += vms_without_handler(vms[at : at + _VMS_PER_SLICE], pace)
            # Other tasks run between the slices.
            await asyncio.sleep(0)
        return figure_result(check, names)


def _is_running(request: MaintenanceRequest) -> bool:
    return request.rollout is not None and request.rollout.progress is RolloutState.RUNNING


@dataclass(frozen=True, slots=True)
class _FigureRead:
    """Measures a figure that is in the store alone; called in a thread, as it may read many events."""

    # With 100,000 VMs and events, on two busy cores, that took 1.6 to 2.5 s, during which the event loop was held up
    # for 0.34 s at most; on the loop itself it took 3 to 5 s.

    check: HealthCheck
    rollout: Rollout
    request_id: str  # of the rollout; "": it has no events
    now: LabTime

    def __call__(self, store: Store) -> CheckResult:
        events = store.events(request_id=self.request_id) if self.request_id else []
        vms = rollout_vms(store, self.rollout)
        return measure_figure(self.check, store, self.rollout, vms, events, lambda key: None, self.now)
