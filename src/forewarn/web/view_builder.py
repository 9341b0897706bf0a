"""From what is stored to what is shown. One `Showing` per call: what it has read once it does not read again."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from forewarn.console.room import Room
from forewarn.console.views import (
    ActView,
    AutoApprovalView,
    EventView,
    FleetView,
    HostView,
    RequestView,
    ScopeView,
    VmView,
    WaitView,
)
from forewarn.core.event import Act, Event, Status
from forewarn.core.fleet import Host, Vm
from forewarn.core.release import Reason, Wait, gate_wait, is_free, waits_for
from forewarn.core.request import Request
from forewarn.core.scope import Scope
from forewarn.store.seam import Polled

_AT_A_STRETCH = 500  # things shown before others get their turn
T = TypeVar("T")


class Showing:
    def __init__(self, room: Room) -> None:
        self._room = room
        self._store = room.store
        self._around = room.control.desk.around()
        self._scopes: dict[str, Scope | None] = {}
        self._gates: dict[str, list[Event]] = {}  # who keeps each closed
        self._polls: dict[str, Polled] | None = None  # of the whole fleet, when a fleet is shown

    def events(self, events: Iterable[Event]) -> tuple[EventView, ...]:
        return tuple(self.event(event) for event in events)

    def event(self, event: Event) -> EventView:
        row = event.row
        wait = self.wait(event)
        return EventView(
            id=event.id,
            scope=event.scope_id,
            kind=row.kind if event.listed else None,
            verb=row.verb,
            cause=event.cause,
            status=event.status,
            source=row.source,
            vms=event.vms,
            published_at=event.published_at,
            not_before=event.not_before,
            approved_at=event.approved_at,
            approved_by=event.approved_by,
            started_at=event.started_at,
            over_at=event.over_at,
            ending=event.ending,
            reason=event.reason,
            note=event.note,
            listed=event.listed,
            host=event.host,
            update_domain=event.update_domain,
            request_id=event.request_id,
            who=event.who,
            description=row.description,
            duration_s=row.duration_s,
            waits_for=WaitView(reason=wait.reason, text=wait.text, until=wait.until) if wait else None,
            acts=tuple(_act(act) for act in event.acts),
            given_at=min((sighting.at for sighting in self._store.sightings(event_id=event.id)), default=None),
            replaces=event.replaces,
        )

    def wait(self, event: Event) -> Wait | None:
        if event.status is not Status.SCHEDULED or (scope := self.scope_of(event.scope_id)) is None:
            return None
        wait = waits_for(scope, event, self._around)
        if wait is not None and wait.reason is Reason.GATE:
            return self._gate_wait(event)
        return wait

    def _gate_wait(self, event: Event) -> Wait:
        """Who keeps it closed, unless that is somebody whose VMs the caller may not know of."""
        unready = self._unready(event.gate_id)
        if all(self._room.sees_scope(other.scope_id) for other in unready):
            return gate_wait(event, unready)
        return Wait(reason=Reason.GATE, text="another scope on the same host, which is not ready yet")

    def _unready(self, gate_id: str) -> list[Event]:
        """The events behind a gate that could not start now."""
        if gate_id not in self._gates:
            behind = self._store.events(gate_id=gate_id, statuses=[Status.SCHEDULED])
            self._gates[gate_id] = [event for event in behind if not self._is_free(event)]
        return self._gates[gate_id]

    def _is_free(self, event: Event) -> bool:
        scope = self.scope_of(event.scope_id)
        return scope is None or is_free(scope, event, self._around)

    def scope_of(self, scope_id: str) -> Scope | None:
        if scope_id not in self._scopes:
            self._scopes[scope_id] = self._store.scope(scope_id)
        return self._scopes[scope_id]

    def vm(self, vm: Vm) -> VmView:
        scope = self.scope_of(vm.scope_id)
        polled = self._polled(vm)
        base = self._room.house.endpoint_of(vm)
        return VmView(
            name=vm.name,
            key=vm.key,
            resource_group=vm.resource_group,
            subscription_id=vm.subscription_id,
            location=vm.location,
            zone=vm.zone,
            scope=vm.scope_id,
            title_of_scope=title_of(vm),
            computer_name=vm.computer_name or vm.name,
            size=vm.size,
            os_type=vm.os_type,
            availability_set=vm.availability_set,
            scale_set=vm.scale_set,
            placement_group=vm.placement_group,
            cloud_service=vm.cloud_service,
            update_domain=vm.update_domain,
            fault_domain=vm.fault_domain,
            priority=vm.priority,
            eviction_policy=vm.eviction_policy,
            terminate_notice_min=vm.terminate_notice_min,
            auto_approve=AutoApprovalView.of(vm.auto_approve),
            tags=vm.tags,
            address=vm.address,
            url=f"{base}/metadata/scheduledevents" if base else None,
            host=vm.host,
            power=vm.power,
            last_polled_at=polled.at if polled else None,
            polled_version=polled.version if polled else None,
            polls=polled.count if polled else 0,
            pending=len(events_of(scope, vm.name)) if scope else 0,
        )

    def host(self, host: Host, vms: Iterable[Vm] | None = None) -> HostView:
        on_it = self._store.vms(host=host.name) if vms is None else vms
        names = tuple(vm.name for vm in on_it)
        return HostView(name=host.name, location=host.location, zone=host.zone, health=host.health, vms=names)

    def scope(self, scope: Scope) -> ScopeView:
        return ScopeView(
            id=scope.id,
            title=title_of_scope(scope),
            enabled=scope.is_enabled,
            enabled_at=scope.enabled_at,
            epoch=scope.epoch,
            incarnation=scope.incarnation,
            last_request_at=scope.last_request_at,
            vms=tuple(vm.name for vm in scope.present),
            update_domains=tuple(sorted({vm.update_domain for vm in scope.present})),
            events=len(scope.live()),
        )

    async def fleet(self, hosts: list[Host], vms: list[Vm], everyone: list[Vm]) -> FleetView:
        """Many at once: others get their turn in between. `everyone` are those to be named under their hosts."""
        self._polls = {polled.vm: polled for polled in self._store.polls()}
        by_host: dict[str, list[Vm]] = defaultdict(list)
        for vm in everyone:
            by_host[vm.host].append(vm)
        shown = [self.vm(vm) async for vm in _in_stretches(vms)]
        scopes = [self.scope(scope) async for scope in _in_stretches(self._scopes.values()) if scope is not None]
        return FleetView(
            hosts=tuple(self.host(host, by_host[host.name]) for host in hosts),
            scopes=tuple(scopes),
            vms=tuple(shown),
        )

    def _polled(self, vm: Vm) -> Polled | None:
        if self._polls is not None:
            return self._polls.get(vm.key)
        return next((polled for polled in self._store.polls(scope_id=vm.scope_id) if polled.vm == vm.key), None)


async def _in_stretches(things: Iterable[T]) -> AsyncIterator[T]:
    for number, thing in enumerate(things):
        if number % _AT_A_STRETCH == _AT_A_STRETCH - 1:
            await asyncio.sleep(0)
        yield thing


def request_view(request: Request) -> RequestView:
    return RequestView(id=request.id, ask=request.ask, who=request.who, at=request.at, targets=request.targets)


def events_of(scope: Scope, name: str) -> list[Event]:
    """The live events that list this VM."""
    wanted = name.casefold()
    return [event for event in scope.live() if any(vm.casefold() == wanted for vm in event.vms)]


def title_of(vm: Vm) -> str:
    """The VM's scope as people call it."""
    if vm.cloud_service:
        return f"cloud service {vm.cloud_service}"
    if vm.scale_set:
        return f"placement group {vm.placement_group} of scale set {vm.scale_set}"
    return f"availability set {vm.availability_set}" if vm.availability_set else f"VM {vm.name}"


_SORTS = {"set": "availability set", "placement": "scale set", "service": "cloud service", "vm": "VM"}


def title_of_scope(scope: Scope) -> str:
    return title_of(scope.vms[0]) if scope.vms else title_of_scope_id(scope.id)


def title_of_scope_id(scope_id: str) -> str:
    """The same without a look at the scope, in the lower case of its id."""
    sort, _, path = scope_id.partition(":")
    match sort, path.split("/")[2:]:
        case "placement", [scale_set, group]:
            return f"placement group {group} of scale set {scale_set}"
        case _, names:
            return f"{_SORTS.get(sort, sort)} {'/'.join(names)}"


def _act(act: Act) -> ActView:
    done = act.outcome
    return ActView(
        vm=act.name,
        verb=act.verb,
        to_host=act.to_host,
        ok=done.ok if done else None,
        at=done.at if done else None,
        note=done.note if done else "",
    )
