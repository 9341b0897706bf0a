"""The events of one request over time, as its page draws and lists them."""

from __future__ import annotations

from collections.abc import Sequence

from forewarn.console.call import Call
from forewarn.console.over import named_event
from forewarn.console.portal.axis import Window, iso
from forewarn.console.portal.drawing import Chart, chart_of
from forewarn.console.portal.lane import Lane
from forewarn.console.portal.page import Table
from forewarn.console.portal.timeline import drawn_alone, lane_for
from forewarn.console.room import Room
from forewarn.console.showing import Showing
from forewarn.console.views import View
from forewarn.core.access import Right
from forewarn.core.event import Event, Status

_MOST = 100  # events drawn and listed
_MARGIN = 0.06
_SHORTEST_S = 60.0
_COLUMNS = (
    "event",
    "kind",
    "scope",
    "vms",
    "state",
    "published_at",
    "not_before",
    "started_at",
    "over_at",
    "waits_for",
)


class Course(View, frozen=True, kw_only=True):
    now: float
    lanes: tuple[Lane, ...]  # what is under way first, then the newest
    more: int
    approvable: tuple[str, ...]  # ids of those that the visitor may approve

    def chart(self) -> Chart:
        return chart_of(self.lanes, self._window, self.now)

    def svg(self) -> str:
        return drawn_alone(self.chart(), more=self.more)

    def table(self) -> Table:
        return Table(columns=_COLUMNS, rows=[_row(lane) for lane in self.lanes])

    @property
    def _window(self) -> Window:
        since = min((lane.published_at for lane in self.lanes), default=self.now)
        until = max((max(lane.ends_at(self.now), lane.not_before) for lane in self.lanes), default=self.now)
        margin = max((until - since) * _MARGIN, _SHORTEST_S / 2)
        return Window(since=since - margin, until=until + margin)


def course_of(room: Room, events: Sequence[Event]) -> Course:
    seen = [event for event in events if room.sees_scope(event.scope_id)]
    ordered = sorted(seen, key=lambda event: (event.is_live, event.published_at, event.seq), reverse=True)
    showing = Showing(room)
    shown = ordered[:_MOST]
    return Course(
        now=room.now(),
        lanes=tuple(lane_for(showing, event) for event in shown),
        more=len(ordered) - len(shown),
        approvable=tuple(event.id for event in shown if _may_approve(room, event)),
    )


def _may_approve(room: Room, event: Event) -> bool:
    if event.status is not Status.SCHEDULED or event.approved_at is not None:
        return False
    return room.principal.may_all(Right.APPROVE, named_event(room, Call(names={"id": event.id})))


def _row(lane: Lane) -> list[object]:
    instants = (lane.published_at, lane.not_before, lane.started_at, lane.over_at)
    told = [None if at is None else iso(at) for at in instants]
    return [lane.id, lane.kind, lane.scope, " ".join(lane.vms), lane.state, *told, lane.waits_for]
