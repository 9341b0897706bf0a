"""The pages of rollouts: the list with progress bars, and one rollout by batch and update domain.

A batch has the events that were published together.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from forewarn.base.times import LabSeconds, Timestamp, timestamp
from forewarn.base.wording import first_names, scope_name_from_id
from forewarn.control.rollouts import RolloutSnapshot
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.request import MaintenanceRequest, RolloutState, RolloutTally
from forewarn.core.scope import Scope, scope_name
from forewarn.errors import Rejected
from forewarn.web.context import RequestContext
from forewarn.web.portal.export import ExportTable
from forewarn.web.portal.filters import FilterChoice, UnknownFilter, items_on_page
from forewarn.web.portal.form_catalog import done_message
from forewarn.web.portal.request_page import (
    EVENTS_PER_PAGE,
    MAX_EXPORTED_EVENTS,
    RequestPageQuery,
    RequestTimeline,
    request_timeline,
)
from forewarn.web.portal.states import state_label
from forewarn.web.portal.status_card import EventStatusCard, next_event_card
from forewarn.web.portal.wave_diagram import WaveDiagram, diagram_of_rollout
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.requests import RolloutView, read_rollouts, rollout_fields_from_snapshot
from forewarn.web.views import BaseView

_MAX_MEASUREMENTS = 500  # of all checks of a rollout that are read
_MAX_RECENT = 10  # of one check that are shown


class RecentMeasurement(BaseView, frozen=True, kw_only=True):
    """One of the latest measurements of a health check of a rollout. Field names are JSON keys."""

    at: Timestamp
    outcome: str  # good, bad, unclear or error
    text: str  # what was seen, for people


class RolloutCheckRow(BaseView, frozen=True, kw_only=True):
    """A health check of a rollout with its latest measurements. Field names are JSON keys."""

    name: str  # unique in the rollout
    demand: str  # what it demands, for people
    recent: tuple[RecentMeasurement, ...]  # at most ten, the newest first; (): not measured recently


def rollout_check_rows(context: RequestContext, request: MaintenanceRequest) -> tuple[RolloutCheckRow, ...]:
    if request.rollout is None or not request.rollout.checks:
        return ()
    newest_first = context.store.measurements(request.id, limit=_MAX_MEASUREMENTS)[::-1]
    return tuple(
        RolloutCheckRow(
            name=check.name,
            demand=check.what,
            recent=tuple(
                RecentMeasurement(at=timestamp(found.at), outcome=found.outcome, text=found.text)
                for found in [found for found in newest_first if found.check == check.name][:_MAX_RECENT]
            ),
        )
        for check in request.rollout.checks
    )


# Parts of a progress bar, in order; also members of RolloutTally and CSV columns.
PROGRESS_PARTS = ("done", "failed", "withdrawn", "not_needed", "started", "scheduled", "waiting")
_SAME_BATCH_S: LabSeconds = 5.0  # between two publications of one batch, at most
_MAX_SCOPES = 60
_MAX_ROLLOUTS = 200
_BATCHES_PER_PAGE = 20
_OPEN_STATES = (RolloutState.RUNNING, RolloutState.PAUSED)
_CSV_COLUMNS = ("rollout", "impact", "over", "progress", "requested_by", "requested_at", "total", *PROGRESS_PARTS)


class ProgressPart(BaseView, frozen=True, kw_only=True):
    """One part of a rollout's progress bar, such as the VMs that are done. Field names are JSON keys."""

    name: str  # done, failed, withdrawn, not_needed, started, scheduled or waiting
    count: int  # VMs
    since: int  # how many VMs are in the parts before it, so where it begins

    @property
    def is_drawn(self) -> bool:
        """Whether this part fills the bar: false for scheduled and waiting VMs, true for all others."""
        return self.name not in ("scheduled", "waiting")


class RolloutRow(BaseView, frozen=True, kw_only=True):
    """A rollout with its progress bar. Field names are JSON keys."""

    rollout: RolloutView
    parts: tuple[ProgressPart, ...]  # in the order of PROGRESS_PARTS, without empty ones

    @property
    def target_text(self) -> str:
        """What the rollout covers: names of hosts, or words."""
        hosts = self.rollout.hosts
        if not hosts:
            return scope_name_from_id(self.rollout.scope) if self.rollout.scope else self.rollout.scope_title
        return first_names(hosts)

    @property
    def progress_text(self) -> str:
        """The rollout's progress in VMs, such as `12 of 40 done, 4 started, 24 waiting`, without empty parts."""
        tally = self.rollout.tally
        rest = [f"{part.count} {_part_text(part.name, self.rollout)}" for part in self.parts if part.name != "done"]
        return ", ".join([f"{tally.done} of {tally.total} done", *rest])


class RolloutsPage(BaseView, frozen=True, kw_only=True):
    """The list of rollouts. Field names are JSON keys."""

    rollouts: tuple[RolloutRow, ...]  # open ones first, then closed ones, each newest first; at most 200
    sees_all: bool  # whether the user may see everything; if not, the list is empty

    def table(self) -> ExportTable:
        """Return the CSV export: one row per rollout of `rollouts`."""
        return ExportTable(columns=_CSV_COLUMNS, rows=[_csv_row(row) for row in self.rollouts])


class UpdateDomainProgress(BaseView, frozen=True, kw_only=True):
    """The progress of a rollout in one update domain of a scope. Field names are JSON keys."""

    number: int  # the number of the update domain
    vms: int  # that the rollout affects
    done: int  # VMs whose event is over, however it ended, unless a health check withdrew it
    state: str  # now: it has live events; next: comes next; waiting: comes later, or never if the rollout ended; done


class ScopeProgress(BaseView, frozen=True, kw_only=True):
    """The progress of a rollout in one scope, by update domain. Field names are JSON keys."""

    id: str  # the id of the scope
    title: str  # such as `web` or `workers/pg-0`
    domains: tuple[UpdateDomainProgress, ...]  # sorted by number


class RolloutBatchView(BaseView, frozen=True, kw_only=True):
    """A batch of a rollout: events that were published together, each at most 5 s after the one before.

    Field names are JSON keys; times are lab time.
    """

    number: int  # from 1, in order of publication
    state: str  # now: it has live events; withdrawn: all events were, before they started; done: all are over
    update_domains: tuple[int, ...]  # of its VMs, each once, ascending
    vms: int  # how many VMs its events affect
    done: int  # VMs whose event is over, even if it failed, and was not withdrawn
    failed: int  # VMs whose event failed
    published_at: Timestamp
    next_start: Timestamp | None  # the earliest NotBefore of its scheduled events; None: it has none
    over_at: Timestamp | None  # when its last event was over; None: some are live


class WaitingDomain(BaseView, frozen=True, kw_only=True):
    """The VMs of a rollout in one update domain that have no event yet, or need a new one."""

    # The update domains of this number of all scopes are taken together.

    number: int  # the number of the update domain
    vms: int  # how many VMs wait


class RolloutPageQuery(RequestPageQuery, frozen=True, kw_only=True):
    """The query of the page of a rollout: the form that led here, the batch, and which page of its events.

    A batch is the events that were published together.
    """

    batch: Annotated[int, Meta(ge=0, le=1_000_000)] = 0  # of a batch, from 1; 0: the first live one, else the last


class RolloutPage(BaseView, frozen=True, kw_only=True):
    """The page of one rollout. Field names are JSON keys."""

    row: RolloutRow  # the rollout with its progress bar
    card: EventStatusCard | None  # the live event that matters next; None: there is none
    batches: tuple[RolloutBatchView, ...]  # batches published so far; 20 around the chosen one, in an export all
    batch_count: int  # how many batches were published
    batch: int  # number of the batch whose events are listed; 0: there is none
    waiting: tuple[WaitingDomain, ...]  # VMs of later batches, by update domain; () unless it is running or paused
    scopes: tuple[ScopeProgress, ...]  # those with live events first, else by id; at most 60
    more_scopes: int  # scopes that are left out
    diagram: WaveDiagram | None  # its waves over time, and a calendar; None: it has one wave that does not settle
    course: RequestTimeline  # events of the chosen batch, 15 per page; an export has 100, by default of all batches
    checks: tuple[RolloutCheckRow, ...]  # its health checks; (): none
    done: str  # the done message of the form that led here; "": none

    def svg(self) -> str:
        """Return the text of the SVG export: the rollout's events (`course`) over time, at most 100 of them."""
        return self.course.svg()

    def table(self) -> ExportTable:
        """Return the CSV export: one row per event of `course`, at most 100."""
        return self.course.table()


async def show_rollouts_page(context: RequestContext, call: HandlerCall) -> RolloutsPage:
    """Show all open rollouts and then recent ones, each newest first, at most 200 together."""
    if not context.can_see_everything():
        return RolloutsPage(rollouts=(), sees_all=False)
    newest = sorted(
        read_rollouts(context), key=lambda rollout: (not rollout.closed, rollout.requested_at), reverse=True
    )
    return RolloutsPage(rollouts=tuple(map(_rollout_row, newest[:_MAX_ROLLOUTS])), sees_all=True)


async def show_rollout_page(context: RequestContext, call: HandlerCall, query: RolloutPageQuery) -> RolloutPage:
    """Show one rollout: its batches and waves, its scopes, its health checks, and the events of a batch."""
    await context.dependencies.flush_observations()
    request = context.find_rollout(call.path_params["id"])
    assert request.rollout is not None
    snapshot = context.control.rollouts.snapshot_of(request, request.rollout)
    await asyncio.sleep(0)  # each step of a large rollout takes a while: lets other tasks run in between
    forecast = context.control.rollouts.forecast_of(request, request.rollout, snapshot)
    await asyncio.sleep(0)
    view = RolloutView(**rollout_fields_from_snapshot(context, request, request.rollout, snapshot, forecast))
    await asyncio.sleep(0)
    scopes = _domains_by_scope(snapshot, is_closed=view.closed, is_open=view.progress in _OPEN_STATES)
    await asyncio.sleep(0)
    batches = _events_by_batch(snapshot.events)
    batch = _chosen_batch(batches, query.batch)
    shown_batches = range(1, len(batches) + 1) if call.for_export else _batches_around(len(batches), batch)
    is_whole = call.for_export and not query.batch
    return RolloutPage(
        row=_rollout_row(view),
        card=next_event_card(context, snapshot.events),
        batches=tuple(_batch_view(number, batches[number - 1]) for number in shown_batches),
        batch_count=len(batches),
        batch=batch,
        waiting=_waiting_domains(snapshot) if view.progress in _OPEN_STATES else (),
        scopes=tuple(_scope_progress(context, scopes[:_MAX_SCOPES])),
        more_scopes=max(0, len(scopes) - _MAX_SCOPES),
        diagram=diagram_of_rollout(request.rollout, forecast, context.now()),
        course=request_timeline(
            context,
            snapshot.events if is_whole else batches[batch - 1] if batch else (),
            page=query.page,
            size=MAX_EXPORTED_EVENTS if call.for_export else EVENTS_PER_PAGE,
        ),
        checks=rollout_check_rows(context, request),
        done=done_message(query),
    )


def _events_by_batch(events: Sequence[Event]) -> list[list[Event]]:
    batches: list[list[Event]] = []
    for event in sorted(events, key=lambda event: event.published_at):
        if not batches or event.published_at - batches[-1][-1].published_at > _SAME_BATCH_S:
            batches.append([])
        batches[-1].append(event)
    return batches


def _chosen_batch(batches: Sequence[Sequence[Event]], number: int) -> int:
    if number > len(batches):
        reason = Rejected(f"batch {number} does not exist: the last one published so far is {len(batches)}")
        last = FilterChoice(value=str(len(batches)), label=f"batch {len(batches)}")
        raise UnknownFilter("batch", str(number), reason, [last] if batches else [])
    if number:
        return number
    return next((n for n, events in enumerate(batches, 1) if any(event.is_live for event in events)), len(batches))


def _batches_around(count: int, chosen: int) -> range:
    page = (max(1, chosen) - 1) // _BATCHES_PER_PAGE + 1
    shown, _ = items_on_page(range(1, count + 1), page, _BATCHES_PER_PAGE)
    assert isinstance(shown, range)
    return shown


def _batch_view(number: int, events: Sequence[Event]) -> RolloutBatchView:
    is_live = any(event.is_live for event in events)
    return RolloutBatchView(
        number=number,
        state="now" if is_live else "withdrawn" if all(map(_is_withdrawn, events)) else "done",
        update_domains=tuple(sorted({event.update_domain for event in events})),
        vms=sum(len(event.vms) for event in events),
        done=sum(len(event.vms) for event in events if not event.is_live and not _is_withdrawn(event)),
        failed=sum(len(event.vms) for event in events if event.ending is Ending.FAILED),
        published_at=timestamp(events[0].published_at),
        next_start=timestamp(
            min((event.not_before for event in events if event.status is EventState.SCHEDULED), default=None)
        ),
        over_at=timestamp(None if is_live else max(event.over_at or 0.0 for event in events)),
    )


def _is_withdrawn(event: Event) -> bool:
    return event.ending is Ending.WITHDRAWN


def _waiting_domains(snapshot: RolloutSnapshot) -> tuple[WaitingDomain, ...]:
    counts = Counter(vm.update_domain for vm in _unscheduled_vms(snapshot))
    return tuple(WaitingDomain(number=number, vms=counts[number]) for number in sorted(counts))


def _unscheduled_vms(snapshot: RolloutSnapshot) -> Iterator[Vm]:
    """The VMs that no event of the rollout has listed yet, or whose event a health check withdrew."""
    scheduled = {(event.scope_id, name) for event in _lasting_events(snapshot) for name in event.vms}
    return (vm for vm in snapshot.vms if (vm.scope_id, vm.name) not in scheduled)


def _lasting_events(snapshot: RolloutSnapshot) -> Iterator[Event]:
    """The events of the rollout without those that a health check withdrew, whose VMs get new ones."""
    return (event for event in snapshot.events if not event.is_postponed)


def _rollout_row(view: RolloutView) -> RolloutRow:
    return RolloutRow(rollout=view, parts=tuple(_progress_parts(view.tally)))


def _progress_parts(tally: RolloutTally) -> Iterator[ProgressPart]:
    since = 0
    for name in PROGRESS_PARTS:
        if count := getattr(tally, name):
            yield ProgressPart(name=name, count=count, since=since)
            since += count


def _part_text(part: str, view: RolloutView) -> str:
    return "never started" if part == "waiting" and view.closed else state_label(part, "progress")


def _domains_by_scope(
    snapshot: RolloutSnapshot, *, is_closed: bool, is_open: bool
) -> list[tuple[str, tuple[UpdateDomainProgress, ...]]]:
    """The scopes of a rollout by id, with their update domains; scopes with live events first."""
    events_by_domain: dict[str, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in _lasting_events(snapshot):
        events_by_domain[event.scope_id][event.update_domain].append(event)
    waiting_by_domain: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for vm in () if is_closed else _unscheduled_vms(snapshot):
        waiting_by_domain[vm.scope_id][vm.update_domain] += 1
    scopes = [
        (scope_id, tuple(_domain_progress(events_by_domain[scope_id], waiting_by_domain[scope_id], is_open=is_open)))
        for scope_id in sorted({*events_by_domain, *waiting_by_domain})
    ]
    return sorted(scopes, key=lambda scope: not any(domain.state == "now" for domain in scope[1]))


def _scope_progress(
    context: RequestContext, scopes: Iterable[tuple[str, tuple[UpdateDomainProgress, ...]]]
) -> Iterator[ScopeProgress]:
    for scope_id, domains in scopes:
        scope = context.store.scope(scope_id) or Scope(id=scope_id)
        yield ScopeProgress(id=scope_id, title=scope_name(scope), domains=domains)


def _domain_progress(
    events_by_domain: dict[int, list[Event]], waiting_by_domain: dict[int, int], *, is_open: bool
) -> Iterator[UpdateDomainProgress]:
    next_domain = min((number for number, count in waiting_by_domain.items() if count), default=None)
    for number in sorted({*events_by_domain, *waiting_by_domain}):
        events = events_by_domain.get(number, [])
        done = sum(len(event.vms) for event in events if event.status is EventState.OVER)
        if any(event.is_live for event in events):
            state = "now"
        elif not waiting_by_domain.get(number):
            state = "done"
        else:
            state = "next" if is_open and number == next_domain else "waiting"
        vms = sum(len(event.vms) for event in events) + waiting_by_domain.get(number, 0)
        yield UpdateDomainProgress(number=number, vms=vms, done=done, state=state)


def _csv_row(row: RolloutRow) -> list[object]:
    view = row.rollout
    counts = [getattr(view.tally, name) for name in PROGRESS_PARTS]
    return [
        view.id,
        view.impact,
        row.target_text,
        view.progress,
        view.requested_by,
        view.requested_at,
        view.tally.total,
        *counts,
    ]
