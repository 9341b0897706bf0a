"""How a VM is just now, as Azure's instance views tell it: its power, its place, and maintenance ahead. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forewarn.console.arm.shape import Json
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Vm
from forewarn.protocol.date import iso_date

_PROVISIONED = {"code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded"}


def instance_view(vm: Vm, events: Sequence[Event]) -> Json:
    """Of a VM or an instance; `events` are the live ones of its scope."""
    placement = {"placementGroupId": vm.placement_group} if vm.placement_group else {}
    maintenance = maintenance_status([event for event in events if event.row.planned and _hits(event, vm)])
    return {
        "platformUpdateDomain": vm.update_domain,
        "platformFaultDomain": vm.fault_domain,
        **placement,
        **({"maintenanceRedeployStatus": maintenance} if maintenance else {}),
        "statuses": [_PROVISIONED, _power(vm)],
    }


def scale_set_view(vms: Sequence[Vm]) -> Json:
    powers = Counter(_power(vm)["code"] for vm in vms)
    summary = [{"code": _PROVISIONED["code"], "count": len(vms)}]
    summary += [{"code": code, "count": count} for code, count in sorted(powers.items())]
    return {"virtualMachine": {"statusesSummary": summary}, "statuses": [_PROVISIONED], "orchestrationServices": []}


def maintenance_status(events: Sequence[Event]) -> Json:
    """Platform maintenance that is pending: until it begins by itself, its owner may perform it. Empty: none is."""
    pending = [event for event in events if event.status is Status.SCHEDULED]
    if not pending:
        return {}
    begins = iso_date(min(event.not_before for event in pending))
    return {
        "isCustomerInitiatedMaintenanceAllowed": any(event.approved_at is None for event in pending),
        "preMaintenanceWindowStartTime": iso_date(min(event.published_at for event in pending)),
        "preMaintenanceWindowEndTime": begins,
        "maintenanceWindowStartTime": begins,
        "lastOperationResultCode": "None",
    }


def _power(vm: Vm) -> Json:
    return {"code": f"PowerState/{vm.power}", "level": "Info", "displayStatus": f"VM {vm.power}"}


def _hits(event: Event, vm: Vm) -> bool:
    wanted = vm.name.casefold()
    return any(name.casefold() == wanted for name in event.vms)
