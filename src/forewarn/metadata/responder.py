"""Decides the response to a request, from the published documents or by asking the backend.

The result is a response, a `HeldResponse` (a long poll or a delay), a `SlowResponse` (a fault), a
`ResetConnection`, or a coroutine that waits for the backend. The coroutine returns a function that computes the
response, because the documents may have changed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from forewarn.clock import read_real_time
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldResponse:
    """An answer that waits until a moment, or until the document of a scope changes.

    `resume(over)` gives it, or another hold; `over`: the moment has come, or there is no more time to wait.
    """

    until: float  # loop time
    resume: Callable[[bool], AnyResponse]
    scope_id: str = ""  # "": only time ends this hold


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowResponse:
    """A response whose body takes its time."""

    response: HttpResponse
    duration_s: float


AnyResponse: TypeAlias = "HttpResponse | ResetConnection | HeldResponse | SlowResponse | PendingResponse"
FinishResponse: TypeAlias = Callable[[], "AnyResponse"]
PendingResponse: TypeAlias = Coroutine[Any, Any, FinishResponse]


class Responder:
    """Answers the requests of all connections."""

    def __init__(
        self,
        *,
        board: PublishedDocuments,
        backend: MetadataBackend,
        callers: CallerDirectory,
        rules_for: Callable[[str], EndpointRules],
        throttle: VmRateLimiter,
        observations: GuestObservations,
        faults: FaultTable,
        memory: ResponseCache,
    ) -> None:
        self._documents = board
        self._backend = backend
        self._callers = callers
        self._rules_for = rules_for
        self._rate_limiter = throttle
        self._observations = observations
        self._faults = faults
        self._response_cache = memory
        self._known_approvals = KnownApprovals()
        self._enable_tasks: dict[str, asyncio.Task[None]] = {}

    def is_known(self, caller: Caller) -> bool:
        return self._current_view(caller) is not None

    def respond(self, caller: Caller, request: HttpRequest) -> AnyResponse:
        view = self._current_view(caller)
        if view is None:
            refusal = read_request(request, is_known_caller=False, rules=EndpointRules())
            assert isinstance(refusal, HttpResponse)
            return refusal
        if not self._rate_limiter.allows(view.vm, _loop_time()):
            return too_many_requests()

        trouble = self._faults.faults_for(view)
        rules = self._rules_for_caller(caller, view)
        asked = read_request(request, is_known_caller=True, rules=rules if trouble is None else trouble.adjusted_rules(rules))
        if isinstance(asked, HttpResponse) and trouble is not None and not trouble.keeps_refusal(asked):
            asked = read_request(request, is_known_caller=True, rules=rules)
        if isinstance(asked, HttpResponse):
            return asked
        if isinstance(asked, InstanceRequest):
            return instance_response(asked, view.facts)
        if isinstance(asked, TokenRequest):
            return self._respond_to_token_request(caller, asked, view)
        spoiled = None if trouble is None else trouble.refusal_response()
        if spoiled is not None:
            return spoiled
        if not view.enabled:
            return self._enable_then_serve(caller, asked, user_agent_of(request), view, trouble)
        return self._record_and_serve(caller, asked, user_agent_of(request), trouble)

    def cacheable_view(self, caller: Caller, request: HttpRequest) -> tuple[GuestView, str] | None:
        """The view and version of a request that was just answered at once and would be answered alike until the view
        changes: a poll, or an approval that changes nothing, as clients send that approve whatever is listed.
        None: of any other request. Whatever else an answer depends on keeps a request from lasting.
        """
        view = self._current_view(caller)
        if view is None or self._rate_limiter.is_enabled or self._faults.faults_for(view) is not None:
            return None
        asked = read_request(request, is_known_caller=True, rules=self._rules_for_caller(caller, view))
        if isinstance(asked, ApprovalRequest):
            return (view, asked.version) if self._known_approvals.covers(view, asked.event_ids) else None
        return (view, asked.version) if isinstance(asked, PollRequest) else None

    def _respond_to_token_request(self, caller: Caller, ask: TokenRequest, view: GuestView) -> AnyResponse:
        identity = _managed_identity(view)
        return self._issue_token(caller, ask, identity) if identity.matches(ask) else identity_not_found()

    async def _issue_token(self, caller: Caller, ask: TokenRequest, identity: ManagedIdentity) -> FinishResponse:
        try:
            given = await self._backend.token(identity, ask.resource)
        except (Unavailable, Conflict):
            return service_unavailable
        return partial(self._token_response, caller, ask, identity, given)

    def _token_response(
        self, caller: Caller, ask: TokenRequest, identity: ManagedIdentity, given: ManagedIdentityToken | WrongResource
    ) -> HttpResponse:
        """Unless the VM went meanwhile, or one that came back under its name is there instead."""
        view = self._current_view(caller)
        if view is None or _managed_identity(view) != identity:
            return not_found()
        return token_response(given, ask=ask, identity=identity, now=read_real_time())

    async def _enable_then_serve(
        self,
        caller: Caller,
        asked: PollRequest | ApprovalRequest,
        agent: str,
        view: GuestView,
        trouble: VmFaults | None,
    ) -> FinishResponse:
        try:
            await self._enable_once(view)
        except NotFound:  # removed in the same moment
            return not_found
        except (Unavailable, Conflict):
            return service_unavailable
        return partial(self._record_and_serve, caller, asked, agent, trouble)

    async def _enable_once(self, view: GuestView) -> None:
        """First requests that come together share one enabling, and no caller who hangs up undoes it."""
        enabling = self._enable_tasks.get(view.scope_id)
        if enabling is None:
            enabling = asyncio.get_running_loop().create_task(self._enable_in_backend(view.vm))
            self._enable_tasks[view.scope_id] = enabling
            enabling.add_done_callback(partial(self._on_enabled, view.scope_id))
        await asyncio.shield(enabling)

    async def _enable_in_backend(self, vm: str) -> None:
        await self._backend.enable(vm)

    def _on_enabled(self, scope_id: str, enabling: asyncio.Task[None]) -> None:
        del self._enable_tasks[scope_id]
        if not enabling.cancelled():
            enabling.exception()  # those who wait are told; with nobody left it is of no interest

    def _record_and_serve(
        self, caller: Caller, asked: PollRequest | ApprovalRequest, agent: str, trouble: VmFaults | None
    ) -> AnyResponse:
        view = self._current_view(caller)
        if view is None:
            return not_found()
        self._response_cache.flush_hits_of(view.vm)
        wait_s = _hold_time_s(asked, view)
        self._observations.record_poll(view, asked.version, self._backend.now(), agent=agent, wait_s=wait_s)
        serve = self._serve_now if trouble is None else partial(self._serve_with_faults, trouble)
        if view.delayed_until > _loop_time():
            return HeldResponse(until=view.delayed_until, resume=lambda over: serve(caller, asked))
        return serve(caller, asked)

    def _serve_with_faults(
        self, trouble: VmFaults, caller: Caller, asked: PollRequest | ApprovalRequest
    ) -> AnyResponse:
        view = self._current_view(caller)
        if view is None:
            return not_found()
        return trouble.serve(asked, view, partial(self._serve_now, caller), partial(self._document_response, caller))

    def _serve_now(self, caller: Caller, asked: PollRequest | ApprovalRequest) -> AnyResponse:
        if isinstance(asked, PollRequest):
            return self._respond_to_poll(caller, asked, None, False)
        view = self._current_view(caller)
        if view is None:
            return not_found()
        if self._known_approvals.covers(view, asked.event_ids):
            return approval_accepted()
        return self._approve(caller, asked.event_ids)

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
        after = self._current_view(caller)
        if after is not None and after.scope_id == view.scope_id:
            self._known_approvals.add(view.scope_id, event_ids)
        return approval_accepted

    def _respond_to_poll(self, caller: Caller, poll: PollRequest, until: float | None, over: bool) -> AnyResponse:
        view = self._current_view(caller)
        if view is None:
            return not_found()
        if view.poll_override is not None:
            return view.poll_override
        given = self._shared_response(caller, poll, view)
        if given is not None:
            return given
        has_it = client_has_document(poll, view.etag)
        if poll.wait_s is not None and has_it and not over:
            until = until or _loop_time() + poll.wait_s
            again = partial(self._respond_to_poll, caller, poll, until)
            return HeldResponse(until=until, resume=again, scope_id=view.scope_id)
        return self._document_response(caller, poll, view)

    def _shared_response(self, caller: Caller, poll: PollRequest, view: GuestView) -> HttpResponse | None:
        """What somebody was given who asked the same, and so had another document, as this caller has."""
        given = self._documents.shared_response(view, poll, iso_dates=self._rules_for_caller(caller, view).iso_dates)
        if given is not None:
            self._observations.record_delivery(view, poll.version, self._backend.now())
        return given

    def _document_response(self, caller: Caller, poll: PollRequest, view: GuestView) -> HttpResponse:
        rules = self._rules_for_caller(caller, view)
        if client_has_document(poll, view.etag):
            return _with_applied_wait(poll, poll_response(poll, tag=view.etag, document=view.document, rules=rules))
        self._observations.record_delivery(view, poll.version, self._backend.now())
        body = self._documents.document_bytes(view, poll.version, iso_dates=rules.iso_dates)
        answer = _with_applied_wait(
            poll, poll_response(poll, tag=view.etag, document=view.document, rules=rules, body=body)
        )
        self._documents.share_response(view, poll, answer, iso_dates=rules.iso_dates)
        return answer

    def _current_view(self, caller: Caller) -> GuestView | None:
        if caller.vm is None or self._callers.vm_at(caller.attachment) != caller.vm:
            return None
        return self._documents.view(caller.vm)

    def _rules_for_caller(self, caller: Caller, view: GuestView) -> EndpointRules:
        rules = self._rules_for(view.location)
        return rules if caller.is_loopback else _network_rules(rules, caller.from_loopback)


@lru_cache(maxsize=64)
def _network_rules(rules: EndpointRules, is_local: bool) -> EndpointRules:
    """The header is always required there (spec §2.2), and who calls is certain enough for tokens (spec §2.8)."""
    return replace(rules, header_always=True, gives_tokens=rules.gives_tokens or not is_local)


def _hold_time_s(asked: PollRequest | ApprovalRequest, view: GuestView) -> int:
    """How long the answer may be held: not at all, if there is one already."""
    if not isinstance(asked, PollRequest) or asked.wait_s is None or view.poll_override is not None:
        return 0
    return asked.wait_s if client_has_document(asked, view.etag) else 0


def _with_applied_wait(poll: PollRequest, answer: HttpResponse) -> HttpResponse:
    return answer if poll.wait_s is None else with_preference_applied(answer, poll.wait_s)


def _managed_identity(view: GuestView) -> ManagedIdentity:
    facts = view.facts
    return ManagedIdentity(vm=view.vm, vm_id=facts.vm_id, name=facts.name, resource_id=facts.resource_id)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


_MAX_KNOWN_APPROVALS = 10_000  # that are kept; a forgotten one is asked for again


class KnownApprovals:
    def __init__(self, *, most: int = _MAX_KNOWN_APPROVALS) -> None:
        self._max_size = most
        self._approved: dict[tuple[str, str], None] = {}  # scope and event

    def add(self, scope_id: str, event_ids: tuple[str, ...]) -> None:
        """These are approved, durably, or were over before."""
        for event_id in event_ids:
            if len(self._approved) >= self._max_size:
                del self._approved[next(iter(self._approved))]
            self._approved[scope_id, event_id] = None

    def covers(self, view: GuestView, event_ids: tuple[str, ...]) -> bool:
        """Whether all of these need no approval any more."""
        return bool(event_ids) and all(self._needs_no_approval(view, event_id) for event_id in event_ids)

    def _needs_no_approval(self, view: GuestView, event_id: str) -> bool:
        if (view.scope_id, event_id) in self._approved:
            return True
        return any(notice.id == event_id and notice.status is NoticeStatus.STARTED for notice in view.document.notices)
