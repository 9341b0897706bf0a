"""Maintenance configurations through `az rest`, and the newer settings of scheduled events through az's own options.

The extension `maintenance` of az sends the same requests; it is not part of az and has to be fetched from Microsoft.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.azure.az_client import AZ, COMPUTE, Az, json_of
from tests.support.service_process import eventually
from tests.support.web_service import SUBSCRIPTION, WebService

pytestmark = [pytest.mark.az, pytest.mark.skipif(not AZ.exists(), reason="az was not fetched: `make test-az` does")]
API = "api-version=2023-10-01-preview"
MAINTENANCE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/shop/providers/Microsoft.Maintenance"
START = f"{datetime.now(UTC) + timedelta(days=2):%Y-%m-%d} 02:00"


def rest(az: Az, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    content = ("-b", json.dumps(body)) if body is not None else ()
    return json_of(az("rest", "-m", method, "-u", f"{path}?{API}", *content))


def test_a_configuration_is_created_assigned_and_deleted_with_az_rest(az: Az, vm: str) -> None:
    path = f"{MAINTENANCE}/maintenanceConfigurations/az-weekly"
    window = {"startDateTime": START, "duration": "05:00", "timeZone": "UTC", "recurEvery": "Week Saturday"}
    body = {"location": "westeurope", "properties": {"maintenanceScope": "Host", "maintenanceWindow": window}}
    created = rest(az, "put", path, body)
    assert created["properties"]["maintenanceWindow"]["recurEvery"] == "Week Saturday"
    at_vm = f"{COMPUTE}/virtualMachines/{vm}/providers/Microsoft.Maintenance/configurationAssignments"
    rest(az, "put", f"{at_vm}/first", {"properties": {"maintenanceConfigurationId": created["id"]}})
    (found,) = rest(az, "get", at_vm)["value"]
    assert found["properties"]["maintenanceConfigurationId"] == created["id"]
    rest(az, "delete", f"{at_vm}/first")
    rest(az, "delete", path)
    answer = az("rest", "-m", "get", "-u", f"{path}?{API}")
    assert answer.returncode != 0
    assert "'az-weekly' does not exist" in answer.stderr


def test_a_pending_update_is_listed_and_applied_with_az_rest(console: WebService, az: Az, vm: str) -> None:
    at_vm = f"{COMPUTE}/virtualMachines/{vm}/providers/Microsoft.Maintenance"
    assert rest(az, "get", f"{at_vm}/updates")["value"] == []
    assert console.service.api("POST", "/rollouts", {"impact": "update", "scope": vm}).status == 202
    eventually(lambda: len(console.scheduled_event_ids(vm)) == 1)
    (update,) = rest(az, "get", f"{at_vm}/updates")["value"]
    assert (update["maintenanceScope"], update["impactType"], update["status"]) == ("Host", "Freeze", "Pending")
    applied = rest(az, "put", f"{at_vm}/applyUpdates/default")
    assert applied["properties"]["resourceId"].endswith(f"/virtualMachines/{vm}")
    eventually(lambda: [event["EventStatus"] for event in console.events(vm)] == ["Started"])
    console.service.advance(300)
    assert rest(az, "get", f"{at_vm}/applyUpdates/{applied['name']}")["properties"]["status"] == "Completed"


def test_settings_of_scheduled_events_are_changed_with_the_options_of_az(az: Az, vm: str) -> None:
    """Spec §14.1, §14.2, §14.3."""
    options = ("--additional-scheduled-events", "true", "--scheduled-events-api-version", "2020-07-01")
    json_of(az("vm", "update", "-g", "shop", "-n", vm, "--enable-all-instance-down", "false", *options))
    policy = json_of(az("vm", "show", "-g", "shop", "-n", vm))["scheduledEventsPolicy"]
    assert policy["allInstancesDown"] == {"automaticallyApprove": False}
    targets = policy["scheduledEventsAdditionalPublishingTargets"]["eventGridAndResourceGraph"]
    assert targets == {"enable": True, "scheduledEventsApiVersion": "2020-07-01"}
    json_of(az("vmss", "update", "-g", "shop", "-n", "az-image", "--enable-osimage-notification", "true"))
    shown = json_of(az("vmss", "show", "-g", "shop", "-n", "az-image"))
    profile = shown["virtualMachineProfile"]["scheduledEventsProfile"]["osImageNotificationProfile"]
    assert profile == {"enable": True, "notBeforeTimeout": "PT15M"}
