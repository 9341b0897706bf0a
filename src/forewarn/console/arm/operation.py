"""Long-running operations: what somebody asked for, under the address that they were given to follow it.

Nothing is stored for them. An operation is a request and its events, so it goes on wherever these do.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, urlencode

from forewarn.console.arm.progress import IN_PROGRESS, Course, answer_of, error_of, is_withdrawn
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute, listing
from forewarn.console.maintenance import events_of_request, state_of
from forewarn.console.room import Room
from forewarn.core.access import Right
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.history import What
from forewarn.core.request import Ask, Planned, Request
from forewarn.errors import NotFound

_PATH = "/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{location}/operations/{operation}"
_RETRY = {"Retry-After": "1"}  # whole seconds: some clients take no others, and wait half a minute without it
_NO_OPERATIONS = frozenset({Ask.ROLLOUT, Ask.DEGRADE, Ask.FAIL, Ask.REPLAY})


def follow(call: ArmCall, vm: Vm, request: Request) -> dict[str, str]:
    """The headers that lead to the operation. Clients differ in which of the addresses they ask, so both are there."""
    names = {"subscription": vm.subscription_id, "location": vm.location, "operation": request.id}
    url = call.base + _PATH.format_map({name: quote(text, safe="") for name, text in names.items()})
    return {
        "Azure-AsyncOperation": _with(url, call),
        "Location": _with(url, call, monitor="true"),
        "x-ms-request-id": request.id,
        **_RETRY,
    }


def _with(url: str, call: ArmCall, **more: str) -> str:
    sent = {"api-version": call.api_version} if call.api_version else {}
    query = urlencode({**sent, **more})
    return f"{url}?{query}" if query else url


async def show(room: Room, call: ArmCall) -> ArmAnswer:
    course = _course(room, call)
    under_way = course.status == IN_PROGRESS
    if call.query.get("monitor", "").casefold() != "true":
        return ArmAnswer(body=answer_of(room, course), headers=_RETRY if under_way else {})
    if under_way:
        here = _with(call.base + quote(call.path), call, monitor="true")
        return ArmAnswer(status=202, headers={"Location": here, **_RETRY})
    error = error_of(room, course)
    # 409 and not 500, after which clients would ask again and again.
    return ArmAnswer() if error is None else ArmAnswer(status=409, body={"error": error})


def _course(room: Room, call: ArmCall) -> Course:
    name = call.names["operation"]
    request = room.store.request(name.lower()) if name.isascii() else None
    if request is None or request.ask in _NO_OPERATIONS:
        raise _unknown(name)
    events = events_of_request(room, request)
    planned = room.store.planned(request_id=request.id)
    is_over = not planned and not any(event.is_live for event in events)
    skipped = _skipped(room, request) if is_over else ()
    if not _may_follow(room, call, request, (*events, *planned)):
        raise _unknown(name)
    if not events and not planned and not skipped:
        raise NotFound(f"operation {name!r} is over, and what became of it is no longer kept: see `forewarn history`")
    state = _state(events, planned, skipped)
    return Course(request=request, state=state, events=events, to_come=len(planned), skipped=skipped)


def _skipped(room: Room, request: Request) -> tuple[str, ...]:
    """Why parts of it never came to be events."""
    entries = room.store.history(request_id=request.id)
    return tuple(entry.text for entry in entries if entry.what is What.SKIPPED and not entry.event_id)


def _state(events: list[Event], planned: Sequence[Planned], skipped: tuple[str, ...]) -> str:
    """As `state_of` says, but what somebody asked for has succeeded only if all of it was done (spec §9)."""
    state = state_of(events, to_come=bool(planned), skipped=bool(skipped))
    if state == "finished" and skipped:
        return "failed"
    return "withdrawn" if state == "finished" and any(map(is_withdrawn, events)) else state


def _unknown(name: str) -> NotFound:
    return NotFound(f"operation {name!r} does not exist in this subscription: ask again for what you wanted done")


def _may_follow(room: Room, call: ArmCall, request: Request, parts: Sequence[Event | Planned]) -> bool:
    """As with any request, but under its own subscription alone. Who sees a scope sees what was approved there."""
    here = call.names["subscription"].casefold()
    if any(part.scope_id.partition(":")[2].partition("/")[0] != here for part in parts):
        return False
    is_shared = bool(request.approves and parts) and all(room.sees_scope(part.scope_id) for part in parts)
    return is_shared or room.visible.request(request)


ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("GET", _PATH, show, right=Right.READ, over=listing, summary="says how far an operation is"),
)
