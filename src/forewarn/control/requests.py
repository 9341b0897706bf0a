"""Use cases for maintenance requests: operations on VMs and hosts, approvals, withdrawals.

A request is durable before it is answered. Within one scope it is committed together with its events; across scopes
it is committed with its planned events, which the reconciler applies scope by scope.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from forewarn.base.wording import did_you_mean, first_names
from forewarn.control.scope_transactions import ScopeTransactions, group_by_scope, retry_on_conflict
from forewarn.core import lifecycle
from forewarn.core.acts import vm_on_arrival
from forewarn.core.cause import CAUSE_RULES, verb_noun
from forewarn.core.commit import Commit, merge_commits, scope_commit
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Host, HostHealth, PowerState, Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.host_failure import needs_recovery
from forewarn.core.placement import require_destination
from forewarn.core.planning import (
    OPERATION_CAUSES,
    apply_planned_event,
    pending_platform_events,
    plan_events_for_vms,
)
from forewarn.core.reconcile import reconcile_scope, with_next_wake
from forewarn.core.request import (
    MaintenanceRequest,
    PlannedEvent,
    RequestedOperation,
    RequestKey,
    next_request_key,
    with_request_key,
)
from forewarn.core.scope import Scope
from forewarn.errors import ForewarnError, NotFound, Refused, Rejected, Remedy
from forewarn.machines.interface import VerbSupport
from forewarn.store.interface import Store

T = TypeVar("T")


# Runs a call with a request key once: a repeated call finds the request that the first one created.
#
# The request itself is the record of its key, so this holds after a restart and on another machine with the same store.


class RequestKeys:
    """Makes calls with a request key idempotent: a second call with a key makes no second request.

    It finds the request of the first call in `store`, so this holds after a restart.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by request id

    async def run_once(
        self,
        key: RequestKey,
        create: Callable[[RequestKey], Awaitable[T]],
        show: Callable[[MaintenanceRequest], Awaitable[T]],
    ) -> T:
        """Return `create(key)` for the first call with this key, and `show(request)` for each repeated one.

        `create` creates a request with the id and digest of the key that it is given, which has another id than `key`
        if an earlier request of that has expired. If it raises, the next call with the key tries again; but if the
        request exists by then, as when an earlier call was cancelled, it is shown.
        """
        async with self._locks.setdefault(key.request_id, asyncio.Lock()):
            key, known = self._resolve(key)
            if known is not None:
                return await show(known)
            try:
                return await create(key)
            except ForewarnError:
                # An earlier call with this key was cancelled while its request was being written, and that is why this
                # one conflicts, or is refused as a second operation on the same VM.
                _, known = self._resolve(key)
                if known is None:
                    raise
                return await show(known)

    def find(self, key: RequestKey) -> MaintenanceRequest | None:
        """Return the request that a call with this key has made; None if there is none that has not expired."""
        return self._resolve(key)[1]

    def _resolve(self, key: RequestKey) -> tuple[RequestKey, MaintenanceRequest | None]:
        known = self._store.request(key.request_id)
        while known is not None and key.has_expired(known.called_at):
            key = next_request_key(key)
            known = self._store.request(key.request_id)
        if known is not None and known.call_digest != key.digest:
            raise Rejected(
                f"the key of this call is that of request {known.id}, which asked for something else",
                Remedy.USE_NEW_KEY,
            )
        return key, known


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceipt:
    """An accepted request, and the events that were published, started or approved with it."""

    request: MaintenanceRequest
    events: tuple[Event, ...]  # (): the request is for several scopes or a host, and the reconciler publishes them soon


class RequestService:
    """Accepts requests for maintenance, approvals and withdrawals. A request is durable when its method returns.

    A `key` gives the new request its id; the caller has already checked whether a request with it exists
    (`RequestKeys`).
    """

    def __init__(
        self,
        *,
        transactions: ScopeTransactions,
        new_id: Callable[[], str],
        verbs: VerbSupport = VerbSupport(),
    ) -> None:
        self._verbs = verbs
        self._transactions = transactions
        self._store = transactions.store
        self._new_id = new_id

    async def request_for_vms(
        self,
        operation: RequestedOperation,
        vms: Sequence[Vm],
        *,
        who: str,
        notice_s: float = 0,
        short_notice: bool = False,
        key: RequestKey | None = None,
    ) -> RequestReceipt:
        """Request an operation for these VMs: for all of them, or for none.

        0 as `notice_s` means the minimum notice; `short_notice` allows any, even 0. The operation starts without notice
        if the VM's policy approves it, or if scheduled events are disabled for the scope of a user operation. If all
        VMs are in one scope, their events are published or started on return and in the receipt, otherwise the
        reconciler publishes them.
        """
        if not vms:
            raise Rejected(f"{operation} needs at least one VM: name it")
        rules = CAUSE_RULES[OPERATION_CAUSES[operation]]
        self._verbs.require(rules.verb)
        request = self._new_request(operation, who, [vm.name for vm in vms], notice_s, short_notice, key)
        # Now, not when it starts: nobody would be there to read the refusal (decision 0015).
        if rules.verb.rules.moves:
            for vm in vms:
                require_destination(vm, self._transactions.placement.hosts())
        return await self._accept(request, plan_events_for_vms(request, vms, self._new_id))

    async def degrade_host(
        self, host_name: str, *, who: str, notice_s: float, short_notice: bool = False, key: RequestKey | None = None
    ) -> RequestReceipt:
        """Mark a host as predicted to fail (DEGRADED), and schedule the redeployment of its VMs (spec §6.4)."""
        # VMs that are being moved to it also get an event, which starts when they have arrived. Deallocated VMs stay.
        # The reconciler publishes the events; the receipt has none.

        async def attempt() -> RequestReceipt:
            host = self.host(host_name)
            self._verbs.require(CAUSE_RULES[OPERATION_CAUSES[RequestedOperation.DEGRADE]].verb)
            if host.health is not HostHealth.HEALTHY:
                raise Refused(f"host {host.name!r} is {host.health} already", Remedy.REPAIR_HOST, host=host.name)
            request = self._new_request(RequestedOperation.DEGRADE, who, [host.name], notice_s, short_notice, key)
            # As they will be: a VM that is still on its way is planned with its state after the move.
            affected = [self._on_arrival(vm, host.name) for vm in self._vms_on_or_moving_to(host.name)]
            return await self._accept_for_host(request, host, HostHealth.DEGRADED, affected)

        return await retry_on_conflict(attempt, f"host {host_name!r}")

    async def fail_host(self, host_name: str, *, who: str, key: RequestKey | None = None) -> RequestReceipt:
        """Mark a host as failed, and redeploy its VMs and those being redeployed to it at once (spec §6.4)."""
        # Acts under way there end as failed; a VM that was migrating to it stays where it is, and so do deallocated
        # VMs. If the hypervisor cannot redeploy, the failure is still recorded; the acts then fail and say why.

        async def attempt() -> RequestReceipt:
            host = self.host(host_name)
            if host.health is HostHealth.FAILED:
                raise Refused(f"host {host.name!r} has failed already", Remedy.REPAIR_HOST, host=host.name)
            vms = self._vms_on_or_moving_to(host.name)
            affected = [vm for vm in vms if needs_recovery(self._transactions.load(vm.scope_id), vm, host.name)]
            request = self._new_request(RequestedOperation.FAIL, who, [host.name], key=key)
            return await self._accept_for_host(request, host, HostHealth.FAILED, affected)

        return await retry_on_conflict(attempt, f"host {host_name!r}")

    async def repair_host(self, host_name: str, *, who: str) -> Host:
        """Mark a degraded, failed or confirmed-down host as healthy, durably, and return it; moves no VM back."""

        async def attempt() -> Host:
            host = self.host(host_name)
            if host.can_take_vms:
                raise Refused(f"host {host.name!r} is healthy: there is nothing to repair")
            vms = self._vms_on_or_moving_to(host.name)
            # Their events would go on to move VMs off a host that counts as healthy.
            if staying := [event for vm in vms for event in self._predicted_failures(vm, host)]:
                raise Refused(
                    f"host {host.name!r} still has {len(staying)} VMs that must leave it: "
                    f"withdraw event {staying[0].id} and the others, or wait until they have left"
                )
            healthy = replace(host, health=HostHealth.HEALTHY, confirmed_down=False)
            await self._store.commit(Commit(hosts=(healthy,), entries=(self._host_entry(healthy, who, "repaired"),)))
            return healthy

        return await retry_on_conflict(attempt, f"host {host_name!r}")

    async def approve(self, event_id: str, *, who: str) -> Event:
        """Approve an event on behalf of its VMs, durably, and return it."""
        event = self.event(event_id)
        if not event.is_live:
            raise Refused(f"event {event.id} is over ({event.ending}): there is nothing to approve")
        scope = await self._transactions.run(event.scope_id, approve_decision((event.id,), who))
        return scope.event(event.id) or self.event(event.id)

    async def approve_all(self, events: Sequence[Event], *, who: str) -> None:
        """Approve these events on behalf of their VMs in one durable transaction, all of them or none."""
        grouped = group_by_scope(list(events), lambda event: event.scope_id)

        async def attempt() -> None:
            # One transaction over several scopes: a Conflict of any makes all of them be decided again.
            await self._store.commit(merge_commits(*(self._approval_commit(s, e, who) for s, e in grouped.items())))

        await retry_on_conflict(attempt, "one of the events")

    async def perform_maintenance(
        self, vms: Sequence[Vm], *, who: str, key: RequestKey | None = None, resource: str = ""
    ) -> RequestReceipt:
        """Approve the scheduled planned maintenance of these VMs in one transaction (spec §6.4).

        VMs without such an event are skipped. `resource` is the id of the Azure resource that the caller named, if the
        request is to be found by it later.
        """

        async def attempt() -> RequestReceipt:
            pending = self._pending_maintenance(vms)
            request = self._new_request(RequestedOperation.PERFORM_MAINTENANCE, who, [vm.name for vm in vms], key=key)
            request = replace(request, approves=tuple(event.id for event in pending), resource=resource)
            record = Commit(requests=(request,), entries=(requested_entry(request),))
            grouped = group_by_scope(pending, lambda event: event.scope_id)
            await self._store.commit(
                merge_commits(record, *(self._approval_commit(s, e, who) for s, e in grouped.items()))
            )
            return RequestReceipt(request=request, events=tuple(self.event(event.id) for event in pending))

        return await retry_on_conflict(attempt, "one of the events")

    def _pending_maintenance(self, vms: Sequence[Vm]) -> list[Event]:
        found: dict[str, Event] = {}
        refusal: Refused | None = None
        for vm in vms:
            try:
                events = pending_platform_events(self._transactions.load(vm.scope_id), vm.name)
                found.update({event.id: event for event in events})
            except Refused as error:
                # One VM without maintenance does not matter; none with it is an error.
                refusal = refusal or error
        if not found:
            raise refusal or Rejected("perform-maintenance needs at least one VM: name it")
        return list(found.values())

    def _approval_commit(self, scope_id: str, events: list[Event], who: str) -> Commit:
        old = self._transactions.load(scope_id)
        context = self._transactions.context_for(old)
        approved = approve_decision(tuple(event.id for event in events), who)(old, context)
        return scope_commit(old, with_next_wake(approved, context))

    async def withdraw(self, event_id: str, *, who: str, reason: str = "") -> Event:
        """Withdraw an event that has not started, and return it as it is then: over, with ending WITHDRAWN."""
        event = self.event(event_id)

        def decision(scope: Scope, context: DecisionContext) -> Scope:
            live = scope.event(event.id) or self.event(event.id)  # over by now: `withdraw` refuses
            why = reason or f"taken back by {who}"
            return reconcile_scope(lifecycle.withdraw(scope, live, by=who, reason=why, now=context.now), context)

        await self._transactions.run(event.scope_id, decision)
        return self.event(event.id)

    def event(self, event_id: str) -> Event:
        """Return the event, live or over, with this full id, ignoring case and blanks; or raise NotFound."""
        event = self._store.event(event_id.strip().upper())
        if event is None:
            raise NotFound(f"event {event_id!r} does not exist", Remedy.LIST_EVENTS)
        return event

    def host(self, name: str) -> Host:
        """Return the host with this name, as of the last commit, ignoring letter case; or raise NotFound."""
        if (spelled := self._transactions.placement.host(name)) is not None:
            return spelled  # the usual case, in constant time
        hosts = self._transactions.placement.hosts()
        host = next((host for host in hosts if host.name.casefold() == name.casefold()), None)
        if host is None:
            known = did_you_mean(name, (host.name for host in hosts))
            raise NotFound(f"host {name!r} does not exist{known}", Remedy.LIST_HOSTS)
        return host

    def _vms_on_or_moving_to(self, host: str) -> list[Vm]:
        moving = map(self._store.vm, self._transactions.placement.vms_moving_to(host))
        present = [vm for vm in moving if vm is not None and vm.removed_at is None]
        return list({vm.key: vm for vm in (*self._store.vms(host=host), *present)}.values())

    def _on_arrival(self, vm: Vm, host: str) -> Vm:
        return vm_on_arrival(self._transactions.load(vm.scope_id), vm, host) or vm

    async def _accept_for_host(
        self, request: MaintenanceRequest, host: Host, health: HostHealth, affected: Sequence[Vm]
    ) -> RequestReceipt:
        vms = [vm for vm in affected if vm.power is not PowerState.DEALLOCATED]
        changed = replace(host, health=health)
        # The host itself still counts as healthy here, and must not be its own destination.
        others = [h for h in self._transactions.placement.hosts() if h.name != host.name]
        for vm in vms:
            require_destination(vm, others)
        planned = plan_events_for_vms(request, vms, self._new_id, host=host.name)
        self._check_applicable(planned)
        entries = (requested_entry(request), self._host_entry(changed, request.requested_by, str(health)))
        await self._store.commit(Commit(requests=(request,), planned=planned, hosts=(changed,), entries=entries))
        return RequestReceipt(request=request, events=())

    async def _accept(self, request: MaintenanceRequest, planned: tuple[PlannedEvent, ...]) -> RequestReceipt:
        record = Commit(requests=(request,), entries=(requested_entry(request),))
        scopes = group_by_scope(list(planned), lambda item: item.scope_id)
        # The usual case: the request and its events are one transaction, and the caller sees the events.
        if len(scopes) == 1:
            scope = await self._transactions.run(
                planned[0].scope_id, _apply_all_decision(planned), planned=planned, extra_commit=record
            )
            return RequestReceipt(request=request, events=tuple(e for e in scope.events if e.request_id == request.id))
        self._check_applicable(planned)
        await self._store.commit(Commit(requests=record.requests, entries=record.entries, planned=planned))
        return RequestReceipt(request=request, events=())

    def _check_applicable(self, planned: tuple[PlannedEvent, ...]) -> None:
        """Raise now what applying these planned events later would raise; so a request is all or nothing."""
        for scope_id, items in group_by_scope(list(planned), lambda item: item.scope_id).items():
            scope = self._transactions.load(scope_id)
            with self._transactions.deciding(scope, items) as context:
                _apply_all_decision(tuple(items))(scope, context)

    def _predicted_failures(self, vm: Vm, host: Host) -> list[Event]:
        live = self._transactions.load(vm.scope_id).live_events(EventState.SCHEDULED)
        return [
            e
            for e in live
            if e.host == host.name and vm.name in e.vms and OPERATION_CAUSES[RequestedOperation.DEGRADE] is e.cause
        ]

    def _new_request(
        self,
        operation: RequestedOperation,
        who: str,
        targets: Sequence[str],
        notice_s: float = 0,
        short_notice: bool = False,
        key: RequestKey | None = None,
    ) -> MaintenanceRequest:
        return new_request(self._new_id(), operation, who, self._now(), targets, notice_s, short_notice, key)

    def _host_entry(self, host: Host, who: str, state: str) -> HistoryEntry:
        return HistoryEntry(
            at=self._now(), kind=EntryKind.HOST, actor=who, text=f"host {host.name} {state}", host=host.name
        )

    def _now(self) -> float:
        return self._transactions.clock.now()


_VM_OPERATIONS = frozenset(RequestedOperation) - {
    RequestedOperation.ROLLOUT,
    RequestedOperation.DEGRADE,
    RequestedOperation.FAIL,
}


def approve_decision(event_ids: tuple[str, ...], by: str) -> Callable[[Scope, DecisionContext], Scope]:
    """Return a decision that approves these live events of a scope; ids that it does not have are ignored."""

    def decision(scope: Scope, context: DecisionContext) -> Scope:
        for event_id in event_ids:
            if (event := scope.event(event_id)) is not None:
                scope = lifecycle.approve(scope, event, by=by, now=context.now)
        return scope

    return decision


def _apply_all_decision(planned: tuple[PlannedEvent, ...]) -> Callable[[Scope, DecisionContext], Scope]:
    def decision(scope: Scope, context: DecisionContext) -> Scope:
        for item in planned:
            scope = apply_planned_event(scope, item, context)
        return scope

    return decision


def new_request(
    request_id: str,
    operation: RequestedOperation,
    who: str,
    now: float,
    targets: Sequence[str],
    notice_s: float = 0,
    short_notice: bool = False,
    key: RequestKey | None = None,
) -> MaintenanceRequest:
    """Return a new request with this id, in lower case, or with the id, digest and time of `key`."""
    if notice_s < 0:
        raise Rejected(f"notice of {notice_s:g} s is negative: give 0 or more")
    request = MaintenanceRequest(
        id=request_id.lower(),
        operation=operation,
        requested_by=who,
        requested_at=now,
        targets=tuple(targets),
        notice_s=notice_s,
        short_notice=short_notice,
    )
    return with_request_key(request, key)


def requested_entry(request: MaintenanceRequest) -> HistoryEntry:
    """Return the history entry of a new request: who requested what, of which targets."""
    text = f"{request.requested_by} requested {verb_noun(request.operation)} of {first_names(request.targets, 5)}"
    vm = request.targets[0] if request.operation in _VM_OPERATIONS and len(request.targets) == 1 else ""
    return HistoryEntry(
        at=request.requested_at,
        kind=EntryKind.REQUESTED,
        actor=request.requested_by,
        text=text,
        request_id=request.id,
        vm=vm,
    )
