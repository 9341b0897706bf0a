"""Maintenance configurations with Azure's library for Python: every method of it is called here or for approvals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.maintenance.models import (
    ApplyUpdate,
    ApplyUpdateProperties,
    ConfigurationAssignment,
    ConfigurationAssignmentFilterProperties,
    ConfigurationAssignmentProperties,
    MaintenanceConfiguration,
    MaintenanceConfigurationProperties,
    MaintenanceWindow,
    TagSettingsProperties,
)

from tests.support.markdown_pages import ROOT, blocks
from tests.support.service_process import eventually
from tests.support.web_service import SUBSCRIPTION, WebService

pytestmark = pytest.mark.azure
GROUP = "shop"
COMPUTE = "Microsoft.Compute"
START = f"{datetime.now(UTC) + timedelta(days=2):%Y-%m-%d} 02:00"


def a_configuration(scope: str = "Host", **window: str) -> MaintenanceConfiguration:
    words = {"start_date_time": START, "duration": "05:00", "time_zone": "Pacific Standard Time", **window}
    properties = MaintenanceConfigurationProperties(
        maintenance_scope=scope, maintenance_window=MaintenanceWindow(recur_every="Week Saturday", **words)
    )
    return MaintenanceConfiguration(location="westeurope", tags={"team": "shop"}, properties=properties)


def an_assignment(configuration: Any, **condition: Any) -> ConfigurationAssignment:
    properties = ConfigurationAssignmentProperties(maintenance_configuration_id=configuration.id)
    if condition:
        properties.filter = ConfigurationAssignmentFilterProperties(**condition)
    return ConfigurationAssignment(location="westeurope", properties=properties)


def test_a_configuration_is_created_changed_listed_and_deleted(maintenance: Any) -> None:
    of = maintenance.maintenance_configurations
    created = of.create_or_update(GROUP, "weekly", a_configuration())
    assert created.id.endswith("/providers/Microsoft.Maintenance/maintenanceConfigurations/weekly")
    assert created.properties.maintenance_scope == "Host"
    assert created.properties.maintenance_window.time_zone == "Pacific Standard Time"
    assert created.system_data.created_at <= datetime.now(UTC) + timedelta(days=30)

    window = MaintenanceWindow(recur_every="Month Third Sunday Offset2")
    change = MaintenanceConfiguration(properties=MaintenanceConfigurationProperties(maintenance_window=window))
    changed = of.update(GROUP, "weekly", change)
    assert changed.properties.maintenance_window.recur_every == "Month Third Sunday Offset2"
    assert changed.tags == {"team": "shop"}
    assert of.get(GROUP, "weekly").properties == changed.properties
    assert "weekly" in [found.name for found in of.list()]
    assert "weekly" in [found.name for found in maintenance.maintenance_configurations_for_resource_group.list(GROUP)]
    of.delete(GROUP, "weekly")
    of.delete(GROUP, "weekly")
    with pytest.raises(ResourceNotFoundError, match="'weekly' does not exist"):
        of.get(GROUP, "weekly")


@pytest.mark.parametrize("scope", ["OSImage", "InGuestPatch"])
def test_scopes_without_work_here_are_kept(maintenance: Any, scope: str) -> None:
    of = maintenance.maintenance_configurations
    duration = "05:00" if scope == "OSImage" else "03:00"
    assert (
        of.create_or_update(GROUP, scope, a_configuration(scope, duration=duration)).properties.visibility == "Custom"
    )


@pytest.mark.parametrize("scope", ["Resource", "Extension", "SQLDB", "SQLManagedInstance"])
def test_other_scopes_are_refused_by_name(maintenance: Any, scope: str) -> None:
    with pytest.raises(HttpResponseError, match=f"maintenanceScope '{scope}' has no meaning") as refused:
        maintenance.maintenance_configurations.create_or_update(GROUP, "refused", a_configuration(scope))
    assert (refused.value.status_code, refused.value.error.code) == (400, "InvalidParameter")


def test_there_are_no_public_configurations(maintenance: Any) -> None:
    assert list(maintenance.public_maintenance_configurations.list()) == []
    with pytest.raises(ResourceNotFoundError):
        maintenance.public_maintenance_configurations.get("x")


@pytest.mark.parametrize(
    "place", [(COMPUTE, "virtualMachines", "web-39"), (COMPUTE, "virtualMachineScaleSets", "more")], ids=["vm", "set"]
)
def test_a_configuration_is_assigned_to_a_resource(maintenance: Any, place: tuple[str, str, str]) -> None:
    configuration = maintenance.maintenance_configurations.create_or_update(GROUP, "assigned", a_configuration())
    of = maintenance.configuration_assignments
    created = of.create_or_update(GROUP, *place, "first", an_assignment(configuration))
    assert created.properties.maintenance_configuration_id == configuration.id
    assert created.properties.resource_id.endswith("/".join(place))
    assert of.get(GROUP, *place, "first").id == created.id
    assert [found.id for found in of.list(GROUP, *place)] == [created.id]
    assert created.id in [found.id for found in maintenance.configuration_assignments_within_subscription.list()]
    assert of.delete(GROUP, *place, "first").id == created.id
    assert list(of.list(GROUP, *place)) == []


def test_a_configuration_is_assigned_to_an_instance_of_a_scale_set(maintenance: Any) -> None:
    configuration = maintenance.maintenance_configurations.create_or_update(GROUP, "instance", a_configuration())
    place = (COMPUTE, "virtualMachineScaleSets", "more", "virtualMachines", "1")
    of = maintenance.configuration_assignments
    created = of.create_or_update_parent(GROUP, *place, "first", an_assignment(configuration))
    assert of.get_parent(GROUP, *place, "first").id == created.id
    assert [found.id for found in of.list_parent(GROUP, *place)] == [created.id]
    of.delete_parent(GROUP, *place, "first")
    with pytest.raises(ResourceNotFoundError):
        of.get_parent(GROUP, *place, "first")


def test_a_configuration_is_assigned_to_a_resource_group_and_to_a_subscription(maintenance: Any) -> None:
    configuration = maintenance.maintenance_configurations.create_or_update(GROUP, "filtered", a_configuration())
    tags = TagSettingsProperties(tags={"stage": ["none"]}, filter_operator="All")
    condition = {"locations": ["northeurope"], "os_types": ["Windows"], "tag_settings": tags}
    for of, place in (
        (maintenance.configuration_assignments_for_resource_group, (GROUP,)),
        (maintenance.configuration_assignments_for_subscriptions, ()),
    ):
        created = of.create_or_update(*place, "first", an_assignment(configuration, **condition))
        assert created.properties.filter.tag_settings.tags == {"stage": ["none"]}
        changed = of.update(*place, "first", an_assignment(configuration, os_types=["Linux"]))
        assert changed.properties.filter.os_types == ["Linux"]
        assert changed.properties.filter.locations == ["northeurope"]
        assert of.get(*place, "first").properties.filter == changed.properties.filter
        of.delete(*place, "first")
        with pytest.raises(ResourceNotFoundError):
            of.get(*place, "first")


def test_an_unknown_configuration_cannot_be_assigned(maintenance: Any) -> None:
    unknown = MaintenanceConfiguration()
    unknown["id"] = (
        f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
        "/providers/Microsoft.Maintenance/maintenanceConfigurations/none"
    )
    with pytest.raises(ResourceNotFoundError, match="create it first"):
        maintenance.configuration_assignments.create_or_update(
            GROUP, COMPUTE, "virtualMachines", "web-39", "first", an_assignment(unknown)
        )


def kinds(console: WebService, vm: str) -> list[tuple[str, str]]:
    return [(event["EventType"], event["EventStatus"]) for event in console.events(vm)]


def start_rollout(console: WebService, vm: str) -> datetime:
    """Starts a rollout over the VM alone; returns the NotBefore of its event."""
    shown = console.service.api("POST", "/rollouts", {"impact": "reboot", "scope": vm})
    assert shown
    eventually(lambda: kinds(console, vm) == [("Reboot", "Scheduled")])
    return parsedate_to_datetime(console.events(vm)[0]["NotBefore"])


def test_a_platform_event_starts_in_the_window_of_its_configuration(
    console: WebService, maintenance: Any, vm: str
) -> None:
    configuration = maintenance.maintenance_configurations.create_or_update(
        GROUP, "effective", a_configuration(time_zone="UTC", start_date_time=START)
    )
    maintenance.configuration_assignments.create_or_update(
        GROUP, COMPUTE, "virtualMachines", vm, "first", an_assignment(configuration)
    )
    not_before = start_rollout(console, vm)
    assert (not_before.weekday(), not_before.hour) == (5, 2)


def test_the_program_of_the_page_runs(console: WebService, enter: Any) -> None:
    """docs/how-to/maintenance-configurations.md, with the names of this lab."""
    from azure.identity import ClientSecretCredential

    enter(console.trusting_environment)
    page = ROOT / "docs" / "how-to" / "maintenance-configurations.md"
    with ClientSecretCredential("adfs", *console.admin_credentials, authority=console.base_url) as credential:
        names = {"credential": credential, "subscription": SUBSCRIPTION, "lab": console.base_url}
        for block in blocks(page):
            exec(block.text.replace('"lab"', f'"{GROUP}"').replace('"web-0"', '"web-38"'), names)  # noqa: S102
        assigned = {found.name for found in names["maintenance"].configuration_assignments_within_subscription.list()}
        assert {"weekend", "databases"} <= assigned
        names["maintenance"].maintenance_configurations.delete(GROUP, "weekend")
        names["maintenance"].close()


def test_pending_updates_are_listed_and_applied(console: WebService, maintenance: Any, vm: str) -> None:
    place = (GROUP, COMPUTE, "virtualMachines", vm)
    assert list(maintenance.updates.list(*place)) == []
    not_before = start_rollout(console, vm)
    (update,) = maintenance.updates.list(*place)
    assert (update.impact_type, update.status, update.maintenance_scope) == ("Restart", "Pending", "Host")
    assert update.not_before == not_before

    applied = maintenance.apply_updates.create_or_update(*place)
    assert applied.properties.status in ("Pending", "InProgress")
    eventually(lambda: kinds(console, vm) == [("Reboot", "Started")])
    console.service.advance(300)
    assert maintenance.apply_updates.get(*place, applied.name).properties.status == "Completed"
    assert applied.id in [found.id for found in maintenance.apply_updates.list()]
    assert applied.id in [found.id for found in maintenance.apply_update_for_resource_group.list(GROUP)]
    assert maintenance.apply_updates.create_or_update(*place).properties.status == "NoUpdatesPending"


def test_updates_of_an_instance_are_listed_and_applied(console: WebService, maintenance: Any) -> None:
    place = (GROUP, COMPUTE, "virtualMachineScaleSets", "more", "virtualMachines", "0")
    assert console.service.api("POST", "/rollouts", {"impact": "update", "scope": "more"})
    eventually(lambda: len(list(maintenance.updates.list_parent(*place))) == 1)
    applied = maintenance.apply_updates.create_or_update_parent(*place)
    assert applied.properties.resource_id.endswith("/virtualMachineScaleSets/more/virtualMachines/0")
    console.service.advance(3600)
    assert maintenance.apply_updates.get_parent(*place, applied.name).properties.status == "Completed"


def test_a_run_of_a_configuration_is_canceled(maintenance: Any) -> None:
    maintenance.maintenance_configurations.create_or_update(GROUP, "daily", a_configuration(time_zone="UTC"))
    place = (GROUP, "Microsoft.Maintenance", "maintenanceConfigurations", "daily")
    first = datetime.fromisoformat(START)
    first += timedelta(days=(5 - first.weekday()) % 7)  # the next Saturday
    cancel = ApplyUpdate(properties=ApplyUpdateProperties(status="Cancel"))
    name = f"{first:%Y%m%d%H%M%S}"
    canceled = maintenance.apply_updates.create_or_update_or_cancel(*place, name, cancel)
    assert canceled.properties.status == "Cancelled"
    assert maintenance.apply_updates.get(*place, name).properties.status == "Cancelled"


def test_the_operations_of_the_provider_are_listed(maintenance: Any) -> None:
    assert "Microsoft.Maintenance/updates/read" in [operation.name for operation in maintenance.operations.list()]
