"""The pages of rollouts: the list with progress bars, and one rollout by scope and update domain."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator

from forewarn.control.rollouts import RolloutSnapshot
from forewarn.core.event import Event, EventState
from forewarn.core.request import RolloutState, RolloutTally
from forewarn.core.scope import Scope, scope_title
from forewarn.portal.export import ExportTable
from forewarn.portal.form_catalog import DoneMessageQuery, done_message
from forewarn.portal.request_page import RequestTimeline, request_timeline
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.request_views import read_rollouts, rollout_fields_from_snapshot
from forewarn.web.views import BaseView, RolloutView
from forewarn.wording import first_names

# Parts of a progress bar, in order; also members of RolloutTally and CSV columns.
PROGRESS_PARTS = ("done", "failed", "withdrawn", "not_needed", "started", "scheduled", "waiting")
_MAX_SCOPES = 60
_MAX_ROLLOUTS = 200
_CSV_COLUMNS = ("rollout", "impact", "over", "progress", "asked_by", "asked_at", "total", *PROGRESS_PARTS)


class ProgressPart(BaseView, frozen=True, kw_only=True):
    """One part of a rollout's progress bar, such as the VMs that are done."""

    name: str  # done, failed, withdrawn, not_needed, started, scheduled or waiting
    count: int  # VMs
    since: int  # VMs in the parts before it: where it begins


class RolloutRow(BaseView, frozen=True, kw_only=True):
    """A rollout with its progress bar."""

    rollout: RolloutView
    parts: tuple[ProgressPart, ...]  # in the order of PROGRESS_PARTS, without empty ones

    @property
    def target_text(self) -> str:
        """The title of its scope, or its hosts: up to four names, of more the first three and `and 4 more`."""
        hosts = self.rollout.hosts
        if not hosts:
            return self.rollout.title_of_scope
        return first_names(hosts)

    @property
    def progress_text(self) -> str:
        """Its progress in VMs, such as `12 of 40 done, 4 started, 24 waiting`; parts without VMs are left out.

        Once it is closed, those that still wait are called `never started`.
        """
        tally = self.rollout.tally
        rest = [f"{part.count} {_part_text(part.name, self.rollout)}" for part in self.parts if part.name != "done"]
        return ", ".join([f"{tally.done} of {tally.total} done", *rest])


class RolloutsPage(BaseView, frozen=True, kw_only=True):
    """The list of rollouts. Field names are JSON keys."""

    rollouts: tuple[RolloutRow, ...]  # open ones first, then closed ones, each newest first; at most 200
    sees_all: bool  # whether the user may see everything; if not, the list is empty

    def table(self) -> ExportTable:
        """The CSV export, with one row per rollout of `rollouts`: its target, progress and counts of VMs.

        Also its id, impact, who requested it and when, in lab time as POSIX seconds.
        """
        return ExportTable(columns=_CSV_COLUMNS, rows=[_csv_row(row) for row in self.rollouts])


class UpdateDomainProgress(BaseView, frozen=True, kw_only=True):
    """The progress of a rollout in one update domain of a scope."""

    number: int  # of the update domain
    vms: int  # that the rollout affects
    done: int  # VMs whose event is over, however it ended
    state: str  # now: it has live events; next: comes next; waiting: comes later, or never if the rollout ended; done


class ScopeProgress(BaseView, frozen=True, kw_only=True):
    """The progress of a rollout in one scope, by update domain."""

    id: str  # of the scope
    title: str
    domains: tuple[UpdateDomainProgress, ...]  # by number


class RolloutPage(BaseView, frozen=True, kw_only=True):
    """The page of one rollout. Field names are JSON keys."""

    row: RolloutRow
    scopes: tuple[ScopeProgress, ...]  # those with live events first, else by id; at most 60
    more_scopes: int  # scopes that are left out
    course: RequestTimeline  # its events over time
    done: str  # the done message of the form that led here; "": none

    def svg(self) -> str:
        """The text of the SVG export: the rollout's events (`course`) over time, at most 100 of them."""
        return self.course.svg()

    def table(self) -> ExportTable:
        """The CSV export, with one row per event of `course`, at most 100; times are lab time in ISO 8601."""
        return self.course.table()


async def show_rollouts_page(context: RequestContext, call: HandlerCall) -> RolloutsPage:
    """Shows all open rollouts and then recent ones, each newest first, at most 200 together.

    Shows none to users who may not see everything.
    """
    if not context.can_see_everything():
        return RolloutsPage(rollouts=(), sees_all=False)
    newest = sorted(read_rollouts(context), key=lambda rollout: (not rollout.closed, rollout.at), reverse=True)
    return RolloutsPage(rollouts=tuple(map(_rollout_row, newest[:_MAX_ROLLOUTS])), sees_all=True)


async def show_rollout_page(context: RequestContext, call: HandlerCall, query: DoneMessageQuery) -> RolloutPage:
    """Shows one rollout, by its id or a unique prefix: its progress by scope, and its events over time.

    First stores the polls and deliveries observed so far. Raises NotFound, also for users who may not see everything,
    and Refused if several match.
    """
    await context.dependencies.flush_observations()
    request = context.find_rollout(call.path_params["id"])
    assert request.rollout is not None
    snapshot = context.control.rollouts.snapshot_of(request, request.rollout)
    await asyncio.sleep(0)  # each step of a large rollout takes a while: lets other tasks run in between
    view = RolloutView(**rollout_fields_from_snapshot(context, request, request.rollout, snapshot))
    await asyncio.sleep(0)
    scopes = _domains_by_scope(
        snapshot, is_closed=view.closed, is_open=view.progress in (RolloutState.RUNNING, RolloutState.PAUSED)
    )
    await asyncio.sleep(0)
    return RolloutPage(
        row=_rollout_row(view),
        scopes=tuple(_scope_progress(context, scopes[:_MAX_SCOPES])),
        more_scopes=max(0, len(scopes) - _MAX_SCOPES),
        course=request_timeline(context, snapshot.events),
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
    return "never started" if part == "waiting" and view.closed else part.replace("_", " ")


def _domains_by_scope(
    snapshot: RolloutSnapshot, *, is_closed: bool, is_open: bool
) -> list[tuple[str, tuple[UpdateDomainProgress, ...]]]:
    """The scopes of a rollout by id, with their update domains; scopes with live events first."""
    events_by_domain: dict[str, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in snapshot.events:
        events_by_domain[event.scope_id][event.update_domain].append(event)
    scheduled_vms = {(event.scope_id, name) for event in snapshot.events for name in event.vms}
    waiting_by_domain: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for vm in () if is_closed else snapshot.vms:
        if (vm.scope_id, vm.name) not in scheduled_vms:
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
        yield ScopeProgress(id=scope_id, title=scope_title(scope), domains=domains)


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
    return [view.id, view.impact, row.target_text, view.progress, view.who, view.at, view.tally.total, *counts]
