"""Maintenance configurations and assignments in the ARM facade: created, changed, listed, refused, deleted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.core.access import Role
from tests.arm.conftest import COMPUTE, GROUP

PROVIDER = "providers/Microsoft.Maintenance"
NIGHTLY = f"{GROUP}/{PROVIDER}/maintenanceConfigurations/nightly"
OF_DB = f"{COMPUTE}/virtualMachines/db/{PROVIDER}/configurationAssignments/one"
OF_POOL = f"{COMPUTE}/virtualMachineScaleSets/pool/{PROVIDER}/configurationAssignments/one"
OF_INSTANCE = f"{COMPUTE}/virtualMachineScaleSets/pool/virtualMachines/1/{PROVIDER}/configurationAssignments/one"
OF_GROUP = f"{GROUP}/{PROVIDER}/configurationAssignments/one"
OF_SUBSCRIPTION = f"/subscriptions/sub/{PROVIDER}/configurationAssignments/one"
WINDOW = {
    "startDateTime": "2026-01-06 02:00",
    "duration": "03:00",
    "timeZone": "W. Europe Standard Time",
    "recurEvery": "Day",
}


def a_body(*, window: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    merged = {name: value for name, value in {**WINDOW, **(window or {})}.items() if value is not None}
    return {
        "location": "westeurope",
        "properties": {"maintenanceScope": "Host", "maintenanceWindow": merged, **properties},
    }


def an_assignment(**properties: Any) -> dict[str, Any]:
    return {"location": "westeurope", "properties": {"maintenanceConfigurationId": NIGHTLY, **properties}}


def test_a_configuration_is_created_shown_changed_and_deleted(arm: Any) -> None:
    created = arm.call("PUT", NIGHTLY, {**a_body(), "tags": {"team": "shop"}})
    assert created.status == 201
    shown = arm.get(
        NIGHTLY.replace("resourceGroups", "resourcegroups").upper().replace("/SUBSCRIPTIONS/SUB", "/subscriptions/sub")
    )
    assert shown == created.json
    assert shown == {
        "id": NIGHTLY,
        "name": "nightly",
        "type": "Microsoft.Maintenance/maintenanceConfigurations",
        "location": "westeurope",
        "tags": {"team": "shop"},
        "properties": {
            "namespace": "",
            "extensionProperties": {},
            "maintenanceScope": "Host",
            "visibility": "Custom",
            "maintenanceWindow": {**WINDOW, "expirationDateTime": "9999-12-31 23:59:59"},
        },
        "systemData": {
            "createdBy": "local user ann",
            "createdByType": "User",
            "createdAt": "2026-01-05T12:00:00Z",
            "lastModifiedBy": "local user ann",
            "lastModifiedByType": "User",
            "lastModifiedAt": "2026-01-05T12:00:00Z",
        },
    }
    changed = arm.call("PATCH", NIGHTLY, {"properties": {"maintenanceWindow": {"recurEvery": "Week Saturday"}}})
    assert changed.status == 200
    assert changed.json["properties"]["maintenanceWindow"]["recurEvery"] == "Week Saturday"
    assert changed.json["tags"] == {"team": "shop"}

    assert arm.call("DELETE", NIGHTLY).json == changed.json
    assert arm.call("DELETE", NIGHTLY).status == 204
    status, code, message = arm.refused("GET", NIGHTLY)
    assert (status, code) == (404, "ResourceNotFound")
    assert message == "maintenance configuration 'nightly' does not exist in resource group 'lab': create it"


def test_putting_back_what_a_get_shows_changes_nothing(arm: Any) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    arm.call("PUT", OF_DB, an_assignment())
    before = arm.stored()
    for resource in (NIGHTLY, OF_DB):
        assert arm.call("PUT", resource, arm.get(resource)).status == 200
    assert arm.stored() == before


def test_lists_show_the_configurations_of_a_group_or_subscription_that_the_caller_may_read(arm: Any) -> None:
    elsewhere = NIGHTLY.replace("/lab/", "/windows/")
    for resource in (NIGHTLY, elsewhere):  # the second group has no VM
        assert arm.call("PUT", resource, a_body()).status == 201
    of_group, of_subscription = f"{GROUP}/{PROVIDER}/maintenanceConfigurations", f"/subscriptions/sub/{PROVIDER}"
    assert [c["id"] for c in arm.get(of_group)["value"]] == [NIGHTLY]
    assert [c["id"] for c in arm.get(f"{of_subscription}/maintenanceConfigurations")["value"]] == [NIGHTLY, elsewhere]
    reader = arm.holding(Role.READER, GROUP)
    assert [c["id"] for c in reader.get(f"{of_subscription}/maintenanceConfigurations")["value"]] == [NIGHTLY]
    assert arm.get(f"{of_subscription}/publicMaintenanceConfigurations") == {"value": []}
    assert arm.refused("GET", f"{of_subscription}/publicMaintenanceConfigurations/x")[0] == 404


@pytest.mark.parametrize("scope", ["OSImage", "InGuestPatch"])
def test_scopes_of_work_that_never_happens_here_are_kept(arm: Any, scope: str) -> None:
    body = a_body(
        window={"duration": None}, maintenanceScope=scope, installPatches={"rebootSetting": "IfRequired"},
        extensionProperties={"InGuestPatchMode": "User"},
    )  # fmt: skip
    shown = arm.call("PUT", NIGHTLY, body).json["properties"]
    assert shown["maintenanceScope"] == scope
    assert shown["installPatches"] == {"rebootSetting": "IfRequired"}
    assert shown["extensionProperties"] == {"InGuestPatchMode": "User"}
    assert shown["maintenanceWindow"]["duration"] == {"OSImage": "05:00", "InGuestPatch": "03:55"}[scope]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "location is missing"),
        ({"location": "westeurope"}, "properties.maintenanceScope is missing: give one of Host, OSImage, InGuestPatch"),
        (a_body(maintenanceScope="SQLDB"), "maintenanceScope 'SQLDB' has no meaning for the VMs of this service"),
        (a_body(maintenanceScope="Extension"), "maintenanceScope 'Extension' has no meaning"),
        (a_body(maintenanceScope="Moon"), "maintenanceScope 'Moon' is not known"),
        (a_body(maintenanceWindow=None), "properties.maintenanceWindow needs startDateTime and timeZone"),
        (a_body(visibility="Public"), "visibility 'Public' is not possible"),
        (a_body(window={"timeZone": "Europe/Berlin"}), "the time zone 'Europe/Berlin' is not a name that Windows"),
        (a_body(window={"recurEvery": "Hourly"}), "recurEvery 'Hourly' is not a recurrence"),
        (a_body(window={"duration": "01:00"}), "duration '01:00' is not possible for scope Host"),
        (a_body(window={"startDateTime": "2026-01-04 23:00"}), "startDateTime '2026-01-04 23:00' is in the past"),
        (a_body(window={"recurEvry": "Day"}), "recurEvry"),
        (a_body(colour="red"), "colour"),
        ({**a_body(), "tags": {"a": 1}}, "tags."),
    ],
)
def test_a_bad_configuration_is_refused_with_a_sentence(arm: Any, body: dict[str, Any], message: str) -> None:
    status, code, told = arm.refused("PUT", NIGHTLY, body)
    assert (status, code) == (400, "InvalidParameter")
    assert message in told


def test_a_start_in_the_past_stays_when_other_members_change(arm: Any) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    arm.world.advance(30 * 86_400)
    assert arm.call("PATCH", NIGHTLY, {"properties": {"maintenanceWindow": {"duration": "04:00"}}}).status == 200


def test_a_configuration_needs_a_known_subscription_and_a_usable_name(arm: Any) -> None:
    assert arm.refused("PUT", NIGHTLY.replace("/sub/", "/nowhere/"), a_body())[1] == "SubscriptionNotFound"
    assert "is not possible" in arm.refused("PUT", f"{NIGHTLY}%20x", a_body())[2]


@pytest.mark.parametrize("resource", [OF_DB, OF_POOL, OF_INSTANCE, OF_GROUP, OF_SUBSCRIPTION])
def test_an_assignment_is_created_shown_and_deleted(arm: Any, resource: str) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    target = resource.partition(f"/{PROVIDER}")[0]
    created = arm.call("PUT", resource, an_assignment(resourceId=target))
    assert created.status == 201
    assert arm.get(resource) == created.json
    assert created.json["properties"] == {"maintenanceConfigurationId": NIGHTLY, "resourceId": target}
    assert (created.json["type"], created.json["name"]) == ("Microsoft.Maintenance/configurationAssignments", "one")
    assert arm.call("PUT", resource, an_assignment()).status == 200
    if "Microsoft.Compute" in resource:
        assert arm.get(resource.rpartition("/")[0]) == {"value": [created.json]}
    assert arm.get(f"/subscriptions/sub/{PROVIDER}/configurationAssignments") == {"value": [created.json]}
    assert arm.call("DELETE", resource).json == created.json
    assert arm.call("DELETE", resource).status == 204
    assert arm.refused("GET", resource)[:2] == (404, "ResourceNotFound")


@pytest.mark.parametrize("resource", [OF_GROUP, OF_SUBSCRIPTION])
def test_a_filter_is_kept_and_changed(arm: Any, resource: str) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    condition = {
        "resourceTypes": ["Microsoft.Compute/virtualMachines"],
        "resourceGroups": ["lab"],
        "osTypes": ["Linux"],
        "locations": ["westeurope"],
        "tagSettings": {"tags": {"team": ["shop", "web"]}, "filterOperator": "All"},
    }
    assert arm.call("PUT", resource, an_assignment(filter=condition)).json["properties"]["filter"] == condition
    changed = arm.call("PATCH", resource, {"properties": {"filter": {"osTypes": ["Windows"]}}})
    assert changed.status == 200
    assert changed.json["properties"]["filter"] == {**condition, "osTypes": ["Windows"]}


@pytest.mark.parametrize(
    ("resource", "body", "message"),
    [
        (OF_DB, {}, "properties.maintenanceConfigurationId '' is not the id of a configuration"),
        (OF_DB, an_assignment(maintenanceConfigurationId="/x"), "is not the id of a configuration"),
        (OF_DB, an_assignment(maintenanceConfigurationId=f"{NIGHTLY}x"), "does not exist: create it first"),
        (OF_DB, an_assignment(resourceId=COMPUTE), "properties.resourceId is another resource than the path's"),
        (OF_DB, an_assignment(filter={}), "properties.filter is for resource groups and subscriptions"),
        (OF_GROUP, an_assignment(filter={"osTypes": ["BeOS"]}), "osTypes names 'BeOS': give Linux or Windows"),
        (OF_GROUP, an_assignment(filter={"resourceTypes": ["Moon/base"]}), "resourceTypes names 'Moon/base'"),
        (OF_GROUP, an_assignment(filter={"tagSettings": {"filterOperator": "None"}}), "give Any or All"),
        (OF_GROUP, an_assignment(filter={"locations": ["x"] * 101}), "more than 100 values"),
        (OF_GROUP, an_assignment(filter={"colour": []}), "colour"),
        (OF_DB.replace("/db/", "/nobody/"), an_assignment(), "VM 'nobody' does not exist"),
        (OF_POOL.replace("/pool/", "/nobody/"), an_assignment(), "scale set 'nobody' does not exist"),
        (OF_GROUP.replace("/lab/", "/none/"), an_assignment(), "resource group 'none' has no VM"),
        (OF_SUBSCRIPTION.replace("/sub/", "/none/"), an_assignment(), "subscription 'none' does not exist"),
    ],
)
def test_a_bad_assignment_is_refused_with_a_sentence(arm: Any, resource: str, body: Any, message: str) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    status, _, told = arm.refused("PUT", resource, body)
    assert status in (400, 404)
    assert message in told


def test_deleting_a_configuration_deletes_its_assignments(arm: Any) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    for resource in (OF_DB, OF_GROUP):
        arm.call("PUT", resource, an_assignment())
    arm.call("DELETE", NIGHTLY)
    assert arm.get(f"/subscriptions/sub/{PROVIDER}/configurationAssignments") == {"value": []}


def test_an_assignment_needs_a_right_over_the_target_and_one_over_the_configuration(arm: Any) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    over_vm = arm.holding(Role.OPERATOR, f"{COMPUTE}/virtualMachines/db")
    assert over_vm.refused("PUT", OF_DB, an_assignment())[:2] == (403, "AuthorizationFailed")
    reader = arm.holding(Role.READER, GROUP)
    assert reader.refused("PUT", OF_DB, an_assignment())[:2] == (403, "AuthorizationFailed")
    assert arm.holding(Role.OPERATOR, GROUP).call("PUT", OF_DB, an_assignment()).status == 201


def test_the_history_has_an_entry_for_each_change(arm: Any) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    arm.call("PUT", OF_DB, an_assignment())
    arm.call("DELETE", OF_DB)
    texts = [entry.text for entry in arm.world.store.history()][-3:]
    assert texts == [
        f"maintenance configuration nightly was added: 02:00 3h Europe/Berlin from 2026-01-06 ({NIGHTLY})",
        f"maintenance configuration nightly was assigned to {COMPUTE}/virtualMachines/db (one)",
        f"the assignment one of a maintenance configuration to {COMPUTE}/virtualMachines/db was removed",
    ]


def test_a_restart_of_the_service_keeps_configurations_and_assignments(arm: Any) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    arm.call("PUT", OF_DB, an_assignment())
    before = (arm.world.store.configurations(), arm.world.store.assignments())
    arm.world.restart()
    assert (arm.world.store.configurations(), arm.world.store.assignments()) == before


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10) | st.sampled_from(["Host", "Day", "UTC", NIGHTLY]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["location", "properties", "maintenanceScope", "maintenanceWindow", "recurEvery", "filter"])
            | st.text(max_size=5),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(body=JUNK, resource=st.sampled_from([NIGHTLY, OF_DB, OF_GROUP]), method=st.sampled_from(["PUT", "PATCH"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_generated_body_is_accepted_or_refused_as_a_whole(arm: Any, body: Any, resource: str, method: str) -> None:
    before = arm.stored()
    answer = arm.call(method, resource, body)
    assert answer.status in (200, 201, 400, 404, 405), answer.content
    if answer.status >= 400:
        assert arm.stored() == before
        assert answer.error[2]
