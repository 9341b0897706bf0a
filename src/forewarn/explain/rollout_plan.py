"""The plan of a rollout: its waves, their VMs, and when each begins, ends and settles (spec §13.6).

The earliest times assume that each event is approved when it is published, the latest ones that nobody approves. Both
assume that every act takes its usual time, and that nothing else comes in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.request import Rollout
from forewarn.core.waves import rollout_target_text, wave_specs
from forewarn.core.windows import calendar_text
from forewarn.duration import duration_text
from forewarn.wording import first_names

MAX_PLANNED_NAMES = 1000  # VM names of one wave that a plan lists


class WaveTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When a wave of a rollout begins, ends and has settled, in POSIX seconds of lab time."""

    begins_at: float  # its first event is published
    starts_at: float | None  # its first event starts; None: none does
    over_at: float | None  # its last event is over; None: not within the plan
    settled_at: float | None  # the settling time after that has passed; None: not within the plan


class PlannedWave(msgspec.Struct, frozen=True, kw_only=True):
    """One wave of a planned rollout: its VMs, and when its events are published, start and end."""

    number: int  # from 1
    name: str  # as the rollout names the wave, such as canary
    size: int  # how many VMs it has; 0: it is passed over
    vms: tuple[str, ...]  # their names, at most 1,000, by update domain
    update_domains: int  # how many, in the scope with the most of them: they follow one another
    starts: tuple[float, ...]  # lab times at which its events start if nobody approves, each once, ascending
    earliest: WaveTimes | None = None  # if each event is approved at once; None: not simulated, or it got no event
    latest: WaveTimes | None = None  # if nobody approves; None: not simulated, or it got no event
    without_handler: tuple[str, ...] = ()  # names of its VMs that do not poll for events, at most 1,000


class RolloutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout would do: its waves in order, when it would be over, and a summary in sentences.

    The earliest times assume that each event is approved when it is published, the latest that nobody approves.
    """

    now: float  # lab time of the plan
    target: str  # what it covers, for people
    impact: str  # update, migrate or reboot
    notice_s: float  # the notice of its events, in seconds of lab time
    settle_s: float  # seconds of lab time that must pass after each wave
    windows: str  # when its events may start without an approval, for people; "": at any time
    vms: int  # how many VMs it covers
    waves: tuple[PlannedWave, ...]  # in order, also empty ones
    over_earliest: float | None  # when the last wave has settled; None: not simulated to the end
    over_latest: float | None  # the same if nobody approves; None: not simulated to the end
    is_cut: bool  # the plan does not reach the end: times of later waves are missing
    never_started: int  # VMs that would get no event before it ends, from any rollout; 0 if the plan is cut
    without_handler: int  # how many of its VMs do not poll for events
    sentences: tuple[str, ...]  # the summary for people
    hold: str = ""  # why all rollouts are on hold now, although its times assume that they are not; "": they are not
    waits_for: tuple[str, ...] = ()  # what keeps it from its end, in clauses, such as a budget; () if nothing does
    shared: dict[str, int] = {}  # other rollouts that do the same work, by id, and how many of its VMs they serve
    why: str = ""  # why VMs never start, as a clause; "": not known, or all start


class SimulatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of simulating a request, in general a rollout: its events, and how the simulation ended."""

    events: Sequence[Event]  # of the request alone, oldest first
    is_over: bool  # False: the simulation ended before the request did
    closed_at: float | None = None  # lab time at which a rollout had nothing left to do; None: not reached
    why: str = ""  # why the rollout stopped, such as that no window follows; "": there is nothing to say
    waits_for: tuple[str, ...] = ()  # what it waits for at last, in clauses, such as a budget; () if for nothing
    served_by: Mapping[str, frozenset[tuple[str, str]]] = {}  # other rollout → scope id and name of VMs that it serves


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
) -> RolloutPlan:
    """Return the plan of a rollout from its waves (`divide_into_waves`) and two simulations of it.

    A simulation that was not made is None, and its times are missing. Without `latest`, or if it did not reach the end,
    the plan is cut.
    """
    waves = tuple(
        _planned_wave(rollout, index, members, earliest, latest, without_handler)
        for index, members in enumerate(divided)
    )
    vms = sum(map(len, divided))
    reached = latest is not None and latest.is_over
    unlisted = {(vm.scope_id, vm.name) for wave in divided for vm in wave}
    unlisted -= {(e.scope_id, name) for e in latest.events for name in e.vms} if latest is not None else set()
    served_by = latest.served_by if latest is not None else {}
    shared = {request_id: len(unlisted & vms) for request_id, vms in served_by.items() if unlisted & vms}
    never = len(unlisted.difference(*served_by.values())) if reached else 0
    over_earliest, over_latest = (_end_of(run, rollout, now) for run in (earliest, latest))
    silent = sum(vm.key in without_handler for wave in divided for vm in wave)
    plan = RolloutPlan(
        now=now,
        target=rollout_target_text(rollout),
        impact=rollout.impact,
        notice_s=notice_s,
        settle_s=rollout.settle_s,
        windows=calendar_text(rollout.calendar) if rollout.calendar else "",
        vms=vms,
        waves=waves,
        over_earliest=over_earliest,
        over_latest=over_latest,
        is_cut=not reached,
        never_started=never,
        without_handler=silent,
        sentences=(),
        hold=hold,
        waits_for=latest.waits_for if latest is not None else (),
        shared=shared,
        why=latest.why if latest is not None and never else "",
    )
    return msgspec.structs.replace(plan, sentences=tuple(_sentences(plan)))


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
        starts=tuple(sorted({event.started_at for event in runs[1] if event.started_at is not None})),
        earliest=_wave_times(runs[0], rollout.settle_s),
        latest=_wave_times(runs[1], rollout.settle_s),
        without_handler=tuple(vm.name for vm in ordered if vm.key in without_handler)[:MAX_PLANNED_NAMES],
    )


def _events_of(run: SimulatedRun | None, wanted: Collection[tuple[str, str]]) -> list[Event]:
    if run is None:
        return []
    return [event for event in run.events if any((event.scope_id, name) in wanted for name in event.vms)]


def _wave_times(events: Sequence[Event], settle_s: float) -> WaveTimes | None:
    if not events:
        return None
    starts = [event.started_at for event in events if event.started_at is not None]
    is_over = not any(event.is_live for event in events)
    over_at = max((event.over_at for event in events if event.over_at is not None), default=None) if is_over else None
    return WaveTimes(
        begins_at=min(event.published_at for event in events),
        starts_at=min(starts, default=None),
        over_at=over_at,
        settled_at=over_at + settle_s if over_at is not None else None,
    )


def _sentences(plan: RolloutPlan) -> Iterator[str]:
    waves = [wave for wave in plan.waves if wave.size]
    yield f"{plan.impact.capitalize()} of {_count(plan.vms, 'VM')} in {_count(len(waves), 'wave')}: {plan.target}."
    if plan.hold:
        yield f"All rollouts are on hold ({plan.hold}): the times count from the end of the hold."
    for request_id, vms in plan.shared.items():
        are = "is" if vms == 1 else "are"
        yield f"{_count(vms, 'VM')} {are} shared with rollout {request_id[:8]}, which does the same work."
    if plan.over_earliest is not None:
        yield f"If each event is approved at once, it is over in {duration_text(plan.over_earliest - plan.now)}."
    if plan.over_latest is not None:
        yield f"If nobody approves, it is over in {duration_text(plan.over_latest - plan.now)}."
    if plan.never_started:
        why = f": {plan.why}" if plan.why else ""
        yield f"{_count(plan.never_started, 'VM')} would get no event{why}."
    if plan.is_cut:
        yield from _sentences_about_cut(plan)
    if plan.without_handler:
        names = [name for wave in plan.waves for name in wave.without_handler]
        do = "does" if plan.without_handler == 1 else "do"
        yield f"{_count(plan.without_handler, 'VM')} {do} not poll for events: {first_names(names)}."


def _sentences_about_cut(plan: RolloutPlan) -> Iterator[str]:
    """Yield why a plan does not reach its end: budgets, or its size."""
    if not plan.waits_for:
        yield "It is too large to simulate to its end, so later times are missing."
    for wait in plan.waits_for:
        yield f"It would not finish, so later times are missing: {wait}."


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
