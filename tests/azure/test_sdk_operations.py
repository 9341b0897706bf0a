"""User operations with the Python library: each becomes an event, and is over when the event is."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.mgmt.compute.models import VirtualMachineScaleSetVMInstanceIDs, VirtualMachineScaleSetVMInstanceRequiredIDs

from tests.support.service_process import eventually
from tests.support.web_service import WebService

pytestmark = pytest.mark.azure
GROUP = "shop"


def kinds(console: WebService, vm: str) -> list[tuple[str, str, str]]:
    return [(e["EventType"], e["EventSource"], e["EventStatus"]) for e in console.events(vm)]


@pytest.mark.parametrize(("action", "kind"), [("begin_restart", "Reboot"), ("begin_redeploy", "Redeploy")])
def test_an_operation_lasts_until_its_event_is_over(
    console: WebService, compute: Any, vm: str, action: str, kind: str
) -> None:
    poller = getattr(compute.virtual_machines, action)(GROUP, vm)
    assert kinds(console, vm) == [(kind, "User", "Scheduled")]
    assert console.events(vm)[0]["Resources"] == [vm]
    poller.wait(1.5)  # at least two polls
    assert not poller.done()

    console.approve_all(vm)
    eventually(lambda: kinds(console, vm) == [(kind, "User", "Started")])
    poller.wait(1.5)
    assert not poller.done()

    console.service.advance(300)
    poller.result(timeout=10)  # without Retry-After a client waits for 30 s
    assert poller.status() == "Succeeded"
    assert console.events(vm) == []


def test_names_are_matched_without_case(console: WebService, compute: Any, vm: str) -> None:
    poller = compute.virtual_machines.begin_restart(GROUP.upper(), vm.upper())
    console.approve_until_over(vm, poller.done)
    assert poller.status() == "Succeeded"


def test_an_operation_that_needs_no_approval_starts_at_once(console: WebService, compute: Any, easy_vm: str) -> None:
    poller = compute.virtual_machines.begin_restart(GROUP, easy_vm)
    eventually(lambda: "Scheduled" not in {status for _, _, status in kinds(console, easy_vm)})
    console.service.advance(300)
    poller.result(timeout=30)
    assert poller.status() == "Succeeded"


def test_two_instances_of_a_scale_set_are_restarted(console: WebService, compute: Any) -> None:
    chosen = VirtualMachineScaleSetVMInstanceIDs(instance_ids=["0", "2"])
    poller = compute.virtual_machine_scale_sets.begin_restart(GROUP, "pair", chosen)
    named = {name for event in console.events("pair_1") for name in event["Resources"]}
    assert named == {"pair_0", "pair_2"}

    console.approve_until_over("pair_1", poller.done)
    assert poller.status() == "Succeeded"


@pytest.mark.parametrize("action", ["begin_restart", "begin_redeploy"])
def test_a_restart_without_a_body_covers_every_instance(console: WebService, compute: Any, action: str) -> None:
    poller = getattr(compute.virtual_machine_scale_sets, action)(GROUP, "whole")
    named = {name for event in console.events("whole_0") for name in event["Resources"]}
    assert named == {"whole_0", "whole_1", "whole_2"}

    console.approve_until_over("whole_0", poller.done)
    assert poller.status() == "Succeeded"


def test_one_instance_is_restarted_by_its_own_route(console: WebService, compute: Any) -> None:
    poller = compute.virtual_machine_scale_set_vms.begin_restart(GROUP, "lone", "1")
    assert [event["Resources"] for event in console.events("lone_0")] == [["lone_1"]]
    console.approve_until_over("lone_0", poller.done)
    assert poller.status() == "Succeeded"


def test_an_eviction_is_simulated_for_a_spot_vm(console: WebService, compute: Any, spot_vm: str) -> None:
    assert compute.virtual_machines.simulate_eviction(GROUP, spot_vm) is None
    assert kinds(console, spot_vm) == [("Preempt", "Platform", "Scheduled")]


def test_instances_are_deleted(console: WebService, compute: Any) -> None:
    chosen = VirtualMachineScaleSetVMInstanceRequiredIDs(instance_ids=["2"])
    poller = compute.virtual_machine_scale_sets.begin_delete_instances(GROUP, "gone", chosen)
    console.approve_until_over("gone_0", poller.done)
    assert poller.status() == "Succeeded"
    left = compute.virtual_machine_scale_set_vms.list(GROUP, "gone")
    assert sorted(instance.instance_id for instance in left) == ["0", "1"]


def test_pending_maintenance_is_performed_now(console: WebService, compute: Any) -> None:
    asked = console.service.forewarn("rollout", "start", "--host", "north-0", "--impact", "reboot", "--no-wait")
    assert asked.returncode == 0, asked.stderr
    eventually(lambda: kinds(console, "north") == [("Reboot", "Platform", "Scheduled")])

    poller = compute.virtual_machines.begin_perform_maintenance(GROUP, "north")
    eventually(lambda: kinds(console, "north") == [("Reboot", "Platform", "Started")])
    assert not poller.done()
    console.service.advance(300)
    poller.result(timeout=30)
    assert poller.status() == "Succeeded"


def test_a_vm_that_does_not_exist_is_not_found(compute: Any) -> None:
    with pytest.raises(ResourceNotFoundError, match="nobody"):
        compute.virtual_machines.begin_restart(GROUP, "nobody")
