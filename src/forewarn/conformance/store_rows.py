"""Rows for tests of a store: plausible ones, of which a test says only what it is about."""

from __future__ import annotations

from typing import Any

import msgspec

from forewarn.core.cause import Cause
from forewarn.core.event import Ending, Event, Status
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry, Sighting, What
from forewarn.core.request import Ask, Impact, Planned, Progress, Request, Rollout
from forewarn.store.seam import Polled

changed = msgspec.structs.replace


def a_vm(name: str, **facts: Any) -> Vm:
    where = {"subscription_id": "sub", "resource_group": "group", "location": "north", "availability_set": "web"}
    return Vm(**{"name": name, "vm_id": f"id of {name}", "host": "h1", **where, **facts})


SCOPE = a_vm("any").scope_id


def an_event(event_id: str, **facts: Any) -> Event:
    given: dict[str, Any] = {"scope_id": SCOPE, "request_id": "r1", "cause": Cause.USER_RESTART, "who": "ann"}
    return Event(**{"id": event_id, "vms": ("web-0",), "published_at": 10.0, "not_before": 910.0, **given, **facts})


def over(event: Event, at: float) -> Event:
    return changed(event, status=Status.OVER, over_at=at, ending=Ending.FINISHED)


def a_request(request_id: str, **facts: Any) -> Request:
    return Request(**{"id": request_id, "ask": Ask.RESTART, "who": "ann", "at": 1.5, "targets": ("web-0",), **facts})


def a_rollout(request_id: str, *, closed: bool = False, **facts: Any) -> Request:
    rollout = Rollout(impact=Impact.UPDATE, hosts=("h1",), progress=Progress.PAUSED, closed=closed)
    return a_request(request_id, ask=Ask.ROLLOUT, rollout=rollout, **facts)


def a_plan(event_id: str, **facts: Any) -> Planned:
    given: dict[str, Any] = {"request_id": "r1", "scope_id": SCOPE, "cause": Cause.HOST_UPDATE, "who": "ann"}
    return Planned(**{"event_id": event_id, "vms": ("web-0",), "notice_s": 900.0, **given, **facts})


def an_entry(text: str, **facts: Any) -> Entry:
    return Entry(**{"at": 5.0, "what": What.FLEET, "text": text, **facts})


def a_sighting(event_id: str, vm: str = "web-0", **facts: Any) -> Sighting:
    given: dict[str, Any] = {"scope_id": SCOPE, "status": "Scheduled", "version": "2020-07-01", "incarnation": 2}
    return Sighting(**{"event_id": event_id, "vm": vm, "at": 20.0, **given, **facts})


def a_poll(vm: str, at: float, **facts: Any) -> Polled:
    return Polled(**{"vm": vm, "scope_id": SCOPE, "at": at, "version": "2020-07-01", "count": 1, **facts})
