"""Which events a timeline is about. However many there are altogether, a bounded number is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from forewarn.console.body import Strict
from forewarn.console.event import lists
from forewarn.console.portal.axis import Window
from forewarn.console.room import Room
from forewarn.core.event import Event, Status
from forewarn.core.story import kind_of

_LOOKED_THROUGH = 2_000  # events of each sort
_LOOKED_THROUGH_FOR_SOME = 20_000  # for somebody who may not see all of them, or asks for few
_LIVE = (Status.SCHEDULED, Status.STARTED)

Kinds = Literal["", "Freeze", "Reboot", "Redeploy", "Preempt", "Terminate", "unlisted"]


class TimelineQuery(Strict, frozen=True, kw_only=True):
    span: str = ""
    at: str = ""  # the middle; left out: now, and it follows
    scope: str = ""
    vm: str = ""
    rollout: str = ""
    kind: Kinds = ""
    state: Literal["", "live", "all"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    events: list[Event]
    is_cut: bool  # there may be others: only the newest ones were looked through


def found_by(room: Room, query: TimelineQuery, window: Window) -> Found:
    """Those that fit, in the window or not."""
    vm = room.directory.find_any(query.vm) if query.vm else None
    scope_id = room.scope(query.scope).id if query.scope else None
    request_id = room.rollout(query.rollout).id if query.rollout else None
    if vm is not None and scope_id not in (None, vm.scope_id):
        return Found(events=[], is_cut=False)

    within = vm.scope_id if vm is not None else scope_id
    picky = within is not None or query.kind != "" or not room.sees_everything()
    most = _LOOKED_THROUGH_FOR_SOME if picky else _LOOKED_THROUGH
    heaps = list(_heaps(room, query.state == "live", window, within, request_id, most))
    every = {event.id: event for heap in heaps for event in heap if room.sees_scope(event.scope_id)}
    fitting = [event for event in every.values() if _fits(event, query.kind, vm.name if vm else "")]
    return Found(events=fitting, is_cut=any(len(heap) >= most for heap in heaps))


def _heaps(
    room: Room, live_only: bool, window: Window, scope_id: str | None, request_id: str | None, most: int
) -> list[list[Event]]:
    statuses = _LIVE if live_only else tuple(Status)
    if scope_id is not None or request_id is not None:
        return [room.store.events(scope_id=scope_id, request_id=request_id, statuses=statuses, limit=most)]
    live = room.store.events(statuses=_LIVE, limit=most)
    if live_only:
        return [live]
    ended = room.store.events_over(window.since, window.until, limit=most)
    # What was under way at the right edge was over soon after it.
    later = room.store.events_over(window.until, math.inf, limit=most, newest=False)
    return [live, ended, later]


def _fits(event: Event, kind: str, vm: str) -> bool:
    if vm and not lists(event, vm):
        return False
    return kind in ("", kind_of(event) if event.listed else "unlisted")


def newest_seen(room: Room) -> Event | None:
    """The last event that the caller may see at all."""
    recent = room.store.events(limit=1 if room.sees_everything() else _LOOKED_THROUGH_FOR_SOME)
    return next((event for event in reversed(recent) if room.sees_scope(event.scope_id)), None)
