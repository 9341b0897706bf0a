"""VMs and scale sets in the Python library, and the settings of scheduled events that it changes."""

from __future__ import annotations

from typing import Any

import pytest
from azure.mgmt.compute import models

from tests.support.web_service import WebService

pytestmark = pytest.mark.azure
GROUP = "shop"


def notice(minutes: int) -> models.ScheduledEventsProfile:
    timeout = f"PT{minutes}M"
    chosen = models.TerminateNotificationProfile(enable=True, not_before_timeout=timeout)
    return models.ScheduledEventsProfile(terminate_notification_profile=chosen)


def automatic() -> models.ScheduledEventsPolicy:
    return models.ScheduledEventsPolicy(
        user_initiated_reboot=models.UserInitiatedReboot(automatically_approve=True),
        user_initiated_redeploy=models.UserInitiatedRedeploy(automatically_approve=True),
    )


def test_every_vm_is_listed_however_many_pages_it_takes(compute: Any, console: WebService) -> None:
    fleet = console.service.api("GET", "/fleet").json["vms"]
    alone = {(vm["resource_group"], vm["name"]) for vm in fleet if vm["orchestration"] != "Uniform"}
    listed = {(vm.id.split("/")[4], vm.name) for vm in compute.virtual_machines.list_all()}
    assert listed == alone

    pages = [[vm.name for vm in page] for page in compute.virtual_machines.list("many").by_page()]
    assert len(pages) > 1
    assert sorted(name for page in pages for name in page) == sorted(f"many-{number}" for number in range(110))


def test_a_vm_has_the_settings_of_the_fleet_file(compute: Any, vm: str) -> None:
    shown = compute.virtual_machines.get(GROUP, vm)
    assert (shown.name, shown.location, shown.provisioning_state) == (vm, "westeurope", "Succeeded")
    assert shown.id.endswith(f"/resourceGroups/{GROUP}/providers/Microsoft.Compute/virtualMachines/{vm}")
    assert shown.vm_id


def test_the_instance_view_says_that_a_vm_runs(compute: Any, vm: str) -> None:
    codes = [status.code for status in compute.virtual_machines.instance_view(GROUP, vm).statuses]
    assert "PowerState/running" in codes
    expanded = compute.virtual_machines.get(GROUP, vm, expand="instanceView")
    assert [status.code for status in expanded.instance_view.statuses] == codes


def test_scale_sets_and_their_instances_are_listed(compute: Any) -> None:
    pages = [[found.name for found in page] for page in compute.virtual_machine_scale_sets.list(GROUP).by_page()]
    assert len(pages) > 1
    assert "policy" in {name for page in pages for name in page}
    instances = list(compute.virtual_machine_scale_set_vms.list(GROUP, "policy"))
    assert [(i.instance_id, i.name) for i in instances] == [("0", "policy_0"), ("1", "policy_1"), ("2", "policy_2")]


def test_a_delete_gives_notice_after_the_profile_enables_it(console: WebService, compute: Any, vm: str) -> None:
    changed = models.VirtualMachineUpdate(scheduled_events_profile=notice(10))
    updated = compute.virtual_machines.begin_update(GROUP, vm, changed).result(timeout=30)
    assert updated.scheduled_events_profile.terminate_notification_profile.not_before_timeout == "PT10M"

    poller = compute.virtual_machines.begin_delete(GROUP, vm)
    (event,) = console.events(vm)
    assert (event["EventType"], event["EventSource"], event["Resources"]) == ("Terminate", "User", [vm])
    poller.wait(1.5)
    assert not poller.done()

    console.approve_all(vm)
    console.service.advance(300)
    poller.result(timeout=30)
    assert vm not in {found.name for found in compute.virtual_machines.list(GROUP)}


def test_the_policy_of_a_vm_makes_its_restarts_need_no_approval(console: WebService, compute: Any, vm: str) -> None:
    changed = models.VirtualMachineUpdate(scheduled_events_policy=automatic())
    updated = compute.virtual_machines.begin_update(GROUP, vm, changed).result(timeout=30)
    assert updated.scheduled_events_policy.user_initiated_reboot.automatically_approve is True

    poller = compute.virtual_machines.begin_restart(GROUP, vm)
    assert console.scheduled_event_ids(vm) == []
    console.service.advance(300)
    poller.result(timeout=30)


def test_a_reimage_gives_notice_after_the_profile_enables_it(console: WebService, compute: Any, vm: str) -> None:
    """Spec §14.1."""
    chosen = models.OSImageNotificationProfile(enable=True, not_before_timeout="PT15M")
    profile = models.ScheduledEventsProfile(os_image_notification_profile=chosen)
    changed = models.VirtualMachineUpdate(scheduled_events_profile=profile)
    compute.virtual_machines.begin_update(GROUP, vm, changed).result(timeout=30)
    poller = compute.virtual_machines.begin_reimage(GROUP, vm)
    (event,) = console.events(vm)
    assert (event["EventType"], event["EventSource"]) == ("Reboot", "User")
    console.approve_all(vm)
    console.service.advance(300)
    poller.result(timeout=60)


def test_policy_leaves_the_last_running_vm_to_an_approval(console: WebService, compute: Any, vm: str) -> None:
    """Spec §14.2, §14.3."""
    policy = automatic()
    policy.all_instances_down = models.AllInstancesDown(automatically_approve=False)
    target = models.EventGridAndResourceGraph(enable=True, scheduled_events_api_version="2020-07-01")
    policy.scheduled_events_additional_publishing_targets = models.ScheduledEventsAdditionalPublishingTargets(
        event_grid_and_resource_graph=target
    )
    changed = models.VirtualMachineUpdate(scheduled_events_policy=policy)
    shown = compute.virtual_machines.begin_update(GROUP, vm, changed).result(timeout=30).scheduled_events_policy
    assert shown.all_instances_down.automatically_approve is False
    targets = shown.scheduled_events_additional_publishing_targets
    assert targets.event_grid_and_resource_graph.scheduled_events_api_version == "2020-07-01"
    poller = compute.virtual_machines.begin_restart(GROUP, vm)
    assert len(console.scheduled_event_ids(vm)) == 1
    console.approve_all(vm)
    console.service.advance(300)
    poller.result(timeout=60)


def test_a_whole_vm_is_put_back_with_another_tag_and_profile(compute: Any, vm: str) -> None:
    whole = compute.virtual_machines.get(GROUP, vm)
    whole.tags = {**(whole.tags or {}), "owner": "ann"}
    whole.scheduled_events_profile = notice(7)
    compute.virtual_machines.begin_create_or_update(GROUP, vm, whole).result(timeout=30)

    shown = compute.virtual_machines.get(GROUP, vm)
    assert shown.tags["owner"] == "ann"
    assert shown.scheduled_events_profile.terminate_notification_profile.not_before_timeout == "PT7M"


def test_the_profile_of_a_scale_set_is_that_of_its_instances(console: WebService, compute: Any) -> None:
    profile = models.VirtualMachineScaleSetUpdateVMProfile(scheduled_events_profile=notice(12))
    changed = models.VirtualMachineScaleSetUpdate(virtual_machine_profile=profile)
    compute.virtual_machine_scale_sets.begin_update(GROUP, "profile", changed).result(timeout=30)
    shown = compute.virtual_machine_scale_sets.get(GROUP, "profile").virtual_machine_profile.scheduled_events_profile
    assert shown.terminate_notification_profile.not_before_timeout == "PT12M"

    compute.virtual_machine_scale_set_vms.begin_delete(GROUP, "profile", "0")
    assert [(e["EventType"], e["Resources"]) for e in console.events("profile_1")] == [("Terminate", ["profile_0"])]


def test_the_policy_of_a_scale_set_is_changed(console: WebService, compute: Any) -> None:
    whole = compute.virtual_machine_scale_sets.get(GROUP, "policy")
    whole.scheduled_events_policy = automatic()
    compute.virtual_machine_scale_sets.begin_create_or_update(GROUP, "policy", whole).result(timeout=30)

    poller = compute.virtual_machine_scale_sets.begin_restart(GROUP, "policy")
    assert console.scheduled_event_ids("policy_0") == []
    console.service.advance(300)
    poller.result(timeout=30)
