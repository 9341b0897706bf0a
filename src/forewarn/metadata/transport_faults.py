"""Injects transport faults (spec §11): which are active for a VM, and how they change responses.

Faults affect valid polls and approvals only. A fault that refuses the request goes before one that changes the
response; of several the oldest applies. While no fault is set, a request costs one test for None.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from forewarn.clock import read_real_time
from forewarn.core.faults import Fault, FaultCategory, FaultHits, FaultKind
from forewarn.metadata.fault_quota import FaultQuota, LocalFaultQuota
from forewarn.metadata.interface import GuestView, ResetConnection
from forewarn.metadata.published_documents import StaleDocuments
from forewarn.metadata.responder import AnyResponse, HeldResponse, SlowResponse
from forewarn.metadata.response_writer import INTERNAL_ERROR_RESPONSE
from forewarn.protocol.exchange import ApprovalRequest, EndpointRules, PollRequest
from forewarn.protocol.http_message import JSON_CONTENT_TYPE, HttpResponse
from forewarn.protocol.responses import too_many_requests, version_not_found
from forewarn.protocol.versions import UnknownVersionPolicy

GONE_RESPONSE = HttpResponse(status=410, headers=(JSON_CONTENT_TYPE,), body=b'{ "error": "Gone" }')
EMPTY_RESPONSE = HttpResponse(status=200, headers=(JSON_CONTENT_TYPE,))

ServeNormally = Callable[[PollRequest | ApprovalRequest], AnyResponse]  # serve this as if nothing were wrong
RenderView = Callable[[PollRequest, GuestView], HttpResponse]  # the document of this view


class FaultTable:
    """Swapped whole when faults change; counts what they touch until somebody takes the counts."""

    def __init__(
        self,
        past: StaleDocuments,
        *,
        now: Callable[[], float],
        real_time: Callable[[], float] = read_real_time,
        allowance: FaultQuota | None = None,
    ) -> None:
        self.stale_documents = past
        self._now, self._real_time = now, real_time
        self._quota = allowance or LocalFaultQuota()
        self._active: tuple[Fault, ...] | None = None
        self._faults_by_vm: dict[str, tuple[str, VmFaults | None]] = {}  # VM → its scope, and what is on for it
        self._active_since: dict[str, float] = {}  # fault → loop time
        self._first_request_at: dict[tuple[str, str], float] = {}  # fault and VM; loop time
        self._untaken_hits: dict[tuple[str, str], FaultHits] = {}
        self._change_subscribers: list[Callable[[Sequence[str] | None], None]] = []
        self._hit_subscribers: list[Callable[[], None]] = []

    def subscribe_changes(self, tell: Callable[[Sequence[str] | None], None]) -> None:
        """Tell this for which VMs other faults may be on than before; None: for any."""
        self._change_subscribers.append(tell)

    def subscribe_hits(self, tell: Callable[[], None]) -> None:
        """Tell this when there is something to `take`."""
        self._hit_subscribers.append(tell)

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """From now on these, and no others, are on."""
        armed = tuple(fault for fault in faults if fault.category is FaultCategory.TRANSPORT)
        at = asyncio.get_running_loop().time()
        changed = _changed_faults(self._active or (), armed)
        self._active = armed or None
        self._quota.set_active(armed)
        self._active_since = {fault.id: self._active_since.get(fault.id, at) for fault in armed}
        self._first_request_at = {key: at for key, at in self._first_request_at.items() if key[0] in self._active_since}
        self.stale_documents.set_enabled(any(fault.kind is FaultKind.STALE for fault in armed))
        if changed:
            self._drop_cached_faults(changed)

    def faults_for(self, view: GuestView) -> VmFaults | None:
        """What is wrong with this VM's transport; None: nothing."""
        if self._active is None:
            return None
        scope_id, trouble = self._faults_by_vm.get(view.vm, ("", None))
        if scope_id != view.scope_id:
            trouble = self._find_faults(self._active, view)
            self._faults_by_vm[view.vm] = (view.scope_id, trouble)
        return trouble

    def take_hits(self) -> list[FaultHits]:
        """What was touched since the last time."""
        touches, self._untaken_hits = list(self._untaken_hits.values()), {}
        return touches

    def add_hits(self, touches: Sequence[FaultHits]) -> None:
        for touch in touches:
            self._add_hit(touch)

    def is_active(self, fault: Fault) -> bool:
        if fault.id not in self._active_since or not self._quota.has_remaining(fault):
            return False
        return fault.until is None or self._real_time() < fault.until

    def consume(self, fault: Fault, vm: str) -> bool:
        """One request of the VM; False: another one was the last."""
        if not self._quota.consume(fault):
            return False
        self._add_hit(FaultHits(fault_id=fault.id, vm=vm, count=1, at=self._now()))
        for tell in self._hit_subscribers:
            tell()
        return True

    def delayed_until(self, fault: Fault, vm: str) -> float:
        """Loop time before which this VM is not answered: counted from its first request."""
        first = self._first_request_at.setdefault((fault.id, vm), asyncio.get_running_loop().time())
        return first + fault.parameter("delay_s")

    def stale_view(self, fault: Fault, view: GuestView) -> GuestView:
        """What was shown `age` ago, though nothing from before the fault was set."""
        at = asyncio.get_running_loop().time() - fault.parameter("age_s")
        return self.stale_documents.view_at(view, max(at, self._active_since.get(fault.id, at)))

    def _drop_cached_faults(self, changed: Sequence[Fault]) -> None:
        vms = [fault.vm for fault in changed] if all(fault.vm for fault in changed) else None
        if vms is None:
            self._faults_by_vm = {}
        else:
            for vm in vms:
                self._faults_by_vm.pop(vm, None)
        for tell in self._change_subscribers:
            tell(vms)

    def _find_faults(self, armed: Sequence[Fault], view: GuestView) -> VmFaults | None:
        faults = tuple(fault for fault in armed if fault.covers_request(scope_id=view.scope_id, vm=view.vm))
        return VmFaults(table=self, vm=view.vm, faults=faults) if faults else None

    def _add_hit(self, touch: FaultHits) -> None:
        key = (touch.fault_id, touch.vm)
        known = self._untaken_hits.get(key)
        both = touch if known is None else replace(known, count=known.count + touch.count, at=max(known.at, touch.at))
        self._untaken_hits[key] = both


@dataclass(frozen=True, slots=True, kw_only=True)
class VmFaults:
    """The faults that are on for one VM."""

    table: FaultTable
    vm: str
    faults: tuple[Fault, ...]

    def adjusted_rules(self, rules: EndpointRules) -> EndpointRules:
        if self._first_active(FaultKind.UNKNOWN_VERSION_404) is None:
            return rules
        return replace(rules, unknown_version=UnknownVersionPolicy.NOT_FOUND)

    def keeps_refusal(self, refusal: HttpResponse) -> bool:
        """Whether a request that was refused by `rules` is: not if a fault would have been needed, and is spent."""
        if refusal != version_not_found():
            return True
        fault = self._first_active(FaultKind.UNKNOWN_VERSION_404)
        return fault is not None and self.consume(fault)

    def refusal_response(self) -> HttpResponse | ResetConnection | None:
        """The answer of a service that is not itself: nothing of the request takes effect."""
        for fault in self._active_of_kinds(*_REFUSAL_RESPONSES):
            if self.consume(fault):
                return _REFUSAL_RESPONSES[fault.kind](fault)
        return None

    def serve(
        self, asked: PollRequest | ApprovalRequest, view: GuestView, go: ServeNormally, give: RenderView
    ) -> AnyResponse:
        """The answer, spoiled by the first fault that fits the request; else as it would be anyway."""
        for fault in self.faults:
            spoil = _RESPONSE_FAULTS.get(fault.kind)
            if spoil is not None and self.table.is_active(fault):
                answer = spoil(self, fault, asked, view, go, give)
                if answer is not None:
                    return answer
        return go(asked)

    def consume(self, fault: Fault) -> bool:
        return self.table.consume(fault, self.vm)

    def _first_active(self, *kinds: FaultKind) -> Fault | None:
        return next(self._active_of_kinds(*kinds), None)

    def _active_of_kinds(self, *kinds: FaultKind) -> Iterator[Fault]:
        return (fault for fault in self.faults if fault.kind in kinds and self.table.is_active(fault))


def _changed_faults(before: Sequence[Fault], after: Sequence[Fault]) -> list[Fault]:
    """Faults that came or went. What one has touched is written down every second and makes it no other."""
    known, new = [fault.without_counts for fault in before], [fault.without_counts for fault in after]
    return [fault for fault in (*known, *new) if fault not in known or fault not in new]


def _throttled_response(fault: Fault) -> HttpResponse:
    wait_s = math.ceil(fault.parameter("retry_after_s"))
    refusal = too_many_requests()
    return replace(refusal, headers=(*refusal.headers, ("Retry-After", str(wait_s)))) if wait_s else refusal


_REFUSAL_RESPONSES: dict[FaultKind, Callable[[Fault], HttpResponse | ResetConnection]] = {
    FaultKind.GONE: lambda fault: GONE_RESPONSE,
    FaultKind.THROTTLED: _throttled_response,
    FaultKind.INTERNAL_ERROR: lambda fault: INTERNAL_ERROR_RESPONSE,
    FaultKind.RESET: lambda fault: ResetConnection(),
}


def _delay_first_answer(
    trouble: VmFaults,
    fault: Fault,
    asked: PollRequest | ApprovalRequest,
    view: GuestView,
    go: ServeNormally,
    give: RenderView,
) -> AnyResponse | None:
    until = trouble.table.delayed_until(fault, trouble.vm)
    if asyncio.get_running_loop().time() >= until or not trouble.consume(fault):
        return None
    return HeldResponse(until=until, resume=lambda over: go(asked))


def _empty_body(
    trouble: VmFaults,
    fault: Fault,
    asked: PollRequest | ApprovalRequest,
    view: GuestView,
    go: ServeNormally,
    give: RenderView,
) -> AnyResponse | None:
    if isinstance(asked, ApprovalRequest):
        return None  # its answer has no body anyway
    return EMPTY_RESPONSE if trouble.consume(fault) else None


def _slow_body(
    trouble: VmFaults,
    fault: Fault,
    asked: PollRequest | ApprovalRequest,
    view: GuestView,
    go: ServeNormally,
    give: RenderView,
) -> AnyResponse | None:
    def drip(response: HttpResponse) -> AnyResponse:
        if not response.body or not trouble.table.is_active(fault) or not trouble.consume(fault):
            return response
        return SlowResponse(response=response, duration_s=fault.parameter("take_s"))

    return _map_response(go(asked), drip) if isinstance(asked, PollRequest) else None


def _stale_document(
    trouble: VmFaults,
    fault: Fault,
    asked: PollRequest | ApprovalRequest,
    view: GuestView,
    go: ServeNormally,
    give: RenderView,
) -> AnyResponse | None:
    if isinstance(asked, ApprovalRequest):
        return None
    at_once = replace(asked, wait_s=None)  # whoever waited would be given what is new
    then = trouble.table.stale_view(fault, view)
    if then is view:
        return go(at_once)
    return give(at_once, then) if trouble.consume(fault) else None


_ResponseFault = Callable[
    [VmFaults, Fault, PollRequest | ApprovalRequest, GuestView, ServeNormally, RenderView], "AnyResponse | None"
]
_RESPONSE_FAULTS: dict[FaultKind, _ResponseFault] = {
    FaultKind.LATE_FIRST_ANSWER: _delay_first_answer,
    FaultKind.EMPTY_BODY: _empty_body,
    FaultKind.SLOW_BODY: _slow_body,
    FaultKind.STALE: _stale_document,
}


def _map_response(answer: AnyResponse, change: Callable[[HttpResponse], AnyResponse]) -> AnyResponse:
    """The answer with its response changed, whenever that comes."""
    if isinstance(answer, HttpResponse):
        return change(answer)
    if isinstance(answer, HeldResponse):
        resume = answer.resume
        return replace(answer, resume=lambda over: _map_response(resume(over), change))
    return answer
