"""Approval of events with the maintenance library, and the role that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.identity import ClientSecretCredential
from azure.mgmt.maintenance import MaintenanceManagementClient
from azure.mgmt.maintenance.models import ScheduledEventsIdList

from tests.support.web_service import SUBSCRIPTION, WebService

pytestmark = pytest.mark.azure
GROUP = "shop"


@pytest.fixture
def maintenance_of(
    console: WebService, enter: Callable[[dict[str, str]], None]
) -> Callable[..., MaintenanceManagementClient]:
    """A maintenance client, signed in as a client with one role over everything."""

    def given(role: str) -> MaintenanceManagementClient:
        enter(console.trusting_environment)
        credential = ClientSecretCredential("adfs", *console.new_client(role), authority=console.base_url)
        return MaintenanceManagementClient(credential, SUBSCRIPTION, base_url=console.base_url)

    return given


def test_an_event_is_approved_by_a_client_with_the_role(
    console: WebService, compute: Any, vm: str, maintenance_of: Callable[..., MaintenanceManagementClient]
) -> None:
    poller = compute.virtual_machines.begin_restart(GROUP, vm)
    (event_id,) = console.scheduled_event_ids(vm)
    with maintenance_of("ScheduledEventContributor") as maintenance:
        message = maintenance.scheduled_events.acknowledge(GROUP, "virtualMachines", vm, event_id)
    assert message.value == "Successfully Approved"
    assert console.scheduled_event_ids(vm) == []
    console.service.advance(300)
    poller.result(timeout=30)


def test_events_of_a_scale_set_are_approved_as_a_list(
    console: WebService, compute: Any, maintenance_of: Callable[..., MaintenanceManagementClient]
) -> None:
    poller = compute.virtual_machine_scale_sets.begin_restart(GROUP, "approved")
    listed = ScheduledEventsIdList(value=console.scheduled_event_ids("approved_0"))
    with maintenance_of("ScheduledEventContributor") as maintenance:
        message = maintenance.scheduled_events.acknowledge_list(GROUP, "virtualMachineScaleSets", "approved", listed)
    assert message.value == "Successfully Approved"
    assert not set(listed.value) & set(console.scheduled_event_ids("approved_0"))
    console.approve_until_over("approved_0", poller.done)


@pytest.mark.parametrize("role", ["Reader", "Operator", "Platform"])
def test_a_client_without_the_role_may_not_approve(
    console: WebService, compute: Any, vm: str, maintenance_of: Callable[..., MaintenanceManagementClient], role: str
) -> None:
    compute.virtual_machines.begin_restart(GROUP, vm)
    (event_id,) = console.scheduled_event_ids(vm)
    with maintenance_of(role) as maintenance, pytest.raises(HttpResponseError, match="AuthorizationFailed") as refused:
        maintenance.scheduled_events.acknowledge(GROUP, "virtualMachines", vm, event_id)
    assert refused.value.status_code == 403
    assert console.scheduled_event_ids(vm) == [event_id]


def test_a_reader_may_not_restart_a_vm(
    console: WebService, enter: Callable[[dict[str, str]], None], compute_of: Callable[..., Any], vm: str
) -> None:
    enter(console.trusting_environment)
    reader = ClientSecretCredential("adfs", *console.new_client("Reader"), authority=console.base_url)
    compute = compute_of(console, reader)
    assert compute.virtual_machines.get(GROUP, vm).name == vm
    with pytest.raises(HttpResponseError, match="AuthorizationFailed"):
        compute.virtual_machines.begin_restart(GROUP, vm)
    assert console.events(vm) == []
