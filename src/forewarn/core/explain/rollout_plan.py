"""The plan of a rollout: its waves, their VMs, and when each begins, ends and settles (spec §13.6).

The earliest times assume that each event is approved when it is published, the latest ones that nobody approves. Both
assume that every act takes its usual time, and that nothing else comes in between.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.base.times import LabSeconds, LabTime, Timestamp, timestamp
from forewarn.base.wording import first_names
from forewarn.core.budgets import BudgetGroup, BudgetLedger
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.maintenance_configuration import TargetWindows
from forewarn.core.request import BegunWave, MaintenanceRequest, PlannedEvent, Rollout
from forewarn.core.rollout import handled_vms, host_units, needs_gate
from forewarn.core.shared_work import NO_SHARED_WORK, SharedWork
from forewarn.core.waves import WaveStep, rollout_target_text, wave_phase, wave_specs, waves_to_come
from forewarn.core.windows import MaintenanceCalendar, calendar_text, next_start

MAX_PLANNED_NAMES = 1000  # VM names of one wave that a plan lists


class WaveTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When a wave of a rollout begins, ends and has settled."""

    begins_at: Timestamp  # its first event is published
    starts_at: Timestamp | None  # its first event starts; None: none does
    over_at: Timestamp | None  # its last event is over; None: not within the plan
    settled_at: Timestamp | None  # the settling time after that has passed; None: not within the plan


class PlannedWave(msgspec.Struct, frozen=True, kw_only=True):
    """One wave of a planned rollout: its VMs, and when its events are published, start and end."""

    number: int  # from 1
    name: str  # as the rollout names the wave, such as canary
    size: int  # how many VMs it has; 0: it is passed over
    vms: tuple[str, ...]  # their names, at most 1,000, by update domain
    update_domains: int  # how many, in the scope with the most of them: they follow one another
    starts: tuple[Timestamp, ...]  # when its events start if nobody approves, each once, ascending
    earliest: WaveTimes | None = None  # if each event is approved at once; None: not simulated, or it got no event
    latest: WaveTimes | None = None  # if nobody approves; None: not simulated, or it got no event
    without_handler: tuple[str, ...] = ()  # names of its VMs that do not poll for events, at most 1,000


class ForecastWave(msgspec.Struct, frozen=True, kw_only=True):
    """A wave of a rollout, begun or to come: its size, and times that are known or expected."""

    wave: int  # its index
    state: str  # waiting (not begun), now, settling or done
    size: int  # VMs that it has or will have
    times: WaveTimes | None = None  # None: it has no VMs, or they cannot be known
    starts: tuple[Timestamp, ...] = ()  # when its events have started or will, each once, ascending


class RolloutForecast(msgspec.Struct, frozen=True, kw_only=True):
    """How a rollout goes on from now: the sizes and times of its waves, and its expected end."""

    waves: tuple[ForecastWave, ...]  # in order
    ends_at: LabTime | None  # when the last wave has settled; None: a window or a budget never lets it end
    is_measured: bool  # it assumes the pace of its events so far; False: that nobody approves
    shared: dict[str, int] = {}  # other rollouts that do the same work, by id, and how many of its VMs they serve


class RolloutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout would do: its waves in order, when it would be over, and a summary in sentences."""

    # The earliest times assume that each event is approved when it is published, the latest that nobody approves.

    now: Timestamp  # of the plan
    target: str  # what it covers, for people
    impact: str  # update, migrate or reboot
    notice_s: LabSeconds  # the notice of its events
    settle_s: LabSeconds  # that must pass after each wave
    windows: str  # when its events may start without an approval, for people; "": at any time
    vms: int  # how many VMs it covers
    waves: tuple[PlannedWave, ...]  # in order, also empty ones
    over_earliest: Timestamp | None  # when the last wave has settled; None: not simulated to the end
    over_latest: Timestamp | None  # the same if nobody approves; None: not simulated to the end
    is_partial: bool  # no simulation reached the end: times of later waves are missing, or estimated
    never_started: int  # VMs that would get no event before it ends, from any rollout; 0 if the plan is cut
    without_handler: int  # how many of its VMs do not poll for events
    summary: tuple[str, ...]  # the summary for people
    hold: str = ""  # why all rollouts are on hold now, although its times assume that they are not; "": they are not
    waits_for: tuple[str, ...] = ()  # what keeps it from its end, in clauses, such as a budget; () if nothing does
    shared: dict[str, int] = {}  # other rollouts that do the same work, by id, and how many of its VMs they serve
    is_estimated: bool = False  # its latest times are estimated, because it is too large to simulate
    reason: str = ""  # why VMs never start, as a clause; "": not known, or all start


class SimulatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of simulating a request, in general a rollout: its events, and how the simulation ended."""

    events: Sequence[Event]  # of the request alone, oldest first
    is_over: bool  # False: the simulation ended before the request did
    closed_at: LabTime | None = None  # when a rollout had nothing left to do; None: not reached
    reason: str = ""  # why the rollout stopped, such as that no window follows; "": there is nothing to say
    waits_for: tuple[str, ...] = ()  # what it waits for at last, in clauses, such as a budget; () if for nothing
    served_by: Mapping[str, frozenset[tuple[str, str]]] = {}  # other rollout → scope id and name of VMs that it serves
    shared_events: Sequence[Event] = ()  # of those rollouts, for these VMs


def make_rollout_plan(
    rollout: Rollout,
    divided: Sequence[Sequence[Vm]],
    *,
    now: float,
    notice_s: float,
    earliest: SimulatedRun | None,
    latest: SimulatedRun | None,
    without_handler: Collection[str] = (),
    hold: str = "",
    forecast: RolloutForecast | None = None,
) -> RolloutPlan:
    """Return the plan of a rollout from its waves (`divide_into_waves`) and two simulations of it.

    A simulation that was not made is None, and its times are missing. Without `latest`, or if it did not reach the end,
    the plan is cut. `forecast` stands in for `latest` where there is none.
    """
    waves = tuple(
        _planned_wave(rollout, index, members, earliest, latest, without_handler)
        for index, members in enumerate(divided)
    )
    expected = {wave.wave: wave for wave in forecast.waves} if forecast is not None else {}
    waves = tuple(
        replace(wave, latest=found.times, starts=found.starts) if (found := expected.get(wave.number - 1)) else wave
        for wave in waves
    )
    vms = sum(map(len, divided))
    reached = latest is not None and latest.is_over
    unlisted = {(vm.scope_id, vm.name) for wave in divided for vm in wave}
    unlisted -= {(e.scope_id, name) for e in latest.events for name in e.vms} if latest is not None else set()
    served_by = latest.served_by if latest is not None else {}
    shared = {request_id: len(unlisted & vms) for request_id, vms in served_by.items() if unlisted & vms}
    shared |= forecast.shared if forecast is not None else {}
    never = len(unlisted.difference(*served_by.values())) if reached else 0
    over_earliest, over_latest = (_end_of(run, rollout, now) for run in (earliest, latest))
    silent = sum(vm.key in without_handler for wave in divided for vm in wave)
    plan = RolloutPlan(
        now=timestamp(now),
        target=rollout_target_text(rollout),
        impact=rollout.impact,
        notice_s=notice_s,
        settle_s=rollout.settle_s,
        windows=calendar_text(rollout.calendar) if rollout.calendar else "",
        vms=vms,
        waves=waves,
        over_earliest=timestamp(over_earliest),
        over_latest=timestamp(forecast.ends_at if forecast is not None else over_latest),
        is_partial=not reached,
        is_estimated=forecast is not None,
        never_started=never,
        without_handler=silent,
        summary=(),
        hold=hold,
        waits_for=latest.waits_for if latest is not None else (),
        shared=shared,
        reason=latest.reason if latest is not None and never else "",
    )
    return replace(plan, summary=tuple(_sentences(plan)))


def forecast_rollout(
    request: MaintenanceRequest,
    vms: Sequence[Vm],
    events: Sequence[Event],
    planned: Sequence[PlannedEvent],
    *,
    now: float,
    act_s: float,
    goes_on: bool = True,
    budgets: BudgetLedger | None = None,
    windows: TargetWindows | None = None,
    shared: SharedWork = NO_SHARED_WORK,
) -> RolloutForecast:
    """Return the waves and the expected end of a rollout, before its start or at any time after.

    `vms` are the VMs that it covers and nobody else serves, `events` and `planned` all its events so far. `act_s` is
    how long an event usually takes from its start to its end. Unless it `goes_on` by itself, as when it is paused, the
    expected times are left out. `shared` is what other rollouts do in its place; their other work, such as that in the
    same budgets, is not considered.
    """
    # A simulation knows more, but copies the fleet and takes seconds: too much for each view of a running rollout. This
    # takes the same waves and units of work as the rollout does, and visits each VM once.
    rollout = request.rollout
    assert rollout is not None
    phase = wave_phase(rollout, vms, events, planned, now)
    handled = len(handled_vms(rollout, events, planned))
    to_come = waves_to_come(rollout, vms, phase, handled + len(phase.remaining))
    is_begun = phase.step in (WaveStep.WORK, WaveStep.SETTLE) or (phase.step is WaveStep.DONE and bool(events))
    begun = rollout.begun or ((_first_begun(request, rollout),) if is_begun else ())
    pace = _Pace.of(request, rollout, events, now, act_s=act_s, windows=windows)
    others = _Work(rollout, pace, None)
    for event in shared.events:
        others.add_event(event, {})
    for item in shared.planned:
        others.add_planned(item, {})
    covered = {(vm.scope_id, vm.name): vm for vm in vms} if budgets is not None else {}
    waves: list[ForecastWave] = []
    free_at: float | None = now  # when the next wave may begin; None: never
    for number, wave in enumerate(begun):
        following = begun[number + 1] if number + 1 < len(begun) else None
        until = following.at if following is not None else math.inf
        own = [event for event in events if wave.at <= event.published_at < until]
        members = to_come.pop(wave.wave, []) if following is None else []
        size = (following.base if following is not None else handled + len(members)) - wave.base
        work = _Work(rollout, pace, budgets)
        for event in own:
            work.add_event(event, covered)
        if following is None and goes_on:
            for item in planned:
                work.add_planned(item, covered)
            work.add_vms(members, now)
        elif following is None and phase.step is WaveStep.WORK:
            work.can_end = False
        state = {WaveStep.WORK: "now", WaveStep.SETTLE: "settling"}.get(phase.step, "done")
        waves.append(work.forecast(wave.wave, "done" if following is not None else state, size, wave.at))
        free_at = max(now, phase.settles_until or now) if not (members or work.is_live) else work.settled_at
    if not goes_on:
        free_at = None
    if rollout.waves:
        free_at = _later(free_at, others)  # a wave begins when that of others is over, too
    for index, members in to_come.items():
        work = _Work(rollout, pace, budgets)
        if free_at is not None and members:
            work.add_vms(members, free_at)
            waves.append(work.forecast(index, "waiting", len(members), free_at))
            free_at = work.settled_at
        else:
            waves.append(ForecastWave(wave=index, state="waiting", size=len(members)))
    serving: list[Event | PlannedEvent] = [*shared.events, *shared.planned]
    served = ((item, name) for item in serving for name in item.vms)
    return RolloutForecast(
        waves=tuple(waves),
        ends_at=_later(free_at, others),
        is_measured=pace.is_measured,
        shared=Counter(item.request_id for item, name in served if (item.scope_id, name) in shared.states),
    )


def _later(at: float | None, others: _Work) -> float | None:
    if at is None or not others.can_end:
        return None
    return max([at, *others.ends])


def _first_begun(request: MaintenanceRequest, rollout: Rollout) -> BegunWave:
    """The only wave of a rollout without `waves`."""
    began_at = rollout.wave_began_at if rollout.wave_began_at is not None else request.requested_at
    return BegunWave(wave=rollout.wave, at=began_at, base=rollout.wave_base)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    now: float
    notice_s: float
    act_s: float
    calendar: MaintenanceCalendar | None
    windows: TargetWindows | None
    is_measured: bool
    known: dict[tuple[MaintenanceCalendar | None, float], float | None] = field(default_factory=dict)

    @staticmethod
    def of(
        request: MaintenanceRequest,
        rollout: Rollout,
        events: Sequence[Event],
        now: float,
        *,
        act_s: float,
        windows: TargetWindows | None,
    ) -> _Pace:
        notice_s, count = request.notice_s, 0
        started_s = published_s = 0.0
        for event in events:
            if event.started_at is not None and event.over_at is not None:
                count += 1
                published_s += event.started_at - event.published_at
                started_s += event.over_at - event.started_at
        has_windows = rollout.calendar is not None or windows is not None
        if count:
            act_s = started_s / count
            notice_s = notice_s if has_windows else published_s / count  # windows say more than the pace so far
        return _Pace(
            now=now,
            notice_s=notice_s,
            act_s=act_s,
            calendar=rollout.calendar,
            windows=windows,
            is_measured=bool(count) and not has_windows,
        )

    def start_of(self, calendar: MaintenanceCalendar | None, published_at: float) -> float | None:
        """When an event that is published then starts; None: never without an approval."""
        key = calendar, published_at
        if key not in self.known:
            at = published_at + self.notice_s
            at = at if self.is_measured else float(math.ceil(at))
            self.known[key] = at if calendar is None else next_start(calendar, at)
        return self.known[key]

    def calendar_of(self, vms: Sequence[Vm]) -> MaintenanceCalendar | None:
        return self.calendar if self.windows is None else self.windows.calendar_for(vms, self.calendar).common


class _Work:
    """The work of one wave: each scope does one update domain after the other, as far as budgets allow."""

    def __init__(self, rollout: Rollout, pace: _Pace, budgets: BudgetLedger | None) -> None:
        self._rollout, self._pace, self._budgets = rollout, pace, budgets
        self._domains: dict[str, tuple[int, float, float]] = {}  # scope → its last update domain, begin and end
        self._places: defaultdict[BudgetGroup, list[float]] = defaultdict(list)  # when each place is free, ascending
        self._starts: set[Timestamp] = set()
        self.ends: list[float] = []
        self.can_end = True
        self.is_live = False

    @property
    def settled_at(self) -> float | None:
        return max(self.ends) + self._rollout.settle_s if self.ends and self.can_end else None

    def add_event(self, event: Event, covered: Mapping[tuple[str, str], Vm]) -> None:
        pace = self._pace
        if not event.is_live:
            self._note(event.started_at, event.over_at)
            return
        self.is_live = True
        start = event.started_at
        if start is None:
            start = event.not_before if event.approved_at is None else pace.now
            if event.calendar is not None and event.approved_at is None:
                start = next_start(event.calendar, max(start, pace.now))
        if start is None:
            self.can_end = False
            return
        end = max(pace.now, max(start, event.started_at or pace.now) + pace.act_s)
        self._take(event.scope_id, event.update_domain, event.published_at, end)
        self._note(start, end)
        self._take_places(_known_vms(event, covered), end)

    def add_planned(self, item: PlannedEvent, covered: Mapping[tuple[str, str], Vm]) -> None:
        self.is_live = True
        end = self._publish([(item.scope_id, item.update_domain)], self._pace.now, item.calendar)
        self._take_places(_known_vms(item, covered), end)

    def add_vms(self, vms: Sequence[Vm], at: float) -> None:
        for _, unit in host_units(self._rollout, vms):
            parts = [unit] if self._budgets is None or needs_gate(self._rollout) else [[vm] for vm in unit]
            for part in parts:
                self._add_unit(part, at)

    def _add_unit(self, vms: Sequence[Vm], at: float) -> None:
        scopes = {(vm.scope_id, vm.update_domain) for vm in vms}
        for scope_id, domain in scopes:
            if (known := self._domains.get(scope_id)) is not None:
                at = max(at, known[1] if known[0] == domain else known[2])
        budgets = self._budgets
        for group, count in budgets.groups_of(vms).items() if budgets is not None else ():
            assert budgets is not None
            places, spare = self._places[group], budgets.limit(group) - count
            if spare < 0:
                self.can_end = False  # they go together, and never fit
                return
            if len(places) > spare:
                at = max(at, places[len(places) - spare - 1])
        self._take_places(vms, self._publish(scopes, at, self._pace.calendar_of(vms)))

    def _take_places(self, vms: Iterable[Vm], end: float | None) -> None:
        if self._budgets is None or end is None:
            return
        for group, count in self._budgets.groups_of(vms).items():
            for _ in range(count):
                insort(self._places[group], end)

    def _publish(
        self, scopes: Iterable[tuple[str, int]], at: float, calendar: MaintenanceCalendar | None
    ) -> float | None:
        start = self._pace.start_of(calendar, at)
        if start is None:
            self.can_end = False
            return None
        end = start + self._pace.act_s
        for scope_id, domain in scopes:
            self._take(scope_id, domain, at, end)
        self._note(start, end)
        return end

    def _take(self, scope_id: str, domain: int, at: float, end: float) -> None:
        known = self._domains.get(scope_id)
        if known is not None and known[0] == domain:
            at, end = min(known[1], at), max(known[2], end)
        self._domains[scope_id] = domain, at, end

    def _note(self, start: float | None, end: float | None) -> None:
        if start is not None:
            self._starts.add(timestamp(start))
        if end is not None:
            self.ends.append(end)

    def forecast(self, wave: int, state: str, size: int, begins_at: float) -> ForecastWave:
        over_at = max(self.ends) if self.ends and self.can_end else None
        times = WaveTimes(
            begins_at=timestamp(begins_at),
            starts_at=min(self._starts, default=None),
            over_at=timestamp(over_at),
            settled_at=timestamp(over_at + self._rollout.settle_s if over_at is not None else None),
        )
        return ForecastWave(wave=wave, state=state, size=size, times=times, starts=tuple(sorted(self._starts)))


def _known_vms(event: Event | PlannedEvent, covered: Mapping[tuple[str, str], Vm]) -> list[Vm]:
    return [vm for name in event.vms if (vm := covered.get((event.scope_id, name))) is not None]


def _end_of(run: SimulatedRun | None, rollout: Rollout, now: float) -> float | None:
    """Return when the run is over: its last event has ended and the last wave has settled; None: unknown."""
    if run is None or not run.is_over:
        return None
    if run.served_by and run.closed_at is not None:  # events of other rollouts count too
        return run.closed_at
    ends = [event.over_at for event in run.events if event.over_at is not None]
    return max(ends) + rollout.settle_s if ends else now


def _planned_wave(
    rollout: Rollout,
    index: int,
    members: Sequence[Vm],
    earliest: SimulatedRun | None,
    latest: SimulatedRun | None,
    without_handler: Collection[str],
) -> PlannedWave:
    wanted = {(vm.scope_id, vm.name) for vm in members}
    domains: dict[str, set[int]] = {}
    for vm in members:
        domains.setdefault(vm.scope_id, set()).add(vm.update_domain)
    ordered = sorted(members, key=lambda vm: vm.update_domain)
    runs = [_events_of(run, wanted) for run in (earliest, latest)]
    return PlannedWave(
        number=index + 1,
        name=wave_specs(rollout)[index].name,
        size=len(members),
        vms=tuple(vm.name for vm in ordered[:MAX_PLANNED_NAMES]),
        update_domains=max(map(len, domains.values()), default=0),
        starts=tuple(sorted({timestamp(event.started_at) for event in runs[1] if event.started_at is not None})),
        earliest=_wave_times(earliest, runs[0], wanted, rollout.settle_s),
        latest=_wave_times(latest, runs[1], wanted, rollout.settle_s),
        without_handler=tuple(vm.name for vm in ordered if vm.key in without_handler)[:MAX_PLANNED_NAMES],
    )


def _events_of(run: SimulatedRun | None, wanted: Set[tuple[str, str]]) -> list[Event]:
    if run is None:
        return []
    found = [event for event in run.events if any((event.scope_id, name) in wanted for name in event.vms)]
    missing = wanted - {(event.scope_id, name) for event in found for name in event.vms}
    found += [event for event in run.shared_events if any((event.scope_id, name) in missing for name in event.vms)]
    return found


def _wave_times(
    run: SimulatedRun | None, events: Sequence[Event], wanted: Collection[tuple[str, str]], settle_s: float
) -> WaveTimes | None:
    if run is None or not events:
        return None
    starts = [event.started_at for event in events if event.started_at is not None]
    # Where a budget stops the rollout for good, VMs of the wave have no event.
    listed = {(event.scope_id, name) for event in events for name in event.vms}
    is_over = (run.is_over or listed.issuperset(wanted)) and not any(event.is_live for event in events)
    over_at = max((event.over_at for event in events if event.over_at is not None), default=None) if is_over else None
    return WaveTimes(
        begins_at=timestamp(min(event.published_at for event in events)),
        starts_at=timestamp(min(starts, default=None)),
        over_at=timestamp(over_at),
        settled_at=timestamp(over_at + settle_s if over_at is not None else None),
    )


def _sentences(plan: RolloutPlan) -> Iterator[str]:
    waves = [wave for wave in plan.waves if wave.size]
    yield f"{plan.impact.capitalize()} of {counted(plan.vms, 'VM')} in {counted(len(waves), 'wave')}: {plan.target}."
    if plan.hold:
        yield f"All rollouts are on hold ({plan.hold}): the times count from the end of the hold."
    for request_id, vms in plan.shared.items():
        are = "is" if vms == 1 else "are"
        yield f"{counted(vms, 'VM')} {are} shared with rollout {request_id[:8]}, which does the same work."
    if plan.over_earliest is not None:
        yield f"If each event is approved at once, it is over in {duration_text(plan.over_earliest - plan.now)}."
    if plan.over_latest is not None:
        yield f"If nobody approves, it is over in {duration_text(plan.over_latest - plan.now)}."
    if plan.never_started:
        why = f": {plan.reason}" if plan.reason else ""
        yield f"{counted(plan.never_started, 'VM')} would get no event{why}."
    if plan.is_partial:
        yield from _sentences_about_cut(plan)
    if plan.without_handler:
        names = [name for wave in plan.waves for name in wave.without_handler]
        do = "does" if plan.without_handler == 1 else "do"
        named = first_names(names, total=plan.without_handler)
        yield f"{counted(plan.without_handler, 'VM')} {do} not poll for events: {named}."


def _sentences_about_cut(plan: RolloutPlan) -> Iterator[str]:
    if plan.is_estimated:
        yield "It is too large to simulate, so its times are estimated."
    elif not plan.waits_for:
        yield "It is too large to simulate to its end, so later times are missing."
    for wait in plan.waits_for:
        yield f"It would not finish, so later times are missing: {wait}."


def counted(number: int, thing: str) -> str:
    """Return the number with its noun: `1 VM`, `0 VMs`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
