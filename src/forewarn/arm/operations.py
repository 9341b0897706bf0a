"""How far an operation is, as Azure says it: its status, what it waits for, why it failed or was cancelled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from forewarn.console.room import Room
from forewarn.console.showing import Showing, title_of_scope
from forewarn.core.cause import noun
from forewarn.core.event import Act, Ending, Event, Status
from forewarn.core.history import What
from forewarn.core.release import Reason
from forewarn.core.request import Request
from forewarn.core.scope import Scope
from forewarn.protocol.date import http_date, iso_date

IN_PROGRESS = "InProgress"
_STATUS = {
    "waiting": IN_PROGRESS,
    "started": IN_PROGRESS,
    "finished": "Succeeded",
    "failed": "Failed",
    "withdrawn": "Canceled",
}
_ENDED = {Ending.FINISHED: "Completed", Ending.FAILED: "Failed", Ending.WITHDRAWN: "Canceled"}
_NAMED = 20  # VMs that are told one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    request: Request
    state: str  # as `state_of` calls it
    events: list[Event]
    to_come: int  # events that are accepted and not published yet
    skipped: tuple[str, ...]  # why nothing came of it, if so

    @property
    def status(self) -> str:
        return _STATUS[self.state]


def answer_of(room: Room, course: Course) -> dict[str, Any]:
    request = course.request
    answer: dict[str, Any] = {"name": request.id, "status": course.status, "startTime": iso_date(request.at)}
    if course.status != IN_PROGRESS:
        answer["endTime"] = iso_date(max((e.over_at or request.at for e in course.events), default=request.at))
    answer["properties"] = {
        "request": request.ask,
        "requestedBy": request.who,
        "events": Telling(room).events(course.events),
        "toCome": course.to_come,
    }
    if (error := error_of(room, course)) is not None:
        answer["error"] = error
    return answer


def error_of(room: Room, course: Course) -> dict[str, Any] | None:
    """None, unless it failed or was cancelled."""
    if course.state == "failed":
        acts = [act for event in course.events for act in event.failures]
        details = [{"code": "OperationFailed", "target": act.name, "message": _failure(act)} for act in acts]
        return _error("OperationFailed", [*course.skipped, *map(_failure, acts)], details)
    if course.state == "withdrawn":
        gone = list(filter(is_withdrawn, course.events))
        details = [{"code": "OperationCanceled", "target": event.id, "message": event.reason} for event in gone]
        told = [_withdrawal(room, event) for event in gone[:_NAMED]]
        return _error("OperationCanceled", [*told, *(event.reason for event in gone[_NAMED:])], details)
    return None


def is_withdrawn(event: Event) -> bool:
    return event.ending is Ending.WITHDRAWN


def _error(code: str, sentences: list[str], details: list[dict[str, str]]) -> dict[str, Any]:
    more = f"; and {len(sentences) - _NAMED} more" if len(sentences) > _NAMED else ""
    return {"code": code, "message": "; ".join(sentences[:_NAMED]) + more, "details": details}


def _failure(act: Act) -> str:
    note = act.outcome.note if act.outcome else ""
    return f"{noun(act.verb)} of {act.name} failed" + (f": {note}" if note else "")


def _withdrawal(room: Room, event: Event) -> str:
    told = room.store.history(event_id=event.id)
    who = next((entry.who for entry in reversed(told) if entry.what is What.WITHDRAWN), "")
    by = f" by {who}" if who and who not in event.reason else ""
    return f"{event.row.kind} of {_names(event)} was withdrawn{by}: {event.reason}"


def _names(event: Event) -> str:
    return ", ".join(event.vms[:3]) + (f" and {len(event.vms) - 3} more" if len(event.vms) > 3 else "")


def _anyone_of(scope: Scope) -> str:
    title = title_of_scope(scope)
    return title if scope.id.startswith("vm:") else f"any VM of {title}"


class Telling:
    """What the events of an operation are told as, to somebody who may know only some of the fleet."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._showing = Showing(room)
        self._pollers: dict[str, dict[str, str]] = {}  # by scope: names of VMs → when they last asked

    def events(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        return [self._event(event) for event in events]

    def _event(self, event: Event) -> dict[str, Any]:
        told: dict[str, Any] = {
            "eventId": event.id,
            "eventType": event.row.kind if event.listed else None,
            "eventStatus": _ENDED[event.ending] if event.ending else str(event.status).capitalize(),
            "resources": event.vms,
            "notBefore": http_date(event.not_before) if event.status is Status.SCHEDULED else "",
            "notBeforeTime": iso_date(event.not_before),
        }
        if event.note:
            told["note"] = event.note
        if event.approved_by:
            told["approvedBy"] = event.approved_by
        if (wait := self._showing.wait(event)) is not None:
            told["waitsFor"] = wait.text
        if wait is not None and wait.reason is Reason.NOTICE:
            told["approval"] = self._approval(event)
        return told

    def _approval(self, event: Event) -> dict[str, Any]:
        """Who could approve it, and whether anybody knows of it."""
        scope = self._showing.scope_of(event.scope_id)
        given = {sighting.vm for sighting in self._room.store.sightings(event_id=event.id)}
        return {
            "by": _anyone_of(scope) if scope else "nobody",
            "givenTo": self._seen(given),
            "lastPolls": self._polls(event.scope_id),
        }

    def _polls(self, scope_id: str) -> dict[str, str]:
        if scope_id not in self._pollers:
            newest = sorted(self._room.store.polls(scope_id=scope_id), key=lambda polled: -polled.at)
            named = ((self._seen([polled.vm]), polled.at) for polled in newest[:_NAMED])
            self._pollers[scope_id] = {name: iso_date(at) for names, at in named for name in names}
        return self._pollers[scope_id]

    def _seen(self, keys: Iterable[str]) -> list[str]:
        """The names of those that the caller may read."""
        vms = map(self._room.store.vm, sorted(keys))
        return [vm.name for vm in vms if vm is not None and self._room.sees(vm)][:_NAMED]
