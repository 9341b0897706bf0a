"""Projects a scope to what its VMs see: the document (spec §4) and instance metadata (spec §2.6)."""

from __future__ import annotations

from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Priority, Vm
from forewarn.core.resource_ids import scale_set_resource_id, vm_resource_id
from forewarn.core.scope import Scope
from forewarn.protocol import document as wire
from forewarn.protocol.instance import InstanceFacts

_AT_DEADLINE = " It can start outside of its maintenance windows, because its deadline comes first."


def document_for(scope: Scope) -> wire.Document:
    """Return the scope's document: its incarnation, and its live, listed events in order of publication."""
    # It has the events of all VMs, even in a scope with narrow delivery, where each VM is shown only its own events.
    listed = [event for event in scope.live_events() if event.listed]
    listed.sort(key=lambda event: event.seq)
    return wire.Document(
        incarnation=scope.incarnation,
        notices=tuple(map(wire_notice, listed)),
        roles=scope.is_cloud_service,
    )


def wire_notice(event: Event) -> wire.EventNotice:
    """Return a live event as documents show it, without NotBefore once it has started."""
    rules = event.rules
    assert rules.kind is not None
    started = event.status is EventState.STARTED
    return wire.EventNotice(
        id=event.id,
        status=wire.NoticeStatus.STARTED if started else wire.NoticeStatus.SCHEDULED,
        kind=rules.kind,
        resources=event.vms,
        not_before=None if started else event.not_before,
        description=rules.description + (_AT_DEADLINE if event.starts_at_deadline else ""),
        source=rules.source,
        duration_s=rules.duration_s,
    )


def instance_facts(vm: Vm) -> InstanceFacts:
    """Return what the instance metadata endpoint tells a VM about itself."""
    spot = vm.priority is Priority.SPOT
    return InstanceFacts(
        name=vm.name,
        vm_id=vm.vm_id,
        resource_id=vm_resource_id(vm),
        location=vm.location,
        subscription_id=vm.subscription_id,
        resource_group=vm.resource_group,
        scale_set=vm.scale_set,
        virtual_machine_scale_set_id=scale_set_resource_id(vm) if vm.is_flexible else "",
        placement_group=vm.placement_group,
        update_domain=str(vm.update_domain),
        fault_domain=str(vm.fault_domain),
        zone=vm.zone,
        size=vm.size,
        priority=vm.priority if spot else "",
        eviction_policy=vm.eviction_policy if spot else "",
        tags=tuple(vm.tags.items()),
        computer_name=vm.computer_name or vm.name,
        os_type=vm.os_type,
        address=vm.address or vm.lab_address,
        mac=f"00-0D-3A-{vm.vm_id[0:2]}-{vm.vm_id[2:4]}-{vm.vm_id[4:6]}",
    )
