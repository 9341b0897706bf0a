"""Scale sets with flexible orchestration with the Python library, unchanged (spec §14.5)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.mgmt.compute import models

from tests.support.web_service import WebService

pytestmark = pytest.mark.azure
GROUP = "shop"


def members(compute: Any, name: str) -> list[Any]:
    """The VMs of a flexible set, as Kubernetes' cloud provider lists them."""
    scale_set = compute.virtual_machine_scale_sets.get(GROUP, name)
    chosen = f"'virtualMachineScaleSet/id' eq '{scale_set.id}'"
    return list(compute.virtual_machines.list(GROUP, filter=chosen))


def test_a_flexible_set_and_its_vms_are_read(compute: Any) -> None:
    shown = compute.virtual_machine_scale_sets.get(GROUP, "flex")
    assert (shown.orchestration_mode, shown.sku.capacity) == ("Flexible", 2)
    assert compute.virtual_machine_scale_sets.get(GROUP, "more").orchestration_mode == "Uniform"
    found = members(compute, "flex")
    assert all(re.fullmatch("flex_[0-9a-f]{8}", vm.name) for vm in found)
    assert {vm.virtual_machine_scale_set.id for vm in found} == {shown.id}
    assert {vm.name for vm in found} <= {vm.name for vm in compute.virtual_machines.list_all()}
    listed = list(compute.virtual_machine_scale_set_vms.list(GROUP, "flex"))
    assert [(one.instance_id, one.id) for one in listed] == [(vm.name, vm.id) for vm in found]
    view = compute.virtual_machines.instance_view(GROUP, found[0].name)
    assert [status.code for status in view.statuses] == ["ProvisioningState/succeeded", "PowerState/running"]


def test_a_vm_of_a_flexible_set_is_restarted_and_its_neighbour_sees_the_event(
    console: WebService, compute: Any
) -> None:
    first, second = (vm.name for vm in members(compute, "flex"))
    poller = compute.virtual_machines.begin_restart(GROUP, first)
    assert [(e["EventType"], e["Resources"]) for e in console.events(second)] == [("Reboot", [first])]
    console.approve_until_over(second, poller.done)
    assert poller.status() == "Succeeded"


@pytest.mark.parametrize("call", ["begin_restart", "begin_redeploy", "begin_power_off", "get_instance_view"])
def test_operations_of_uniform_sets_are_refused_for_a_flexible_set(compute: Any, call: str) -> None:
    with pytest.raises(HttpResponseError) as caught:
        getattr(compute.virtual_machine_scale_sets, call)(GROUP, "flex")
    assert (caught.value.status_code, caught.value.error.code) == (400, "BadRequest")
    assert "is not allowed on Virtual Machine Scale Set 'flex'" in caught.value.message


def test_the_settings_of_a_flexible_set_are_updated_and_its_vms_deleted_by_name(compute: Any) -> None:
    sets = compute.virtual_machine_scale_sets
    shown = sets.begin_update(GROUP, "flex-gone", models.VirtualMachineScaleSetUpdate(tags={"team": "gpu"})).result()
    assert shown.tags == {"team": "gpu"}
    first, second = (vm.name for vm in members(compute, "flex-gone"))
    chosen = models.VirtualMachineScaleSetVMInstanceRequiredIDs(instance_ids=[first])
    sets.begin_delete_instances(GROUP, "flex-gone", chosen).result(timeout=60)
    assert [vm.name for vm in members(compute, "flex-gone")] == [second]
    sets.begin_delete(GROUP, "flex-gone").result(timeout=60)
    assert "flex-gone" not in {one.name for one in sets.list(GROUP)}
