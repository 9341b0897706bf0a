"""Builds views of events, VMs, hosts, scopes and the fleet from stored values.

Use one ViewBuilder per request: it caches what it has read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from forewarn.base.times import timestamp
from forewarn.core.event import Act, Event, EventState
from forewarn.core.fleet import Host, Vm
from forewarn.core.release import StartWait, WaitReason, describe_gate_wait, start_wait, waits_only_for_gate
from forewarn.core.request import MaintenanceRequest
from forewarn.core.scope import Scope, scope_title, scope_title_of_vm
from forewarn.store.interface import LastPoll
from forewarn.web.context import RequestContext
from forewarn.web.dependencies import VmSupervisorInfo
from forewarn.web.polling_report import iterate_cooperatively, silent_seconds
from forewarn.web.queries import event_lists_vm
from forewarn.web.views import (
    ActView,
    AutoApprovalView,
    EventView,
    FleetView,
    HostView,
    RequestView,
    ScopeSummaryView,
    VmSupervisorView,
    VmView,
    WaitView,
)

_BATCH_SIZE = 500  # VMs or scopes between two chances for other tasks to run


class ViewBuilder:
    """Builds views of events, VMs, hosts and scopes for one request; checks no rights of the caller.

    It leaves faults, and other scopes that the caller may not see, out of the texts of views. It caches scopes and
    gates, so make a new one for each request, after `flush_observations`.
    """

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._store = context.store
        self._context_for = context.control.transactions.context_for
        self._scopes: dict[str, Scope | None] = {}
        self._unready_by_gate: dict[str, list[Event]] = {}  # gate id → events that keep it closed
        self._unreachable_hosts = context.control.unreachable_hosts()
        self._polls: dict[str, LastPoll] | None = None  # of the whole fleet, set by `fleet`

    def events(self, events: Iterable[Event]) -> tuple[EventView, ...]:
        """Return views of these events, in order, with what they wait for and when they were delivered."""
        return tuple(self.event(event) for event in events)

    def scopes_of(self, events: Iterable[Event]) -> tuple[ScopeSummaryView, ...]:
        """Return views of the scopes of these events, each once, in the order of the events."""
        scopes = map(self.load_scope, dict.fromkeys(event.scope_id for event in events))
        return tuple(self.scope(scope) for scope in scopes if scope is not None)

    def event(self, event: Event) -> EventView:
        """Return the view of an event, with what it waits for and when it was first delivered to a VM."""
        event = self._context.visibility.shown_event(event)
        row = event.rules
        wait = self.pending_wait(event)
        return EventView(
            id=event.id,
            scope=event.scope_id,
            kind=row.kind if event.listed else None,
            verb=row.verb,
            cause=event.cause,
            status=event.status,
            source=row.source,
            vms=event.vms,
            published_at=timestamp(event.published_at),
            not_before=timestamp(event.not_before),
            approved_at=timestamp(event.approved_at),
            approved_by=event.approved_by,
            started_at=timestamp(event.started_at),
            over_at=timestamp(event.over_at),
            ending=event.ending,
            reason=event.reason,
            note=event.note,
            listed=event.listed,
            host=event.host,
            update_domain=event.update_domain,
            request_id=event.request_id,
            requested_by=event.requested_by,
            description=row.description,
            duration_s=row.duration_s,
            waits_for=WaitView(reason=wait.reason, text=wait.text, until=timestamp(wait.until)) if wait else None,
            acts=tuple(self._act(act) for act in event.acts),
            delivered_at=timestamp(
                min((delivery.at for delivery in self._store.deliveries(event_id=event.id)), default=None)
            ),
            replaces=event.replaces,
        )

    def _act(self, act: Act) -> ActView:
        outcome = act.outcome
        return ActView(
            vm=act.name,
            verb=act.verb,
            to_host=act.to_host,
            ok=outcome.ok if outcome else None,
            at=timestamp(outcome.at if outcome else None),
            note=outcome.note if outcome else self._context.control.executor.progress.note(act.id),
        )

    def pending_wait(self, event: Event) -> StartWait | None:
        """Return what a scheduled event waits for before its start; None if it may start, started or is over."""
        if event.status is not EventState.SCHEDULED or (scope := self.load_scope(event.scope_id)) is None:
            return None
        wait = start_wait(scope, event, self._context_for(scope))
        if wait is not None and wait.reason is WaitReason.GATE:
            return self._gate_wait(event)
        return wait

    def _gate_wait(self, event: Event) -> StartWait:
        """Names the scopes that keep the gate closed, unless the caller may not see one of them."""
        unready = self._unready_events(event.gate_id)
        if all(self._context.can_see_scope(other.scope_id) for other in unready):
            return describe_gate_wait(event, unready)
        return StartWait(reason=WaitReason.GATE, text="another scope on the same host, which is not ready yet")

    def _unready_events(self, gate_id: str) -> list[Event]:
        if gate_id not in self._unready_by_gate:
            behind = self._store.events(gate_id=gate_id, statuses=[EventState.SCHEDULED])
            self._unready_by_gate[gate_id] = [event for event in behind if not self._could_start(event)]
        return self._unready_by_gate[gate_id]

    def _could_start(self, event: Event) -> bool:
        scope = self.load_scope(event.scope_id)
        return scope is None or waits_only_for_gate(scope, event, self._context_for(scope))

    def load_scope(self, scope_id: str) -> Scope | None:
        """Return the scope with this id from the store, cached in this builder; None if it does not exist."""
        if scope_id not in self._scopes:
            self._scopes[scope_id] = self._store.scope(scope_id)
        return self._scopes[scope_id]

    def vm(self, vm: Vm) -> VmView:
        """Return the view of a VM, present or removed, with its last poll and the number of its live events."""
        scope = self.load_scope(vm.scope_id)
        polled = self._polled(vm)
        base = self._context.dependencies.endpoint_of(vm)
        return VmView(
            name=vm.name,
            key=vm.key,
            resource_group=vm.resource_group,
            subscription_id=vm.subscription_id,
            location=vm.location,
            zone=vm.zone,
            scope=vm.scope_id,
            scope_title=scope_title_of_vm(vm),
            computer_name=vm.computer_name or vm.name,
            size=vm.size,
            os_type=vm.os_type,
            availability_set=vm.availability_set,
            scale_set=vm.scale_set,
            orchestration=vm.orchestration if vm.scale_set else "",
            placement_group=vm.placement_group,
            cloud_service=vm.cloud_service,
            update_domain=vm.update_domain,
            fault_domain=vm.fault_domain,
            priority=vm.priority,
            eviction_policy=vm.eviction_policy,
            terminate_notice_min=vm.terminate_notice_min,
            auto_approve=AutoApprovalView.from_approval(vm.auto_approve),
            approves_all_down=vm.approves_all_down,
            narrow_delivery=vm.narrow_delivery,
            tags=vm.tags,
            address=vm.address,
            url=f"{base}/metadata/scheduledevents" if base else None,
            host=vm.host,
            power=vm.power,
            last_polled_at=timestamp(polled.at if polled else None),
            silent_s=self._silent_s(polled) if polled else None,
            polled_version=polled.version if polled else None,
            polls=polled.count if polled else 0,
            pending=len(live_events_of_vm(scope, vm.name)) if scope else 0,
        )

    def host(self, host: Host, vms: Iterable[Vm] | None = None) -> HostView:
        """Return the view of a host that names `vms`, or all VMs on it, visible or not, if that is None."""
        names = tuple(vm.name for vm in (self._store.vms(host=host.name) if vms is None else vms))
        return HostView(
            name=host.name,
            location=host.location,
            zone=host.zone,
            health=host.health,
            unreachable=host.name in self._unreachable_hosts,
            confirmed_down=host.confirmed_down,
            vms=names,
        )

    def scope(self, scope: Scope) -> ScopeSummaryView:
        """Return the view of a scope with the names of its present VMs and the number of its live events."""
        return ScopeSummaryView(
            id=scope.id,
            title=scope_title(scope),
            enabled=scope.is_enabled,
            enabled_at=timestamp(scope.enabled_at),
            epoch=scope.epoch,
            incarnation=scope.incarnation,
            last_request_at=timestamp(scope.last_request_at),
            vms=tuple(vm.name for vm in scope.present_vms),
            update_domains=tuple(sorted({vm.update_domain for vm in scope.present_vms})),
            events=len(scope.live_events()),
        )

    async def fleet(self, hosts: list[Host], vms: list[Vm], host_vms: list[Vm]) -> FleetView:
        """Return views of these hosts and VMs, and of the VMs' scopes; lets other tasks run in between."""
        self._polls = {polled.vm: polled for polled in self._store.last_polls()}
        by_host: dict[str, list[Vm]] = defaultdict(list)
        for vm in host_vms:
            by_host[vm.host].append(vm)
        vm_views = [self.vm(vm) async for vm in iterate_cooperatively(vms, _BATCH_SIZE)]
        scopes = [
            self.scope(scope)
            async for scope in iterate_cooperatively(self._scopes.values(), _BATCH_SIZE)
            if scope is not None
        ]
        return FleetView(
            hosts=tuple(self.host(host, by_host[host.name]) for host in hosts),
            scopes=tuple(scopes),
            vms=tuple(vm_views),
        )

    def _silent_s(self, polled: LastPoll) -> float:
        pace = self._context.dependencies.pace_of(polled.vm)
        return round(silent_seconds(polled, pace, self._context.now()), 1)

    def _polled(self, vm: Vm) -> LastPoll | None:
        if self._polls is not None:
            return self._polls.get(vm.key)
        return next((polled for polled in self._store.last_polls(scope_id=vm.scope_id) if polled.vm == vm.key), None)


def request_view(request: MaintenanceRequest) -> RequestView:
    """Return the view of a request itself, with the names of its targets, but without its events or state."""
    return RequestView(
        id=request.id,
        operation=request.operation,
        requested_by=request.requested_by,
        requested_at=timestamp(request.requested_at),
        targets=request.targets,
    )


def live_events_of_vm(scope: Scope, name: str) -> list[Event]:
    """Return the live events of the scope that affect the VM of this name, in order of publication."""
    return [event for event in scope.live_events() if event_lists_vm(event, name)]


def vm_supervisor_view(name: str, supervisor: VmSupervisorInfo) -> VmSupervisorView:
    return VmSupervisorView(
        vm=name,
        pid=supervisor.pid,
        state=supervisor.state,
        boot_id=supervisor.boot_id,
        program=supervisor.program,
    )
