"""Decides the response to a request, from the published documents or by asking the backend.

The result is a response, a `HeldResponse` (a long poll or a delay), a `SlowResponse` (a fault), a
`ResetConnection`, or a coroutine that waits for the backend. The coroutine returns a function that computes the
response, because the documents may have changed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from forewarn.base.clock import read_real_time
from forewarn.errors import Conflict, NotFound, Unavailable
from forewarn.metadata.identity import Caller, CallerDirectory
from forewarn.metadata.interface import GuestView, MetadataBackend, ResetConnection
from forewarn.metadata.limits import VmRateLimiter
from forewarn.metadata.observations import GuestObservations
from forewarn.metadata.published_documents import PublishedDocuments
from forewarn.metadata.request_counters import user_agent_of
from forewarn.metadata.response_cache import ResponseCache
from forewarn.protocol.document import NoticeStatus
from forewarn.protocol.exchange import (
    ApprovalRequest,
    EndpointRules,
    InstanceRequest,
    PollRequest,
    client_has_document,
    poll_response,
    read_request,
    with_preference_applied,
)
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.instance import instance_response
from forewarn.protocol.managed_identity import (
    ManagedIdentity,
    ManagedIdentityToken,
    TokenRequest,
    WrongResource,
    identity_not_found,
    token_response,
)
from forewarn.protocol.responses import (
    approval_accepted,
    not_found,
    service_unavailable,
    too_many_requests,
    unknown_event,
)

if TYPE_CHECKING:
    from forewarn.metadata.transport_faults import FaultTable, VmFaults

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldResponse:
    """A response that waits, until a time or until the document of a scope changes: a long poll or delay.

    The connection then calls `resume(expired)` for the response, which may be another HeldResponse.
    """

    until: float  # event loop time
    resume: Callable[[bool], AnyResponse]  # called once, with `expired`; returns the response
    scope_id: str = ""  # whose document it waits for; "": it waits only for the time


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowResponse:
    """A response whose body is to be sent slowly, over `duration_s` of real time, because of a fault."""

    response: HttpResponse  # complete
    duration_s: float  # of the body; the head is sent at once


AnyResponse: TypeAlias = "HttpResponse | ResetConnection | HeldResponse | SlowResponse | PendingResponse"
FinishResponse: TypeAlias = Callable[[], "AnyResponse"]  # call it once, just before the response is sent
PendingResponse: TypeAlias = Coroutine[Any, Any, FinishResponse]  # waits for the backend


class Responder:
    """Decides the responses to the requests of all connections of a server; sends nothing."""

    def __init__(
        self,
        *,
        documents: PublishedDocuments,
        backend: MetadataBackend,
        callers: CallerDirectory,
        rules_for: Callable[[str], EndpointRules],
        rate_limiter: VmRateLimiter,
        observations: GuestObservations,
        faults: FaultTable,
        response_cache: ResponseCache,
    ) -> None:
        self._documents = documents
        self._backend = backend
        self._callers = callers
        self._rules_for = rules_for
        self._rate_limiter = rate_limiter
        self._observations = observations
        self._faults = faults
        self._response_cache = response_cache
        self._known_approvals = KnownApprovals()
        self._unknown_callers = UnknownCallerLog()
        self._enable_tasks: dict[str, asyncio.Task[None]] = {}

    def is_known(self, caller: Caller) -> bool:
        """Return whether the caller is a VM of a published scope whose attachment is still assigned to it."""
        return self._current_view(caller) is not None

    def respond(self, caller: Caller, request: HttpRequest) -> AnyResponse:
        """Decide the response to a request: return it, or an object that says how it comes later."""
        # Records the polls and approvals that no error or fault refuses, and deliveries, and consumes faults and the
        # rate limit. Only the coroutine (PendingResponse), once run, calls the backend.
        view = self._current_view(caller)
        if view is None:
            # Unknown callers see no fault, limit or version: they get one 404, whatever they ask.
            self._unknown_callers.record(caller, _loop_time())
            response = read_request(request, is_known_caller=False, rules=EndpointRules())
            assert isinstance(response, HttpResponse)
            return response
        # Before anything of it is read or recorded.
        if not self._rate_limiter.allows(view.vm, _loop_time()):
            return too_many_requests()

        vm_faults = self._faults.faults_for(view)
        rules = self._rules_for_caller(caller, view)
        adjusted_rules = rules if vm_faults is None else vm_faults.adjusted_rules(rules)
        read = read_request(request, is_known_caller=True, rules=adjusted_rules)
        if isinstance(read, HttpResponse) and vm_faults is not None and not vm_faults.keeps_refusal(read):
            read = read_request(request, is_known_caller=True, rules=rules)
        if isinstance(read, HttpResponse):
            return read
        # Faults spoil polls and approvals alone (spec §11).
        if isinstance(read, InstanceRequest):
            return instance_response(read, view.facts)
        if isinstance(read, TokenRequest):
            return self._respond_to_token_request(caller, read, view)
        refusal = None if vm_faults is None else vm_faults.refusal_response(request)
        if refusal is not None:
            return refusal
        # The first poll enables the scope, durably, before it is answered (spec §8.1).
        if not view.enabled:
            return self._enable_then_serve(caller, read, user_agent_of(request), view, vm_faults)
        return self._record_and_serve(caller, read, user_agent_of(request), vm_faults)

    def cacheable_view(self, caller: Caller, request: HttpRequest) -> tuple[GuestView, str] | None:
        """Return the caller's view and the api-version, if the response may be cached until the view changes.

        That is for a poll, or for an approval that changes nothing (clients approve every listed event again and
        again), without a fault and without a rate limit. Call it after `respond`, and only if that returned an
        HttpResponse, which it does not check.
        """
        view = self._current_view(caller)
        if view is None or self._rate_limiter.is_enabled or self._faults.faults_for(view) is not None:
            return None
        read = read_request(request, is_known_caller=True, rules=self._rules_for_caller(caller, view))
        if isinstance(read, ApprovalRequest):
            return (view, read.version) if self._known_approvals.covers(view, read.event_ids) else None
        return (view, read.version) if isinstance(read, PollRequest) else None

    def _respond_to_token_request(self, caller: Caller, request: TokenRequest, view: GuestView) -> AnyResponse:
        identity = _managed_identity(view)
        return self._issue_token(caller, request, identity) if identity.matches(request) else identity_not_found()

    async def _issue_token(self, caller: Caller, request: TokenRequest, identity: ManagedIdentity) -> FinishResponse:
        try:
            token = await self._backend.token(identity, request.resource)
        except (Unavailable, Conflict):
            return service_unavailable
        return partial(self._token_response, caller, request, identity, token)

    def _token_response(
        self,
        caller: Caller,
        request: TokenRequest,
        identity: ManagedIdentity,
        token: ManagedIdentityToken | WrongResource,
    ) -> HttpResponse:
        """404 if the VM was removed meanwhile, or created again under its name."""
        view = self._current_view(caller)
        if view is None or _managed_identity(view) != identity:
            return not_found()
        return token_response(token, request=request, identity=identity, now=read_real_time())

    async def _enable_then_serve(
        self,
        caller: Caller,
        request: PollRequest | ApprovalRequest,
        user_agent: str,
        view: GuestView,
        vm_faults: VmFaults | None,
    ) -> FinishResponse:
        try:
            await self._enable_once(view)
        except NotFound:  # removed at the same time
            return not_found
        except (Unavailable, Conflict):
            return service_unavailable
        return partial(self._record_and_serve, caller, request, user_agent, vm_faults)

    async def _enable_once(self, view: GuestView) -> None:
        """Enable the scope once for concurrent first requests; a client that disconnects does not cancel it."""
        task = self._enable_tasks.get(view.scope_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._enable_in_backend(view.vm))
            self._enable_tasks[view.scope_id] = task
            task.add_done_callback(partial(self._on_enabled, view.scope_id))
        # A client that disconnects must not cancel what others wait for.
        await asyncio.shield(task)

    async def _enable_in_backend(self, vm: str) -> None:
        await self._backend.enable(vm)

    def _on_enabled(self, scope_id: str, task: asyncio.Task[None]) -> None:
        del self._enable_tasks[scope_id]
        if not task.cancelled():
            task.exception()  # marks the error as retrieved; waiting requests get it too

    def _record_and_serve(
        self, caller: Caller, request: PollRequest | ApprovalRequest, user_agent: str, vm_faults: VmFaults | None
    ) -> AnyResponse:
        view = self._current_view(caller)
        if view is None:
            return not_found()
        # First, so that polls are recorded in the order in which they came.
        self._response_cache.flush_hits_of(view.vm)
        wait_s = self._hold_time_s(caller, request, view)
        self._observations.record_poll(view, request.version, self._backend.now(), user_agent=user_agent, wait_s=wait_s)
        serve = self._serve_now if vm_faults is None else partial(self._serve_with_faults, vm_faults)
        if view.delayed_until and view.delayed_until > _loop_time():
            return HeldResponse(until=view.delayed_until, resume=lambda expired: serve(caller, request))
        return serve(caller, request)

    def _serve_with_faults(
        self, vm_faults: VmFaults, caller: Caller, request: PollRequest | ApprovalRequest
    ) -> AnyResponse:
        view = self._current_view(caller)
        if view is None:
            return not_found()
        return vm_faults.serve(
            request, view, partial(self._serve_now, caller), partial(self._document_response, caller)
        )

    def _serve_now(self, caller: Caller, request: PollRequest | ApprovalRequest) -> AnyResponse:
        if isinstance(request, PollRequest):
            return self._respond_to_poll(caller, request, None, False)
        view = self._current_view(caller)
        if view is None:
            return not_found()
        # Known to be durable, or started: true for good, so the store need not be asked (decision 0008).
        if self._known_approvals.covers(view, request.event_ids):
            return approval_accepted()
        return self._approve(caller, request.event_ids)

    async def _approve(self, caller: Caller, event_ids: tuple[str, ...]) -> FinishResponse:
        view = self._current_view(caller)
        if view is None:
            return not_found
        try:
            unknown = await self._backend.approve(view.vm, event_ids)
        except NotFound:
            return not_found
        except (Unavailable, Conflict):
            return service_unavailable
        if unknown is not None:
            return partial(unknown_event, unknown)
        # Only if the VM is still in the scope whose event it has approved.
        after = self._current_view(caller)
        if after is not None and after.scope_id == view.scope_id:
            self._known_approvals.add(view.scope_id, event_ids)
        return approval_accepted

    def _respond_to_poll(self, caller: Caller, poll: PollRequest, until: float | None, expired: bool) -> AnyResponse:
        view = self._current_view(caller)
        if view is None:
            return not_found()
        if view.poll_override is not None:
            return view.poll_override
        shared = self._shared_response(caller, poll, view)
        if shared is not None:
            return shared
        # A client that has another document gets the present one at once, also with a wait.
        if poll.wait_s is not None and not expired and self._has_document(caller, poll, view):
            # Woken without a change for it, it waits on, but never longer than it asked for.
            until = until or _loop_time() + poll.wait_s
            resume = partial(self._respond_to_poll, caller, poll, until)
            return HeldResponse(until=until, resume=resume, scope_id=view.scope_id)
        return self._document_response(caller, poll, view)

    def _shared_response(self, caller: Caller, poll: PollRequest, view: GuestView) -> HttpResponse | None:
        """Return the document response to an equal poll, with the same outdated ETag, of any VM of the scope."""
        iso_dates = self._rules_for_caller(caller, view).iso_dates
        response = self._documents.shared_response(view, poll, iso_dates=iso_dates)
        if response is not None:
            self._observations.record_delivery(view, poll.version, self._backend.now())
        return response

    def _document_response(self, caller: Caller, poll: PollRequest, view: GuestView) -> HttpResponse:
        rules = self._rules_for_caller(caller, view)
        rendered = self._documents.rendered(view, poll.version, iso_dates=rules.iso_dates)
        response = poll_response(
            poll, tag=self._documents.etag(view, rendered), document=view.document, rules=rules, body=rendered.body
        )
        response = _with_applied_wait(poll, response)
        # A 304 delivers nothing: the client has the events already.
        if response.status == 200:
            self._observations.record_delivery(view, poll.version, self._backend.now())
            self._documents.share_response(view, poll, response, iso_dates=rules.iso_dates)
        return response

    def _has_document(self, caller: Caller, poll: PollRequest, view: GuestView) -> bool:
        if poll.if_none_match is None:
            return False
        iso_dates = self._rules_for_caller(caller, view).iso_dates
        rendered = self._documents.rendered(view, poll.version, iso_dates=iso_dates)
        return client_has_document(poll, self._documents.etag(view, rendered))

    def _hold_time_s(self, caller: Caller, request: PollRequest | ApprovalRequest, view: GuestView) -> int:
        """How long the response may be held; 0 if the client does not have the current document."""
        if not isinstance(request, PollRequest) or request.wait_s is None or view.poll_override is not None:
            return 0
        return request.wait_s if self._has_document(caller, request, view) else 0

    def _current_view(self, caller: Caller) -> GuestView | None:
        # Asked for each request: the place may have another VM since the connection was opened.
        if caller.vm is None or self._callers.vm_at(caller.attachment) != caller.vm:
            return None
        return self._documents.view(caller.vm)

    def _rules_for_caller(self, caller: Caller, view: GuestView) -> EndpointRules:
        rules = self._rules_for(view.location)
        return rules if caller.is_loopback else _network_rules(rules, caller.from_loopback)


@lru_cache(maxsize=64)
def _network_rules(rules: EndpointRules, from_loopback: bool) -> EndpointRules:
    """Rules for real networks: the header is required (spec §2.2), and tokens are allowed (spec §2.8)."""
    return replace(rules, header_always=True, gives_tokens=rules.gives_tokens or not from_loopback)


def _with_applied_wait(poll: PollRequest, response: HttpResponse) -> HttpResponse:
    return response if poll.wait_s is None else with_preference_applied(response, poll.wait_s)


def _managed_identity(view: GuestView) -> ManagedIdentity:
    facts = view.facts
    return ManagedIdentity(vm=view.vm, vm_id=facts.vm_id, name=facts.name, resource_id=facts.resource_id)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


_MAX_KNOWN_APPROVALS = 10_000  # beyond, the oldest is dropped and goes to the backend again


class KnownApprovals:
    """Remembers events whose approval the backend has accepted, so that it is not called for them again."""

    # `covers` also counts events that have started, which need no approval, so it does not prove that they were
    # approved.

    def __init__(self, *, max_size: int = _MAX_KNOWN_APPROVALS) -> None:
        self._max_size = max_size
        self._approved: dict[tuple[str, str], None] = {}  # scope id and event id

    def add(self, scope_id: str, event_ids: tuple[str, ...]) -> None:
        """Remember that the backend has accepted an approval of these events (upper case) of the scope."""
        for event_id in event_ids:
            if len(self._approved) >= self._max_size:
                del self._approved[next(iter(self._approved))]
            self._approved[scope_id, event_id] = None

    def covers(self, view: GuestView, event_ids: tuple[str, ...]) -> bool:
        """Return whether there are ids (in upper case), and none of these events needs an approval."""
        return bool(event_ids) and all(self._needs_no_approval(view, event_id) for event_id in event_ids)

    def _needs_no_approval(self, view: GuestView, event_id: str) -> bool:
        if (view.scope_id, event_id) in self._approved:
            return True
        return any(notice.id == event_id and notice.status is NoticeStatus.STARTED for notice in view.document.notices)


_UNKNOWN_CALLER_INTERVAL_S = 60.0
_MAX_LOGGED_CALLERS = 1000


class UnknownCallerLog:
    """Logs requests of unknown callers as warnings, each caller (by its attachment) at most once a minute."""

    def __init__(self, *, max_callers: int = _MAX_LOGGED_CALLERS) -> None:
        self._max_callers = max_callers
        self._logged_at: dict[str, float] = {}  # attachment → loop time, oldest first
        self._overflow_logged_at: float | None = None

    def record(self, caller: Caller, now: float) -> None:
        """Log, as a warning, that a request of this caller at `now` (loop time) got 404, and why."""
        since = now - _UNKNOWN_CALLER_INTERVAL_S
        if self._logged_at.get(caller.attachment, since) > since:
            return
        while self._logged_at and self._logged_at[oldest := next(iter(self._logged_at))] <= since:
            del self._logged_at[oldest]
        if len(self._logged_at) < self._max_callers:
            self._logged_at[caller.attachment] = now
            _log.warning(
                "a request from %s got 404: %s", caller.attachment or "an unknown address", _reason_for(caller)
            )
        elif self._overflow_logged_at is None or self._overflow_logged_at <= since:
            self._overflow_logged_at = now
            _log.warning("more than %d unknown callers in a minute: the others are not logged", self._max_callers)


def _reason_for(caller: Caller) -> str:
    return "no VM of the fleet is there" if caller.vm is None else f"VM {caller.vm} is no longer there"
