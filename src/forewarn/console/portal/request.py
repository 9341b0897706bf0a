"""One request: how far it is, what it waits for, and its events over time."""

from __future__ import annotations

from forewarn.console.body import Strict
from forewarn.console.call import Call
from forewarn.console.maintenance import events_of_request, standing_of
from forewarn.console.portal.course import Course, course_of
from forewarn.console.portal.forms import FORMS
from forewarn.console.portal.page import Table
from forewarn.console.room import Room
from forewarn.console.views import RequestStanding, View
from forewarn.core.event import Status
from forewarn.core.request import Ask

_ENDED = ("finished", "failed", "withdrawn")


class DoneQuery(Strict, frozen=True, kw_only=True):
    done: str = ""  # the form that led here


class RequestPage(View, frozen=True, kw_only=True):
    standing: RequestStanding
    course: Course
    is_rollout: bool
    planned: int  # events that it has still to publish
    over: int  # of its events
    done: str

    @property
    def is_ended(self) -> bool:
        return self.standing.state in _ENDED

    def svg(self) -> str:
        return self.course.svg()

    def table(self) -> Table:
        return self.course.table()


async def show(room: Room, call: Call, query: DoneQuery) -> RequestPage:
    """A request, by its id."""
    await room.house.observe()
    request = room.request(call.names["id"])
    events = events_of_request(room, request)
    return RequestPage(
        standing=standing_of(room, request),
        course=course_of(room, events),
        is_rollout=request.ask is Ask.ROLLOUT,
        planned=len(room.store.planned(request_id=request.id)),
        over=sum(event.status is Status.OVER for event in events),
        done=just_done(query),
    )


def just_done(query: DoneQuery) -> str:
    """What the form that led here has done, in its own words; a link cannot make it say anything else."""
    form = FORMS.get(query.done)
    return form.done if form is not None else ""
