"""The overview, the first page: what needs a person, what happens next and now, and the whole fleet.

It shows the first few of each; links lead to the pages with everything. Indexes in memory have the counts; the store
is read for what is shown and for deliveries of scheduled events, so its reads do not grow with the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate, islice

from forewarn.base.times import Timestamp, timestamp
from forewarn.base.wording import scope_name_from_id
from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.core.explain.explanation import event_kind_text, join_names
from forewarn.core.request import RolloutTally
from forewarn.core.waves import rollout_target_text
from forewarn.protocol.dates import iso_date
from forewarn.web.portal.attention import (
    AttentionItem,
    find_attention,
    next_attention_change,
    runs_platform,
)
from forewarn.web.portal.context import PortalContext
from forewarn.web.portal.filters import require_choice
from forewarn.web.portal.heat_map import HeatMap, heat_map
from forewarn.web.portal.notice_chart import CHART_SPANS, NoticeChart, notice_chart
from forewarn.web.portal.request_page import request_page_path
from forewarn.web.portal.rollout_index import RolloutTracker
from forewarn.web.portal.rollout_pages import PROGRESS_PARTS, ProgressPart
from forewarn.web.portal.status_card import may_approve_event
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import BaseView, ViewBuilder

MAX_EVENTS = 6  # of each list
_MAX_PER_REQUEST = 3  # events of one request in the list of the next ones
_MAX_EVENTS_SEARCHED = 2_000  # for those of other requests
_MAX_ROLLOUTS = 5


class OverviewQuery(StrictBody, frozen=True, kw_only=True):
    """The query of the overview page: the span of time of its charts."""

    span: str = ""  # of the charts: 1h, 6h, 1d or 7d; "": a suitable one


class UpcomingEvent(BaseView, frozen=True, kw_only=True):
    """A scheduled event on the overview: when it starts, what it waits for, and what the user may do."""

    id: str  # a GUID, upper case
    label: str  # such as `Reboot of web-0`
    scope: str  # its id
    scope_name: str  # such as `web` or `workers/pg-0`
    cause: str  # a value of Cause
    is_approved: bool  # by a VM, a user or policy
    not_before: Timestamp
    waits_for: str  # in words; "": nothing, it starts now
    request_id: str  # of its request, or the id of the fault that made it
    more: int  # events of the same request among the next 2,000 that are left out after this one
    more_path: str  # where they are listed; "": there are none, or the user may not see it
    may_approve: bool  # it awaits approval, and the user has the right
    may_withdraw: bool  # the user has the right


class CurrentEvent(BaseView, frozen=True, kw_only=True):
    """A started event on the overview, with the progress of its acts."""

    id: str  # a GUID, upper case
    label: str  # such as `Reboot of web-0`
    scope: str  # its id
    scope_name: str  # such as `web` or `workers/pg-0`
    cause: str  # a value of Cause
    started_at: Timestamp
    vms: int  # how many acts it has, one per VM
    done: int  # acts that ended, in success or failure
    failed: int  # acts that failed
    more: int  # events of the same request among the first 2,000 that are left out after this one
    more_path: str  # where they are listed; "": there are none, or the user may not see it


class CurrentRollout(BaseView, frozen=True, kw_only=True):
    """An open rollout on the overview, with its progress and estimated end."""

    id: str  # the id of its request
    impact: str  # update, migrate or reboot
    target: str  # what it covers, in words
    progress: str  # a RolloutState; of an open rollout mostly running or paused
    requested_by: str  # the name of who requested it
    tally: RolloutTally  # its VMs by what happened to them
    ends_at: Timestamp | None  # when it probably ends; None: paused, on hold, or it cannot be known
    is_at_pace: bool  # `ends_at` assumes the pace of its events so far; false: that nobody approves

    @property
    def parts(self) -> tuple[ProgressPart, ...]:
        """The parts of the rollout's progress bar, in the order of PROGRESS_PARTS, without empty ones."""
        counts = [(name, getattr(self.tally, name)) for name in PROGRESS_PARTS]
        starts = accumulate((count for _, count in counts), initial=0)
        return tuple(
            ProgressPart(name=name, count=count, since=since)
            for (name, count), since in zip(counts, starts, strict=False)
            if count
        )

    @property
    def progress_text(self) -> str:
        """The rollout's progress in VMs, such as `12 of 40 done, 4 started, 24 waiting`, without empty parts."""
        rest = [f"{part.count} {part.name.replace('_', ' ')}" for part in self.parts if part.name != "done"]
        return ", ".join([f"{self.tally.done} of {self.tally.total} done", *rest])


class OverviewPage(BaseView, frozen=True, kw_only=True):
    """The overview page as one user sees it. Field names are JSON keys."""

    now: Timestamp
    is_lab: bool  # whether the clock can be changed
    speed: float  # lab seconds per real second
    counts: dict[str, int]  # of the VMs that the user may see, by VmState without gone, 0 included
    total: int  # VMs that the user may see
    attention: tuple[AttentionItem, ...]  # urgent ones first
    attention_changes_at: Timestamp | None  # when the next event may begin to need an approval; None: none
    scheduled: int  # events that the user may see
    upcoming: tuple[UpcomingEvent, ...]  # the soonest of them, at most six, and at most three of one request
    started: int  # events that the user may see
    current: tuple[CurrentEvent, ...]  # the first that started, likewise
    sees_rollouts: bool  # the user may; else `rollouts` is ()
    rollouts: tuple[CurrentRollout, ...]  # open ones, newest first, at most five
    more_rollouts: int  # that are left out
    fleet: HeatMap  # the states of the VMs that the user may see
    notice: NoticeChart  # the notice that visible events got, and why they started, over time
    may_operate: bool  # the user has the right to operate some VM
    may_run_platform: bool  # the user has the platform right over everything

    @property
    def next_start(self) -> str | None:
        """The first NotBefore after now in `upcoming`, as `2026-01-05T12:00:00` in UTC; None if there is none."""
        ahead = (event.not_before for event in self.upcoming if event.not_before > self.now)
        return next((iso_date(at).removesuffix("Z") for at in ahead), None)

    @property
    def urgent(self) -> int:
        """How many of the items of `attention` are urgent."""
        return sum(item.is_urgent for item in self.attention)

    @property
    def calm_text(self) -> str:
        """The text of the page if `attention` is empty: how many VMs run, and that events are delivered."""
        if not self.total:
            return "There are no VMs that you can see."
        others = {state: count for state, count in self.counts.items() if count and state != "running"}
        vms = "The VM is" if self.total == 1 else f"All {self.total} VMs are"
        fleet = f"{vms} running." if not others else f"{self.counts['running']} of {self.total} VMs are running."
        if not self.scheduled:
            return f"{fleet} No event is scheduled."
        return f"{fleet} Every scheduled event was delivered to a VM of its scope, or will be at its next poll."


async def show_overview_page(context: PortalContext, call: HandlerCall, query: OverviewQuery) -> OverviewPage:
    """Show what needs a person, what happens next and now, rollouts, the fleet as a heat map, and notice."""
    require_choice("span", query.span, {span: span for span in CHART_SPANS}, "a span of the charts")
    await context.events.ensure_built()
    attention = await find_attention(context)
    # No await from here on: the index must not change while it is read.
    now, speed, is_lab = context.control.lab_clock.status()
    counts = context.overview.count_states(context.directory)
    events, scopes = context.events, context.visible_scopes()
    views = ViewBuilder(context)
    trackers = events.rollouts.open_rollouts() if context.can_see_everything() else []
    return OverviewPage(
        now=timestamp(now),
        is_lab=is_lab,
        speed=speed,
        counts={str(state): count for state, count in counts.items()},
        total=sum(counts.values()),
        attention=attention,
        attention_changes_at=timestamp(next_attention_change(context)),
        scheduled=events.count_scheduled(scopes),
        upcoming=tuple(
            _upcoming_event(context, views, event, more) for event, more in _first_events(events.scheduled(scopes))
        ),
        started=events.count_started(scopes),
        current=tuple(_current_event(context, event, more) for event, more in _first_events(events.started(scopes))),
        sees_rollouts=context.can_see_everything(),
        rollouts=tuple(_current_rollout(context, tracker) for tracker in trackers[: -_MAX_ROLLOUTS - 1 : -1]),
        more_rollouts=max(0, len(trackers) - _MAX_ROLLOUTS),
        fleet=heat_map(context),
        notice=notice_chart(events.notice, now, query.span, None if scopes is None else scopes.has),
        may_operate=context.principal.may_anywhere(Right.OPERATE),
        may_run_platform=runs_platform(context),
    )


def _first_events(events: Iterable[Event]) -> list[tuple[Event, int]]:
    """The first of these events, at most three of one request, so that a large rollout does not hide the others."""
    chosen: list[Event] = []
    by_request: Counter[str] = Counter()
    for event in islice(events, _MAX_EVENTS_SEARCHED):
        by_request[event.request_id] += 1
        if by_request[event.request_id] <= _MAX_PER_REQUEST and len(chosen) < MAX_EVENTS:
            chosen.append(event)
    by_request.subtract(event.request_id for event in chosen)
    last_of_request = {event.request_id: event.id for event in chosen}
    return [
        (event, by_request[event.request_id] if last_of_request[event.request_id] == event.id else 0)
        for event in chosen
    ]


def _upcoming_event(context: PortalContext, views: ViewBuilder, event: Event, more: int) -> UpcomingEvent:
    wait = views.pending_wait(event)
    return UpcomingEvent(
        id=event.id,
        label=_label(event, event.vms),
        scope=event.scope_id,
        scope_name=scope_name_from_id(event.scope_id),
        cause=event.cause,
        is_approved=event.approved_at is not None,
        not_before=timestamp(event.not_before),
        waits_for=wait.text if wait is not None else "",
        request_id=event.request_id,
        more=more,
        more_path=request_page_path(context, event.request_id) if more else "",
        may_approve=may_approve_event(context, event),
        may_withdraw=event.status is EventState.SCHEDULED and runs_platform(context),
    )


def _current_event(context: PortalContext, event: Event, more: int) -> CurrentEvent:
    assert event.started_at is not None
    return CurrentEvent(
        id=event.id,
        label=_label(event, event.vms),
        scope=event.scope_id,
        scope_name=scope_name_from_id(event.scope_id),
        cause=event.cause,
        started_at=timestamp(event.started_at),
        vms=len(event.acts),
        done=len(event.acts) - len(event.unfinished_acts),
        failed=len(event.failed_acts),
        more=more,
        more_path=request_page_path(context, event.request_id) if more else "",
    )


def _label(event: Event, vms: Iterable[str]) -> str:
    return f"{event_kind_text(event)} of {join_names(list(vms))}"


def _current_rollout(context: PortalContext, tracker: RolloutTracker) -> CurrentRollout:
    rollout = tracker.rollout
    forecast = context.control.rollouts.forecast_of(tracker.request, rollout)
    return CurrentRollout(
        id=tracker.request.id,
        impact=rollout.impact,
        target=rollout_target_text(rollout),
        progress=rollout.progress,
        requested_by=tracker.request.requested_by,
        tally=tracker.tally,
        ends_at=timestamp(forecast.ends_at),
        is_at_pace=forecast.is_measured,
    )
