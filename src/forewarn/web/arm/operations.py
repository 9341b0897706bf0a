"""Long-running operations: status, errors and events of a request, at the URL given to its caller.

An operation is not stored: its status follows from a request and its events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from forewarn.base.wording import first_clauses
from forewarn.core.access import Right
from forewarn.core.cause import verb_noun
from forewarn.core.event import Act, Ending, Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind
from forewarn.core.release import WaitReason
from forewarn.core.request import (
    MaintenanceRequest,
    PlannedEvent,
    RequestedOperation,
    RequestKey,
    canonical_body,
    make_request_key,
)
from forewarn.core.request_state import RequestState
from forewarn.core.scope import Scope, scope_title
from forewarn.errors import NotFound
from forewarn.protocol.dates import http_date, iso_date
from forewarn.web.arm.routing import ArmCall, ArmHandler, ArmResponse, ArmRoute, allow_listing
from forewarn.web.context import RequestContext
from forewarn.web.requests import (
    RequestStatus,
    read_request_status,
    request_events,
    short_vm_list,
    wait_sentences,
)
from forewarn.web.views import ViewBuilder

_AZURE_STATUS = {
    RequestState.IN_PROGRESS: "InProgress",
    RequestState.SUCCEEDED: "Succeeded",
    RequestState.FAILED: "Failed",
    RequestState.CANCELED: "Canceled",
}
_STATUS_BY_ENDING = {
    Ending.FINISHED: "Completed",
    Ending.FAILED: "Failed",
    Ending.WITHDRAWN: "Canceled",
    Ending.NOT_NEEDED: "Canceled",
}
_MAX_LISTED = 20  # VMs or sentences that a response lists
_OPERATION_PATH = (
    "/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{location}/operations/{operation}"
)
_RETRY_HEADERS = {"Retry-After": "1"}  # whole seconds: some clients reject others, and wait 30 s without the header
_REQUESTS_WITHOUT_OPERATION = frozenset(
    {RequestedOperation.ROLLOUT, RequestedOperation.DEGRADE, RequestedOperation.FAIL, RequestedOperation.REPLAY}
)


def _status_document(context: RequestContext, status: RequestStatus) -> dict[str, Any]:
    request = status.request
    document: dict[str, Any] = {
        "name": request.id,
        "status": _AZURE_STATUS[status.state],
        "startTime": iso_date(request.requested_at),
    }
    if status.state is not RequestState.IN_PROGRESS:
        document["endTime"] = iso_date(
            max((e.over_at or request.requested_at for e in status.events), default=request.requested_at)
        )
    document["properties"] = {
        "request": request.operation,
        "requestedBy": request.requested_by,
        "events": _OperationEventRenderer(context).events(status.events),
        "toCome": len(status.planned),
        "waitsFor": wait_sentences(ViewBuilder(context), status),
        "skipped": status.skip_reasons,
    }
    if (error := _operation_error(context, status)) is not None:
        document["error"] = error
    return document


def _operation_error(context: RequestContext, status: RequestStatus) -> dict[str, Any] | None:
    if status.state is RequestState.FAILED:
        acts = [act for event in status.events for act in event.failed_acts]
        details = [{"code": "OperationFailed", "target": act.name, "message": _failure_text(act)} for act in acts]
        return _error_document("OperationFailed", [*map(_failure_text, acts), *status.skip_reasons], details)
    if status.state is RequestState.CANCELED:
        withdrawn = [event for event in status.events if event.is_withdrawn]
        details = [{"code": "OperationCanceled", "target": event.id, "message": event.reason} for event in withdrawn]
        listed = [_withdrawal_text(context, event) for event in withdrawn[: _MAX_LISTED + 1]]
        sentences = [*listed, *(event.reason for event in withdrawn[_MAX_LISTED + 1 :]), *status.skip_reasons]
        return _error_document("OperationCanceled", sentences, details)
    return None


def _error_document(code: str, sentences: list[str], details: list[dict[str, str]]) -> dict[str, Any]:
    return {"code": code, "message": first_clauses(sentences, _MAX_LISTED), "details": details}


def _failure_text(act: Act) -> str:
    note = act.outcome.note if act.outcome else ""
    return f"{verb_noun(act.verb)} of {act.name} failed" + (f": {note}" if note else "")


def _withdrawal_text(context: RequestContext, event: Event) -> str:
    entries = list(map(context.visibility.shown_entry, context.store.history(event_id=event.id)))
    who = next((entry.actor for entry in reversed(entries) if entry.kind is EntryKind.WITHDRAWN), "")
    by = f" by {who}" if who and who not in event.reason else ""
    return f"{event.rules.kind} of {short_vm_list(event)} was {event.ending}{by}: {event.reason}"


def _approvers_text(scope: Scope) -> str:
    title = scope_title(scope)
    return title if scope.id.startswith("vm:") else f"any VM of {title}"


class _OperationEventRenderer:
    """Renders events for the status of an operation; make one for each call, since it caches polls."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._view_builder = ViewBuilder(context)
        self._polls_by_scope: dict[str, dict[str, str]] = {}  # scope id → VM name → time of its last poll

    def events(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        return [self._event(event) for event in events]

    def _event(self, event: Event) -> dict[str, Any]:
        document: dict[str, Any] = {
            "eventId": event.id,
            "eventType": event.rules.kind if event.listed else None,
            "eventStatus": _STATUS_BY_ENDING[event.ending] if event.ending else str(event.status).capitalize(),
            "resources": event.vms,
            "notBefore": http_date(event.not_before) if event.status is EventState.SCHEDULED else "",
            "notBeforeTime": iso_date(event.not_before),
        }
        if event.note:
            document["note"] = event.note
        if event.approved_by:
            document["approvedBy"] = event.approved_by
        if (wait := self._view_builder.pending_wait(event)) is not None:
            document["waitsFor"] = wait.text
        if wait is not None and wait.reason is WaitReason.NOTICE:
            document["approval"] = self._approval_status(event)
        return document

    def _approval_status(self, event: Event) -> dict[str, Any]:
        """Who can approve the event, and which VMs know of it."""
        scope = self._view_builder.load_scope(event.scope_id)
        given = {delivery.vm for delivery in self._context.store.deliveries(event_id=event.id)}
        return {
            "by": _approvers_text(scope) if scope else "nobody",
            "givenTo": self._visible_names(given),
            "lastPolls": self._last_polls(event.scope_id),
        }

    def _last_polls(self, scope_id: str) -> dict[str, str]:
        if scope_id not in self._polls_by_scope:
            newest = sorted(self._context.store.last_polls(scope_id=scope_id), key=lambda polled: -polled.at)
            named = ((self._visible_names([polled.vm]), polled.at) for polled in newest[:_MAX_LISTED])
            self._polls_by_scope[scope_id] = {name: iso_date(at) for names, at in named for name in names}
        return self._polls_by_scope[scope_id]

    def _visible_names(self, keys: Iterable[str]) -> list[str]:
        """The names of the VMs with these keys that the caller may read."""
        vms = map(self._context.store.vm, sorted(keys))
        return [vm.name for vm in vms if vm is not None and self._context.can_see(vm)][:_MAX_LISTED]


def operation_headers(call: ArmCall, vm: Vm | None, request: MaintenanceRequest) -> dict[str, str]:
    """Return the headers of a 202 response, with two URLs at which clients may poll the operation.

    `Azure-AsyncOperation` shows the status document; `Location` answers 202 until the operation is over.
    """
    subscription = vm.subscription_id if vm is not None else call.path_params["subscription"]
    location = vm.location if vm is not None else "-"
    names = {"subscription": subscription, "location": location, "operation": request.id}
    url = call.base_url + _OPERATION_PATH.format_map({name: quote(text, safe="") for name, text in names.items()})
    return {
        "Azure-AsyncOperation": _with_query(url, call),
        "Location": _with_query(url, call, monitor="true"),
        "x-ms-request-id": request.id,
        **_RETRY_HEADERS,
    }


def _with_query(url: str, call: ArmCall, **params: str) -> str:
    version = {"api-version": call.api_version} if call.api_version else {}
    query = urlencode({**version, **params})
    return f"{url}?{query}" if query else url


async def show_operation(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the status document of an operation (a request as clients follow it); 200 even if it failed.

    With `monitor=true`, as in the URL of `Location`, the answer is 202 until it is over, then an empty 200, or a 409
    with its error. Rollouts, replays and hosts that degrade or fail are not operations.
    """
    status = _load_status(context, call)
    is_running = status.state is RequestState.IN_PROGRESS
    if call.query.get("monitor", "").casefold() != "true":
        return ArmResponse(body=_status_document(context, status), headers=_RETRY_HEADERS if is_running else {})
    if is_running:
        location = _with_query(call.base_url + quote(call.path), call, monitor="true")
        return ArmResponse(status=202, headers={"Location": location, **_RETRY_HEADERS})
    error = _operation_error(context, status)
    # Not 500, after which clients would retry.
    return ArmResponse() if error is None else ArmResponse(status=409, body={"error": error})


def _load_status(context: RequestContext, call: ArmCall) -> RequestStatus:
    name = call.path_params["operation"]
    missing = NotFound(
        f"operation {name!r} does not exist in this subscription, or is over and no longer kept: send the request again"
    )
    request = context.store.request(name.lower()) if name.isascii() else None
    if request is None or request.operation in _REQUESTS_WITHOUT_OPERATION:
        raise missing
    parts: list[Event | PlannedEvent] = [*request_events(context, request)]
    parts += context.store.planned(request_id=request.id)
    if not _may_see_operation(context, call, request, parts):
        raise missing
    return read_request_status(context, request)


def _may_see_operation(
    context: RequestContext, call: ArmCall, request: MaintenanceRequest, parts: Sequence[Event | PlannedEvent]
) -> bool:
    """Whether the caller may see the request, and its events are all in the subscription of the path."""
    subscription = call.path_params["subscription"].casefold()
    if any(part.scope_id.partition(":")[2].partition("/")[0] != subscription for part in parts):
        return False
    return context.visibility.can_see_request(request)


ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute(
        "GET",
        _OPERATION_PATH,
        show_operation,
        right=Right.READ,
        authorize=allow_listing,
        summary="shows the status of an operation",
    ),
)


# Recognizes a repeated call by its x-ms-client-request-id, so that it creates no second request.
#
# Azure's libraries send a new id with each call, and the same id when they repeat it after a lost connection or a 503.
# But `az` sends one id with all calls of a command, and some programs send one id for a long time. So a call is only a
# repetition if method, path, query and body are the same too, and if it comes within REPEAT_WINDOW_S. Where Azure would
# accept a call, the id is never a reason to refuse it. Only calls that create requests need this: the others (PUT,
# PATCH and approvals) have the same effect twice as once.

CLIENT_REQUEST_ID_HEADER = "x-ms-client-request-id"
REPEAT_WINDOW_S = 3600.0  # real time; clients give up earlier

RepeatedResponse = Callable[[RequestContext, ArmCall, MaintenanceRequest], ArmResponse]


def accepted_response(context: RequestContext, call: ArmCall, request: MaintenanceRequest) -> ArmResponse:
    """Return the 202 response to a repeated call, with the operation of the first call's request."""
    return ArmResponse(status=202, headers=operation_headers(call, _any_vm(context, request), request))


def empty_response(context: RequestContext, call: ArmCall, request: MaintenanceRequest) -> ArmResponse:
    """Return the empty 204 response to a repeated call of an eviction, which has no operation to poll."""
    return ArmResponse(status=204)


def once(handler: ArmHandler, show_repeated: RepeatedResponse = accepted_response) -> ArmHandler:
    """Return a handler that calls `handler` once, and answers repeated calls with `show_repeated`.

    The handler must give its request the call's `request_key`: a call is recognized by the stored request, so a call
    that stored none, as after an error, runs the handler again.
    """

    async def handle(context: RequestContext, call: ArmCall) -> ArmResponse:
        if not call.client_request_id:
            return await handler(context, call)

        async def create(key: RequestKey) -> ArmResponse:
            return await handler(context, replace(call, request_key=key))

        async def show(request: MaintenanceRequest) -> ArmResponse:
            await context.wait_for_reconciler()
            return show_repeated(context, call, request)

        return await context.control.request_keys.run_once(_request_key(context, call), create, show)

    return handle


def _request_key(context: RequestContext, call: ArmCall) -> RequestKey:
    asked = {"method": call.method, "path": call.path.casefold(), "query": dict(call.query)}
    asked["body"] = canonical_body(call.body)
    at = context.dependencies.real_time()
    # What the call asks for is part of the key itself: another body is another request, not a mistake.
    content = make_request_key("", "", asked, at=at).digest
    name = f"{CLIENT_REQUEST_ID_HEADER}: {call.client_request_id}\n{content}"
    return make_request_key(context.principal.id, name, asked, at=at, lifetime_s=REPEAT_WINDOW_S)


def _any_vm(context: RequestContext, request: MaintenanceRequest) -> Vm | None:
    """The first VM of the request, present or removed; None if none of them is stored any more."""
    parts: list[Event | PlannedEvent] = [*request_events(context, request)]
    parts += context.store.planned(request_id=request.id)
    for part in parts:
        vms = context.store.vms(scope_id=part.scope_id, removed=True)
        if (found := next((vm for vm in vms if vm.name in part.vms), None)) is not None:
            return found
    return None
