"""The pages of rollouts: the list with progress bars, and one rollout by scope and update domain."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator

from forewarn.control.rollouts import RolloutSnapshot
from forewarn.core.event import Event, EventState
from forewarn.core.request import RolloutState, RolloutTally
from forewarn.core.scope import Scope
from forewarn.portal.export import ExportTable
from forewarn.portal.form_catalog import DoneMessageQuery, done_message
from forewarn.portal.request_page import RequestTimeline, request_timeline
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.request_views import read_rollouts, rollout_fields_from_snapshot
from forewarn.web.view_builder import scope_title, scope_title_from_id
from forewarn.web.views import BaseView, RolloutView

PROGRESS_PARTS = ("done", "failed", "withdrawn", "started", "scheduled", "waiting")
_MAX_SCOPES = 60
_MAX_ROLLOUTS = 200
_CSV_COLUMNS = ("rollout", "impact", "over", "progress", "asked_by", "asked_at", "total", *PROGRESS_PARTS)


class ProgressPart(BaseView, frozen=True, kw_only=True):
    """A piece of the bar that shows how far a rollout is."""

    name: str
    count: int
    since: int  # VMs before it


class RolloutRow(BaseView, frozen=True, kw_only=True):
    rollout: RolloutView
    parts: tuple[ProgressPart, ...]

    @property
    def target_text(self) -> str:
        hosts = self.rollout.hosts
        if not hosts:
            return scope_title_from_id(self.rollout.scope)
        return ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more hosts" if len(hosts) > 3 else "")

    @property
    def progress_text(self) -> str:
        """`12 of 40 done, 4 started, 20 waiting`."""
        tally = self.rollout.tally
        rest = [f"{part.count} {_part_text(part.name, self.rollout)}" for part in self.parts if part.name != "done"]
        return ", ".join([f"{tally.done} of {tally.total} done", *rest])


class RolloutsPage(BaseView, frozen=True, kw_only=True):
    rollouts: tuple[RolloutRow, ...]  # newest first
    sees_all: bool

    def table(self) -> ExportTable:
        return ExportTable(columns=_CSV_COLUMNS, rows=[_csv_row(row) for row in self.rollouts])


class UpdateDomainProgress(BaseView, frozen=True, kw_only=True):
    """An update domain of a scope, as far as the rollout is about it."""

    number: int
    vms: int
    done: int
    state: str  # done, now, next, waiting


class ScopeProgress(BaseView, frozen=True, kw_only=True):
    id: str
    title: str
    domains: tuple[UpdateDomainProgress, ...]


class RolloutPage(BaseView, frozen=True, kw_only=True):
    row: RolloutRow
    scopes: tuple[ScopeProgress, ...]
    more_scopes: int
    course: RequestTimeline
    done: str

    def svg(self) -> str:
        return self.course.svg()

    def table(self) -> ExportTable:
        return self.course.table()


async def show_rollouts_page(context: RequestContext, call: HandlerCall) -> RolloutsPage:
    """The rollouts under way, and the recent ones."""
    if not context.can_see_everything():
        return RolloutsPage(rollouts=(), sees_all=False)
    newest = sorted(read_rollouts(context), key=lambda one: (not one.closed, one.at), reverse=True)
    return RolloutsPage(rollouts=tuple(map(_rollout_row, newest[:_MAX_ROLLOUTS])), sees_all=True)


async def show_rollout_page(context: RequestContext, call: HandlerCall, query: DoneMessageQuery) -> RolloutPage:
    """One rollout, by its id or the beginning of it."""
    await context.dependencies.flush_observations()
    request = context.find_rollout(call.path_params["id"])
    assert request.rollout is not None
    reach = context.control.rollouts.snapshot_of(request, request.rollout)
    await asyncio.sleep(0)  # of a large one all this is much: others get their turn in between
    view = RolloutView(**rollout_fields_from_snapshot(context, request, request.rollout, reach))
    await asyncio.sleep(0)
    scopes = _domains_by_scope(
        reach, is_closed=view.closed, goes_on=view.progress in (RolloutState.RUNNING, RolloutState.PAUSED)
    )
    await asyncio.sleep(0)
    return RolloutPage(
        row=_rollout_row(view),
        scopes=tuple(_scope_progress(context, scopes[:_MAX_SCOPES])),
        more_scopes=max(0, len(scopes) - _MAX_SCOPES),
        course=request_timeline(context, reach.events),
        done=done_message(query),
    )


def _rollout_row(view: RolloutView) -> RolloutRow:
    return RolloutRow(rollout=view, parts=tuple(_progress_parts(view.tally)))


def _progress_parts(tally: RolloutTally) -> Iterator[ProgressPart]:
    since = 0
    for name in PROGRESS_PARTS:
        if count := getattr(tally, name):
            yield ProgressPart(name=name, count=count, since=since)
            since += count


def _part_text(part: str, view: RolloutView) -> str:
    return "never started" if part == "waiting" and view.closed else part


def _domains_by_scope(
    reach: RolloutSnapshot, *, is_closed: bool, goes_on: bool
) -> list[tuple[str, tuple[UpdateDomainProgress, ...]]]:
    """Each scope it is about, with its update domains; those under way first."""
    reached: dict[str, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in reach.events:
        reached[event.scope_id][event.update_domain].append(event)
    listed = {(event.scope_id, name) for event in reach.events for name in event.vms}
    left: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for vm in () if is_closed else reach.vms:
        if (vm.scope_id, vm.name) not in listed:
            left[vm.scope_id][vm.update_domain] += 1
    scopes = [
        (id_, tuple(_domain_progress(reached[id_], left[id_], goes_on=goes_on))) for id_ in sorted({*reached, *left})
    ]
    return sorted(scopes, key=lambda scope: not any(domain.state == "now" for domain in scope[1]))


def _scope_progress(
    context: RequestContext, scopes: Iterable[tuple[str, tuple[UpdateDomainProgress, ...]]]
) -> Iterator[ScopeProgress]:
    for scope_id, domains in scopes:
        scope = context.store.scope(scope_id) or Scope(id=scope_id)
        yield ScopeProgress(id=scope_id, title=scope_title(scope), domains=domains)


def _domain_progress(
    reached: dict[int, list[Event]], left: dict[int, int], *, goes_on: bool
) -> Iterator[UpdateDomainProgress]:
    coming = min((number for number, count in left.items() if count), default=None)
    for number in sorted({*reached, *left}):
        events = reached.get(number, [])
        over = sum(len(event.vms) for event in events if event.status is EventState.OVER)
        if any(event.is_live for event in events):
            state = "now"
        elif not left.get(number):
            state = "done"
        else:
            state = "next" if goes_on and number == coming else "waiting"
        vms = sum(len(event.vms) for event in events) + left.get(number, 0)
        yield UpdateDomainProgress(number=number, vms=vms, done=over, state=state)


def _csv_row(row: RolloutRow) -> list[object]:
    view = row.rollout
    counts = [getattr(view.tally, name) for name in PROGRESS_PARTS]
    return [view.id, view.impact, row.target_text, view.progress, view.who, view.at, view.tally.total, *counts]
