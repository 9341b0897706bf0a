"""Injects transport faults (spec §11): which are active for a VM, and how they change responses.

Faults affect valid polls and approvals only. A fault that refuses the request goes before one that changes the
response; of several the oldest applies. While no fault is set, a request costs one test for None.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from forewarn.base.clock import real_now
from forewarn.base.times import RealTime
from forewarn.core.faults import Fault, FaultCategory, FaultHits, FaultKind
from forewarn.metadata.fault_quota import FaultQuota, LocalFaultQuota
from forewarn.metadata.interface import GuestView, ResetConnection
from forewarn.metadata.published_documents import StaleDocuments
from forewarn.metadata.responder import AnyResponse, HeldResponse, SlowResponse
from forewarn.metadata.response_writer import INTERNAL_ERROR_RESPONSE
from forewarn.protocol.exchange import ApprovalRequest, EndpointRules, PollRequest
from forewarn.protocol.http_message import JSON_CONTENT_TYPE, HttpRequest, HttpResponse
from forewarn.protocol.responses import too_many_requests, version_not_found
from forewarn.protocol.versions import UnknownVersionPolicy

GONE_RESPONSE = HttpResponse(status=410, headers=(JSON_CONTENT_TYPE,), body=b'{ "error": "Gone" }')
UNAUTHORIZED_RESPONSE = HttpResponse(status=401, headers=(JSON_CONTENT_TYPE,), body=b'{ "error": "Unauthorized" }')
EMPTY_RESPONSE = HttpResponse(status=200, headers=(JSON_CONTENT_TYPE,))
_SIGNATURE_HEADER = "x-ms-azure-host-authorization"  # of Azure's metadata security protocol; the value is not checked

ServeNormally = Callable[[PollRequest | ApprovalRequest], AnyResponse]  # serve the request without faults
RenderView = Callable[[PollRequest, GuestView], HttpResponse]  # the response with the view's document


class FaultTable:
    """The active transport faults, and the requests that they affected (hits) until they are taken.

    `now` is lab time, for hits; `real_time` decides when a fault ends.
    """

    def __init__(
        self,
        stale_documents: StaleDocuments,
        *,
        now: Callable[[], float],
        real_time: Callable[[], RealTime] = real_now,
        quota: FaultQuota | None = None,
    ) -> None:
        self.stale_documents = stale_documents
        self._now, self._real_time = now, real_time
        self._quota = quota or LocalFaultQuota()
        self._active: tuple[Fault, ...] | None = None
        self._faults_by_vm: dict[str, tuple[str, VmFaults | None]] = {}  # VM → scope id, and its faults
        self._active_since: dict[str, float] = {}  # fault id → loop time
        self._first_request_at: dict[tuple[str, str], float] = {}  # fault id and VM → loop time
        self._untaken_hits: dict[tuple[str, str], FaultHits] = {}
        self._change_subscribers: list[Callable[[Sequence[str] | None], None]] = []
        self._hit_subscribers: list[Callable[[], None]] = []

    def subscribe_changes(self, callback: Callable[[Sequence[str] | None], None]) -> None:
        """Call back, within `set_faults`, with the keys of the VMs whose faults were added or removed."""
        self._change_subscribers.append(callback)

    def subscribe_hits(self, callback: Callable[[], None]) -> None:
        """Call back, without arguments, after each hit that `consume` counts; not after `add_hits`."""
        self._hit_subscribers.append(callback)

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the active faults; those that are not transport faults are ignored. Needs a running loop."""
        active = tuple(fault for fault in faults if fault.category is FaultCategory.TRANSPORT)
        at = asyncio.get_running_loop().time()
        changed = _changed_faults(self._active or (), active)
        self._active = active or None
        self._quota.set_active(active)
        # A fault that stays keeps its beginning, though the table is set anew at each change.
        self._active_since = {fault.id: self._active_since.get(fault.id, at) for fault in active}
        self._first_request_at = {key: at for key, at in self._first_request_at.items() if key[0] in self._active_since}
        self.stale_documents.set_enabled(any(fault.kind is FaultKind.STALE for fault in active))
        if changed:
            self._drop_cached_faults(changed)

    def faults_for(self, view: GuestView) -> VmFaults | None:
        """Return the set faults that cover the view's VM, its scope or everything; None if there are none."""
        # The one test that a request costs while no fault is set.
        if self._active is None:
            return None
        scope_id, vm_faults = self._faults_by_vm.get(view.vm, ("", None))
        # A VM that has moved to another scope has that scope's faults.
        if scope_id != view.scope_id:
            vm_faults = self._find_faults(self._active, view)
            self._faults_by_vm[view.vm] = (view.scope_id, vm_faults)
        return vm_faults

    def take_hits(self) -> list[FaultHits]:
        """Remove and return the hits since the last call, summed per fault and VM; [] if there are none."""
        hits, self._untaken_hits = list(self._untaken_hits.values()), {}
        return hits

    def add_hits(self, hits: Sequence[FaultHits]) -> None:
        """Add hits of other processes, or give back taken hits that could not be stored."""
        for hit in hits:
            self._add_hit(hit)

    def is_active(self, fault: Fault) -> bool:
        """Return whether the fault is set, within its limit, and not over in real time; consumes nothing."""
        # Asked at each use: it may have been cleared, or used up by another process.
        if fault.id not in self._active_since or not self._quota.has_remaining(fault):
            return False
        return fault.until is None or self._real_time() < RealTime(fault.until)

    def consume(self, fault: Fault, vm: str) -> bool:
        """Count one request of the VM (its key) that the fault affects, add a hit, and return True."""
        if not self._quota.consume(fault):
            return False
        self._add_hit(FaultHits(fault_id=fault.id, vm=vm, count=1, at=self._now()))
        for callback in self._hit_subscribers:
            callback()
        return True

    def delayed_until(self, fault: Fault, vm: str) -> float:
        """Return the loop time until which a LATE_FIRST_ANSWER fault gives the VM (its key) no response."""
        first = self._first_request_at.setdefault((fault.id, vm), asyncio.get_running_loop().time())
        return first + fault.parameter("delay_s")

    def stale_view(self, fault: Fault, view: GuestView) -> GuestView:
        """Return what the VM saw `age_s` seconds ago in real time, but not before the fault was set."""
        at = asyncio.get_running_loop().time() - fault.parameter("age_s")
        return self.stale_documents.view_at(view, max(at, self._active_since.get(fault.id, at)))

    def _drop_cached_faults(self, changed: Sequence[Fault]) -> None:
        # A fault on a scope or on everything concerns VMs that cannot be listed here.
        vms = [fault.vm for fault in changed] if all(fault.vm for fault in changed) else None
        if vms is None:
            self._faults_by_vm = {}
        else:
            for vm in vms:
                self._faults_by_vm.pop(vm, None)
        for callback in self._change_subscribers:
            callback(vms)

    def _find_faults(self, active: Sequence[Fault], view: GuestView) -> VmFaults | None:
        faults = tuple(fault for fault in active if fault.covers_request(scope_id=view.scope_id, vm=view.vm))
        return VmFaults(table=self, vm=view.vm, faults=faults) if faults else None

    def _add_hit(self, hit: FaultHits) -> None:
        key = (hit.fault_id, hit.vm)
        known = self._untaken_hits.get(key)
        total = hit if known is None else replace(known, count=known.count + hit.count, at=max(known.at, hit.at))
        self._untaken_hits[key] = total


@dataclass(frozen=True, slots=True, kw_only=True)
class VmFaults:
    """The transport faults that cover one VM, and the changes that they make to its responses."""

    table: FaultTable  # it knows whether the faults are active
    vm: str  # key
    faults: tuple[Fault, ...]  # oldest first; never empty

    def adjusted_rules(self, rules: EndpointRules) -> EndpointRules:
        """Return these endpoint rules, with 404 for unknown api-versions while a fault of that kind is active."""
        if self._first_active(FaultKind.UNKNOWN_VERSION_404) is None:
            return rules
        return replace(rules, unknown_version=UnknownVersionPolicy.NOT_FOUND)

    def keeps_refusal(self, refusal: HttpResponse) -> bool:
        """Return whether to send the error that came from reading the request under `adjusted_rules`."""
        # False if the 404 for an unknown api-version was due to a fault that could not be consumed: read the request
        # under the normal rules.
        if refusal != version_not_found():
            return True
        fault = self._first_active(FaultKind.UNKNOWN_VERSION_404)
        return fault is not None and self.consume(fault)

    def refusal_response(self, request: HttpRequest) -> HttpResponse | ResetConnection | None:
        """Return the response of the oldest active fault that refuses this request, and consume that fault."""
        for fault in self._active_of_kinds(*_REFUSAL_RESPONSES):
            if fault.kind is FaultKind.UNSIGNED_401 and request.header_values(_SIGNATURE_HEADER):
                continue
            if self.consume(fault):
                return _REFUSAL_RESPONSES[fault.kind](fault)
        return None

    def serve(
        self, request: PollRequest | ApprovalRequest, view: GuestView, serve: ServeNormally, render: RenderView
    ) -> AnyResponse:
        """Return the response changed by the oldest active fault that applies, else the normal response."""
        for fault in self.faults:
            apply_fault = _RESPONSE_FAULTS.get(fault.kind)
            if apply_fault is not None and self.table.is_active(fault):
                response = apply_fault(self, fault, request, view, serve, render)
                if response is not None:
                    return response
        return serve(request)

    def consume(self, fault: Fault) -> bool:
        return self.table.consume(fault, self.vm)

    def _first_active(self, *kinds: FaultKind) -> Fault | None:
        return next(self._active_of_kinds(*kinds), None)

    def _active_of_kinds(self, *kinds: FaultKind) -> Iterator[Fault]:
        return (fault for fault in self.faults if fault.kind in kinds and self.table.is_active(fault))


def _changed_faults(before: Sequence[Fault], after: Sequence[Fault]) -> list[Fault]:
    old, new = [fault.without_counts for fault in before], [fault.without_counts for fault in after]
    return [fault for fault in (*old, *new) if fault not in old or fault not in new]


def _throttled_response(fault: Fault) -> HttpResponse:
    wait_s = math.ceil(fault.parameter("retry_after_s"))
    response = too_many_requests()
    return replace(response, headers=(*response.headers, ("Retry-After", str(wait_s)))) if wait_s else response


_REFUSAL_RESPONSES: dict[FaultKind, Callable[[Fault], HttpResponse | ResetConnection]] = {
    FaultKind.UNSIGNED_401: lambda fault: UNAUTHORIZED_RESPONSE,
    FaultKind.GONE: lambda fault: GONE_RESPONSE,
    FaultKind.THROTTLED: _throttled_response,
    FaultKind.INTERNAL_ERROR: lambda fault: INTERNAL_ERROR_RESPONSE,
    FaultKind.RESET: lambda fault: ResetConnection(),
}


def _delay_first_answer(
    vm_faults: VmFaults,
    fault: Fault,
    request: PollRequest | ApprovalRequest,
    view: GuestView,
    serve: ServeNormally,
    render: RenderView,
) -> AnyResponse | None:
    until = vm_faults.table.delayed_until(fault, vm_faults.vm)
    if asyncio.get_running_loop().time() >= until or not vm_faults.consume(fault):
        return None
    return HeldResponse(until=until, resume=lambda expired: serve(request))


def _empty_body(
    vm_faults: VmFaults,
    fault: Fault,
    request: PollRequest | ApprovalRequest,
    view: GuestView,
    serve: ServeNormally,
    render: RenderView,
) -> AnyResponse | None:
    if isinstance(request, ApprovalRequest):
        return None  # the response to an approval has no body
    return EMPTY_RESPONSE if vm_faults.consume(fault) else None


def _slow_body(
    vm_faults: VmFaults,
    fault: Fault,
    request: PollRequest | ApprovalRequest,
    view: GuestView,
    serve: ServeNormally,
    render: RenderView,
) -> AnyResponse | None:
    def slow_down(response: HttpResponse) -> AnyResponse:
        if not response.body or not vm_faults.table.is_active(fault) or not vm_faults.consume(fault):
            return response
        return SlowResponse(response=response, duration_s=fault.parameter("take_s"))

    return _map_response(serve(request), slow_down) if isinstance(request, PollRequest) else None


def _stale_document(
    vm_faults: VmFaults,
    fault: Fault,
    request: PollRequest | ApprovalRequest,
    view: GuestView,
    serve: ServeNormally,
    render: RenderView,
) -> AnyResponse | None:
    if isinstance(request, ApprovalRequest):
        return None
    without_wait = replace(request, wait_s=None)  # a held poll would get the new document
    stale_view = vm_faults.table.stale_view(fault, view)
    if stale_view is view:
        return serve(without_wait)
    return render(without_wait, stale_view) if vm_faults.consume(fault) else None


_ResponseFault = Callable[
    [VmFaults, Fault, PollRequest | ApprovalRequest, GuestView, ServeNormally, RenderView], "AnyResponse | None"
]
_RESPONSE_FAULTS: dict[FaultKind, _ResponseFault] = {
    FaultKind.LATE_FIRST_ANSWER: _delay_first_answer,
    FaultKind.EMPTY_BODY: _empty_body,
    FaultKind.SLOW_BODY: _slow_body,
    FaultKind.STALE: _stale_document,
}


def _map_response(response: AnyResponse, change: Callable[[HttpResponse], AnyResponse]) -> AnyResponse:
    """Apply `change` to the response, now or when it is no longer held."""
    if isinstance(response, HttpResponse):
        return change(response)
    if isinstance(response, HeldResponse):
        resume = response.resume
        return replace(response, resume=lambda expired: _map_response(resume(expired), change))
    return response
