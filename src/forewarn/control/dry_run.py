"""Dry runs: carry out a request on an in-memory copy of the scopes it concerns, in virtual time.

Uses the same decisions as a real request and commits nothing to the real store. One dry run at a time, in a thread,
so that the event loop can answer VMs meanwhile. For a rollout that is too large, only the first wave is previewed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count

from msgspec.structs import replace

from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.times import RealTime
from forewarn.control.budgets import OutsideCounts
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.core.commit import Commit
from forewarn.core.decision import Policy
from forewarn.core.event import Act, Event, EventState
from forewarn.core.explain.preview import Preview, preview_from_events, preview_from_first_batch, preview_warnings
from forewarn.core.explain.rollout_plan import RolloutPlan, SimulatedRun, make_rollout_plan
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, LastPoll
from forewarn.core.placement import DestinationHints
from forewarn.core.request import MaintenanceRequest, Rollout
from forewarn.core.rollout import next_batch
from forewarn.core.scope import Scope
from forewarn.core.shared_work import may_share_work, shared_work
from forewarn.core.waves import divide_into_waves, wave_phase
from forewarn.errors import Refused
from forewarn.machines.interface import VerbSupport
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor
from forewarn.store.interface import BUDGETS_NAME, Store
from forewarn.store.memory import MemoryStore

MAX_SIMULATED_VMS = 2_000  # a request for more VMs is not simulated to its end
MAX_COPIED_VMS = 20_000  # VMs of all scopes that are copied; for more, DryRunTooLarge
_MAX_STEPS = 20_000
_MAX_REAL_TIME_S = 10.0
_MAX_EVENTS_READ = 1_000  # events of a scope, to find the last act on each of its VMs
_SCOPES_PER_SLICE = 100  # scopes read before other tasks may run
_COPIED_VALUES = ("faults", BUDGETS_NAME)
_LIVE_STATES = (EventState.SCHEDULED, EventState.STARTED)

# Makes the request on the given control plane. A dry run passes it a copy, in another thread and event loop.
RequestAction = Callable[[ControlPlane], Awaitable[MaintenanceRequest]]


class DryRunTooLarge(Refused):
    """The scopes that a request concerns have too many VMs together to copy; the request can still be made."""


async def dry_run_request(control: ControlPlane, action: RequestAction, vms: Sequence[Vm]) -> Preview:
    """Return what a request for these VMs would lead to. Waits for an earlier dry run.

    `action` gets a control plane with a copy of the scopes of `vms` and of those that share gates with them, makes the
    request there and returns it; it runs in another thread, on an event loop of its own. A hold on rollouts is left
    out. The preview is cut (`is_partial`) at limits of VMs, steps and real time.
    """
    now = control.clock.now()
    end = await simulate_request(control, action, vms)
    return preview_from_events(end.events, now=now, vms=len(vms), is_over=end.is_over, skipped=end.skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """What the simulation of a request led to, as `simulate_request` returns it. Nothing of it is stored."""

    events: list[Event]  # that it published, live or over, oldest first
    skipped: list[str]  # sentences about VMs that it would skip
    run: SimulatedRun  # the same events, and more facts about a rollout

    @property
    def is_over(self) -> bool:
        """Whether the simulation reached the end of the request."""
        return self.run.is_over


async def simulate_request(
    control: ControlPlane, action: RequestAction, vms: Sequence[Vm], *, approves: bool = False
) -> SimulatedRequest:
    """Make a request on a copy of the scopes of these VMs, and return what it would lead to.

    It ends earlier, with `is_over` False, if nothing more is due, or at limits of VMs, steps and real time. With
    `approves`, each of its events is approved when it is published. A hold on rollouts is left out.
    """
    # One at a time: each copies a part of the store and uses a core.
    async with control.dry_run_lock:
        snapshot = await _take_snapshot(control, {vm.scope_id for vm in vms})
        return await asyncio.to_thread(_simulate_in_thread, snapshot, action, len(vms), approves)


async def dry_run_rollout(
    control: ControlPlane, rollout: Rollout, *, who: str, notice_s: float, short_notice: bool
) -> Preview:
    """Return what a rollout would lead to; for more than 2,000 VMs, only what it would publish first.

    It says the same as the plan about waves, times, and what the rollout would wait for.
    """
    request = control.rollout_requests.plan(rollout, who=who, notice_s=notice_s, short_notice=short_notice)
    assert request.rollout is not None
    vms = control.rollouts.vms_of(request.rollout)
    now, latest, skipped = control.clock.now(), None, []
    if len(vms) > MAX_SIMULATED_VMS:
        members = wave_phase(request.rollout, vms, (), (), request.requested_at).members
        ledger = control.budgets.ledger()
        windows = control.rollout_calendars.windows_at(request.requested_at + request.notice_s)
        batch = next_batch(request, vms, (), (), _placeholder_ids(), among=members, budgets=ledger, windows=windows)
        preview = preview_from_first_batch(batch.planned, now=now, vms=len(vms))
    else:
        end = await simulate_request(control, _start_of(rollout, who, notice_s, short_notice=short_notice), vms)
        preview = preview_from_events(end.events, now=now, vms=len(vms), is_over=end.is_over)
        latest, skipped = end.run, end.skipped
    plan = _make_plan(control, request, request.rollout, vms, latest=latest)
    sentences = (*preview_warnings(preview.events), *plan.summary, *skipped) if vms else ()
    return replace(preview, rollout_waves=plan.waves, summary=sentences)


def _start_of(rollout: Rollout, who: str, notice_s: float, *, short_notice: bool) -> RequestAction:
    without_checks = replace(rollout, checks=())  # nothing is asked: a dry run shows what happens if all is well

    async def start(copy: ControlPlane) -> MaintenanceRequest:
        return await copy.rollout_requests.start(without_checks, who=who, notice_s=notice_s, short_notice=short_notice)

    return start


def _make_plan(
    control: ControlPlane,
    request: MaintenanceRequest,
    rollout: Rollout,
    vms: Sequence[Vm],
    *,
    earliest: SimulatedRun | None = None,
    latest: SimulatedRun | None = None,
    has_handler: Callable[[Vm], bool] = lambda vm: True,
) -> RolloutPlan:
    is_too_large = len(vms) > MAX_SIMULATED_VMS
    return make_rollout_plan(
        rollout,
        divide_into_waves(rollout, vms),
        now=request.requested_at,
        notice_s=request.notice_s,
        earliest=earliest,
        latest=latest,
        forecast=control.rollouts.forecast_of(request, rollout, ignores_hold=True) if is_too_large else None,
        without_handler={vm.key for vm in vms if not has_handler(vm)},
        hold=control.rollouts.hold.reason if control.rollouts.hold is not None else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoreSnapshot:
    """Stored state of some scopes, with the time, policy, polls and faults that decisions need."""

    commit: Commit
    running_acts: list[tuple[Act, float]]  # acts that the hypervisor performs now, and when they began
    polls: list[LastPoll]
    saved: dict[str, bytes]  # saved values by name: faults and budgets
    outside: OutsideCounts  # the VMs that budgets count and that are not copied
    now: float
    real_now: RealTime
    policy: Policy
    resumed_at: float | None
    verbs: VerbSupport  # of the real hypervisor
    hints: DestinationHints  # of the real hypervisor

    async def to_memory_store(self) -> MemoryStore:
        store = MemoryStore()
        for name, value in self.saved.items():
            await store.save(name, value)
        await store.commit(self.commit)
        await store.record_observations(self.polls, [])
        return store


async def _take_snapshot(control: ControlPlane, concerned: set[str]) -> _StoreSnapshot:
    store = control.store
    # A small fleet is copied whole: its budgets, hosts and other rollouts then count as they are.
    is_whole = store.counts().vms <= MAX_SIMULATED_VMS
    scopes = await _connected_scopes(store, set(store.scope_ids()) if is_whole else concerned)
    rollouts = [request for request in store.requests(open_only=True) if request.rollout is not None]
    events = {event.id: event for scope in scopes.values() for event in scope.events}
    for request in rollouts:  # the events of a rollout say which VMs are done
        events |= {e.id: e for e in store.events(request_id=request.id) if e.scope_id in scopes}
    planned = tuple(item for item in store.planned() if item.scope_id in scopes)
    gates = {gate_id: store.gate(gate_id) for gate_id in _gate_ids((*events.values(), *planned))}
    vms = store.vms() if is_whole else [vm for scope in scopes.values() for vm in scope.vms]
    return _StoreSnapshot(
        commit=Commit(
            scopes=tuple(replace(scope, version=0) for scope in scopes.values()),
            vms=tuple(vms),
            events=tuple(_in_order_of_acts(events.values(), control.executor.unfinished_act_ids())),
            hosts=tuple(replace(host, version=0) for host in store.hosts()),
            gates=tuple(replace(gate, version=0) for gate in gates.values() if gate is not None),
            requests=tuple(_without_checks(request) for request in rollouts),
            planned=planned,
            configurations=tuple(store.configurations()),
            assignments=tuple(store.assignments()),
        ),
        running_acts=_running_acts(
            store, [event for scope in scopes.values() for event in scope.live_events(EventState.STARTED)]
        ),
        polls=[last_poll for scope_id in scopes for last_poll in store.last_polls(scope_id=scope_id)],
        saved={name: value for name in _COPIED_VALUES if (value := store.load(name)) is not None},
        outside=control.budgets.counts_without({vm.key for vm in vms}),
        now=control.clock.now(),
        real_now=control.faults.real_time(),
        policy=control.transactions.policy,
        resumed_at=control.transactions.resumed_at,
        verbs=control.verbs,
        hints=deepcopy(control.transactions.destination_hints()),  # the simulation runs in another thread
    )


def _without_checks(request: MaintenanceRequest) -> MaintenanceRequest:
    """Return a rollout's request for the copy: new there, and without health checks, which are real."""
    assert request.rollout is not None
    return replace(request, version=0, rollout=replace(request.rollout, checks=()))


async def _connected_scopes(store: Store, wanted: set[str]) -> dict[str, Scope]:
    found: dict[str, Scope] = {}
    gates: set[str] = set()
    vms = 0
    while wanted:
        scope_id = min(wanted)
        wanted.discard(scope_id)
        if (scope := store.scope(scope_id)) is None:
            continue
        found[scope_id] = scope
        vms += len(scope.vms)
        if vms > MAX_COPIED_VMS:
            raise DryRunTooLarge(
                f"this request concerns more than {MAX_COPIED_VMS} VMs, too many for a preview: choose fewer VMs"
            )
        # A gate waits for events of other scopes, so these belong to the copy, too.
        for gate_id in _gate_ids(scope.events) - gates:
            gates.add(gate_id)
            wanted |= {event.scope_id for event in store.events(gate_id=gate_id, statuses=_LIVE_STATES)} - found.keys()
        if len(found) % _SCOPES_PER_SLICE == 0:
            await asyncio.sleep(0)
    return found


def _in_order_of_acts(events: Iterable[Event], act_ids: Sequence[str]) -> list[Event]:
    # The copy queues acts in this order. Acts that end at one instant then end in the same order as in reality, and VMs
    # that move on choose the same destinations.
    places = {act_id: place for place, act_id in enumerate(act_ids)}

    def place(event: Event) -> int:
        return min((places.get(act.id, len(places)) for act in event.unfinished_acts), default=len(places))

    return sorted(events, key=lambda event: (place(event), *_start_order(event)))


def _start_order(event: Event) -> tuple[float, int]:
    """Sort key: acts on one VM are performed in the order in which their events started."""
    return (math.inf if event.started_at is None else event.started_at, event.seq)


def _running_acts(store: Store, started: list[Event]) -> list[tuple[Act, float]]:
    """Return the first unfinished act of each VM and when it began: with its event, or after the previous act."""
    first: dict[str, tuple[Act, Event]] = {}
    for event in sorted(started, key=_start_order):
        for act in event.unfinished_acts:
            first.setdefault(act.vm, (act, event))
    ended = {event.scope_id: _last_act_times(store, event.scope_id) for _, event in first.values()}
    return [
        (act, max(event.started_at or 0.0, ended[event.scope_id].get(vm, 0.0))) for vm, (act, event) in first.items()
    ]


def _last_act_times(store: Store, scope_id: str) -> dict[str, float]:
    """Return, by VM key, when the last finished act ended."""
    done: dict[str, float] = {}
    for event in store.events(scope_id=scope_id, limit=_MAX_EVENTS_READ):
        for act in event.acts:
            if act.outcome is not None:
                done[act.vm] = max(act.outcome.at, done.get(act.vm, 0.0))
    return done


def _gate_ids(things: Iterable[object]) -> set[str]:
    return {gate_id for thing in things if (gate_id := getattr(thing, "gate_id", ""))}


def _simulate_in_thread(snapshot: _StoreSnapshot, action: RequestAction, vms: int, approves: bool) -> SimulatedRequest:
    return asyncio.run(_simulate(snapshot, action, vms, approves))


async def _simulate(snapshot: _StoreSnapshot, action: RequestAction, vms: int, approves: bool) -> SimulatedRequest:
    store = await snapshot.to_memory_store()
    hypervisor = SimulatedHypervisor(EffectLedger(None))
    # Begun before the request, so that they end when the real ones do.
    for act, since in snapshot.running_acts:
        await hypervisor.perform(act, since)
    control = ControlPlane(
        store=store,
        clock=LabClock(ClockSetting(lab_at=snapshot.now, real_at=RealTime(0.0), speed=0.0), real=lambda: RealTime(0.0)),
        hypervisor=hypervisor,
        inputs=ControlInputs(new_id=_placeholder_ids(), polls=store.last_polls, real_time=lambda: snapshot.real_now),
        policy=snapshot.policy,
        verbs=snapshot.verbs,
    )
    control.budgets.add_counts(snapshot.outside)
    control.transactions.resumed_at = snapshot.resumed_at
    control.transactions.destination_hints = lambda: snapshot.hints
    try:
        request = await action(control)
        await control.reconciler.run_until_settled()
        if vms <= MAX_SIMULATED_VMS:
            await _run_to_end(control, request, approves)
        events = store.events(request_id=request.id)
        return SimulatedRequest(
            events=events,
            skipped=[e.text for e in store.history(request_id=request.id) if e.kind is EntryKind.SKIPPED],
            run=_simulated_run(control, request, events),
        )
    finally:
        await control.close()
        await hypervisor.close()


def _simulated_run(control: ControlPlane, request: MaintenanceRequest, events: list[Event]) -> SimulatedRun:
    store = control.store
    known = store.request(request.id) or request
    rollout, is_over = known.rollout, _is_request_over(store, request)
    if rollout is None:
        return SimulatedRun(events=events, is_over=is_over)
    vms = control.rollouts.vms_of(rollout)
    others = [other for other in store.requests() if may_share_work(known, other)]
    served = {
        other.id: shared_work(known, rollout, vms, events, store.events(request_id=other.id), ()) for other in others
    }
    return SimulatedRun(
        events=events,
        is_over=is_over,
        closed_at=rollout.closed_at,
        reason=rollout.reason,
        waits_for=() if is_over else control.budgets.wait_texts(request.id),
        served_by={request_id: frozenset(work.states) for request_id, work in served.items() if work.states},
        shared_events=[event for work in served.values() for event in work.events],
    )


async def _run_to_end(control: ControlPlane, request: MaintenanceRequest, approves: bool) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + _MAX_REAL_TIME_S
    for _ in range(_MAX_STEPS):
        if approves:
            await _approve_scheduled(control, request)
        if (
            _is_request_over(control.store, request)
            or loop.time() > until
            or not await control.lab_clock.advance_to_next_wake()
        ):
            return


async def _approve_scheduled(control: ControlPlane, request: MaintenanceRequest) -> None:
    while True:
        scheduled = control.store.events(request_id=request.id, statuses=(EventState.SCHEDULED,))
        pending = [event for event in scheduled if event.approved_at is None]
        if not pending:
            return
        await control.requests.approve_all(pending, who="the simulation")
        await control.reconciler.run_until_settled()


def _is_request_over(store: Store, request: MaintenanceRequest) -> bool:
    known = store.request(request.id)
    if known is not None and known.rollout is not None:
        return known.rollout.closed
    live = store.events(request_id=request.id, statuses=_LIVE_STATES)
    return not live and not store.planned(request_id=request.id)


def _placeholder_ids() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"FFFFFFFF-FFFF-4FFF-BFFF-{next(numbers):012X}"


# Plans rollouts: divides VMs into waves, and simulates with and without approvals (spec §13.6).


async def plan_rollout(
    control: ControlPlane,
    rollout: Rollout,
    *,
    who: str,
    notice_s: float,
    short_notice: bool,
    has_handler: Callable[[Vm], bool] = lambda vm: True,
) -> RolloutPlan:
    """Return the plan of a rollout: waves, VMs, earliest and latest times.

    `who` is the caller's name. `notice_s` is in seconds of lab time; 0 means the minimum, or no notice with
    `short_notice`. Only with `short_notice` may it be below the minimum. `has_handler` says whether a VM polls for
    events. The earliest times assume that each event is approved when it is published, the latest that none is. Changes
    nothing, and performs no health check. Waits for an earlier dry run. A hold on rollouts is left out of the times,
    and named in the plan. Each of the two simulations ends after 10 seconds of real time, or when nothing more is due;
    later times are then missing. With over 2,000 VMs nothing is simulated: the latest times are those that the started
    rollout is expected to have, and the earliest ones are missing.
    """
    request = control.rollout_requests.plan(rollout, who=who, notice_s=notice_s, short_notice=short_notice)
    assert request.rollout is not None
    vms = control.rollouts.vms_of(request.rollout)
    start = _start_of(rollout, who, notice_s, short_notice=short_notice)

    async def run(*, approves: bool) -> SimulatedRun | None:
        if len(vms) > MAX_SIMULATED_VMS:
            return None
        return (await simulate_request(control, start, vms, approves=approves)).run

    earliest, latest = await run(approves=True), await run(approves=False)
    return _make_plan(control, request, request.rollout, vms, earliest=earliest, latest=latest, has_handler=has_handler)
