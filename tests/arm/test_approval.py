"""Approval of events through the ARM facade: of one event or several, and by whom."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.control.fleet import FleetChange
from forewarn.core.access import Role
from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import Event, EventState
from forewarn.core.history import EntryKind
from forewarn.core.request import RequestedOperation
from tests.support.world import a_vm

GROUP = "/subscriptions/sub/resourceGroups/lab"
COMPUTE = f"{GROUP}/providers/Microsoft.Compute"
DB, POOL = f"{COMPUTE}/virtualMachines/db", f"{COMPUTE}/virtualMachineScaleSets/pool"
WEB_SET, WEB_2 = f"{COMPUTE}/availabilitySets/web", f"{COMPUTE}/virtualMachines/web-2"
EVENTS = "providers/Microsoft.Maintenance/scheduledevents"
VERSION = "api-version=2025-11-01"
APPROVED = {"value": "Successfully Approved"}


def acknowledge(over: str, event: Event) -> str:
    return f"{over}/{EVENTS}/{event.id.lower()}/acknowledge?{VERSION}"


def restart(arm: Any, *names: str) -> list[Event]:
    events: list[Event] = arm.world.ask(RequestedOperation.RESTART, *names)
    return events


def status(arm: Any, event: Event) -> EventState:
    found: EventState = arm.world.store.event(event.id).status
    return found


def test_an_approved_event_starts_and_the_history_names_who_approved_it(arm: Any) -> None:
    (event,) = restart(arm, "db")
    answer = arm.holding(Role.SCHEDULED_EVENT_CONTRIBUTOR, DB).call("POST", acknowledge(DB, event))
    assert (answer.status, answer.json) == (200, APPROVED)
    assert status(arm, event) is EventState.STARTED
    (entry,) = [entry for entry in arm.world.store.history(event_id=event.id) if entry.kind is EntryKind.APPROVED]
    assert (entry.actor, entry.text) == ("client ci", "client ci approved Reboot of db")


def test_the_approval_path_is_matched_without_case(arm: Any) -> None:
    (event,) = restart(arm, "db")
    target = f"{DB}/providers/microsoft.maintenance/scheduledEvents/{event.id}/ACKNOWLEDGE"
    assert arm.call("POST", target.replace("resourceGroups", "resourcegroups")).json == APPROVED


def test_every_vm_of_a_scope_may_approve_its_events(arm: Any) -> None:
    (event,) = restart(arm, "web-0")
    assert arm.holding(Role.SCHEDULED_EVENT_CONTRIBUTOR, WEB_2).call("POST", acknowledge(WEB_2, event)).status == 200
    assert status(arm, event) is EventState.STARTED


def test_a_second_approval_succeeds_and_changes_nothing(arm: Any) -> None:
    (event,) = restart(arm, "db")
    arm.call("POST", acknowledge(DB, event))
    before = arm.stored()
    assert arm.call("POST", acknowledge(DB, event)).json == APPROVED
    assert arm.stored() == before

    arm.world.advance(60)
    assert status(arm, event) is EventState.OVER
    before = arm.stored()
    assert arm.call("POST", acknowledge(DB, event)).json == APPROVED
    assert arm.stored() == before


def test_an_event_that_is_over_and_was_never_approved_is_refused(arm: Any) -> None:
    (event,) = restart(arm, "db")
    arm.world.do(arm.world.control.requests.withdraw(event.id, who="bob"))
    assert arm.refused("POST", acknowledge(DB, event)) == (
        409,
        "OperationNotAllowed",
        f"event {event.id} is over (withdrawn): there is nothing to approve",
    )


@pytest.mark.parametrize("over", [DB, POOL, f"{COMPUTE}/availabilitySets/other", f"{COMPUTE}/virtualMachines/nobody"])
def test_an_event_of_another_resource_is_not_found(arm: Any, over: str) -> None:
    (event,) = restart(arm, "web-0")
    assert arm.refused("POST", acknowledge(over, event))[:2] == (404, "ResourceNotFound")
    assert arm.refused("POST", f"{over}/{EVENTS}", {"value": [event.id]})[:2] == (404, "ResourceNotFound")


def test_an_unlisted_event_cannot_be_approved(arm: Any) -> None:
    (unlisted,) = arm.world.ask(RequestedOperation.POWER_OFF, "db")
    assert arm.refused("POST", acknowledge(DB, unlisted))[0] == 404


@pytest.mark.parametrize("role", [Role.READER, Role.OPERATOR, Role.PLATFORM])
def test_an_approval_needs_the_role_for_it(arm: Any, role: Role) -> None:
    (event,) = restart(arm, "db")
    somebody = arm.holding(role, "/")
    assert somebody.refused("POST", acknowledge(DB, event))[:2] == (403, "AuthorizationFailed")
    assert somebody.refused("POST", f"{DB}/{EVENTS}", {"value": [event.id]})[:2] == (403, "AuthorizationFailed")


def test_the_role_over_one_vm_does_not_cover_its_set_or_other_vms(arm: Any) -> None:
    (event,) = restart(arm, "web-0")
    somebody = arm.holding(Role.SCHEDULED_EVENT_CONTRIBUTOR, WEB_2)
    for over in (WEB_SET, f"{COMPUTE}/virtualMachines/web-0", COMPUTE + "/virtualMachines/web-22"):
        assert somebody.refused("POST", acknowledge(over, event))[0] == 403


def test_the_role_over_an_availability_set_does_not_cover_its_vms(arm: Any) -> None:
    """The ids of its VMs are not below that of the set."""
    (event,) = restart(arm, "web-0")
    over_set, over_group = (arm.holding(Role.SCHEDULED_EVENT_CONTRIBUTOR, at) for at in (WEB_SET, GROUP))
    one, many = acknowledge(WEB_SET, event), f"{WEB_SET}/{EVENTS}?{VERSION}"
    refused = over_set.refused("POST", one)
    assert refused[:2] == (403, "AuthorizationFailed")
    assert refused[2].endswith(f"over every VM of {WEB_SET}")
    assert over_set.refused("POST", many, {"value": [event.id]})[:2] == (403, "AuthorizationFailed")
    assert status(arm, event) is EventState.SCHEDULED
    assert over_group.call("POST", one).status == 200
    assert status(arm, event) is EventState.STARTED


def test_a_list_of_events_is_approved_across_placement_groups(arm: Any) -> None:
    more = (a_vm("pool_2", scale_set="pool", placement_group="pg-1", host="h1"),)
    arm.world.do(arm.world.control.fleet.apply_change(FleetChange(vms=more, text="a second group"), who="test"))
    events = restart(arm, "pool_0", "pool_1", "pool_2")
    ids = [event.id.lower() for event in events]
    answer = arm.call("POST", f"{POOL}/{EVENTS}?{VERSION}", {"value": [*ids, ids[0].upper()]})
    assert (answer.status, answer.json) == (200, APPROVED)
    assert {status(arm, event) for event in events} == {EventState.STARTED}
    assert len({event.scope_id for event in events}) == 2


@pytest.mark.parametrize("wrong", ["nothing", "", "ß", "00000000-0000-4000-8000-FFFFFFFFFFFF"])
def test_one_wrong_id_in_a_list_approves_nothing(arm: Any, wrong: str) -> None:
    events = restart(arm, "pool_0", "pool_1")
    (other,) = restart(arm, "db")
    for outsider in (wrong, other.id):
        ids = {"value": [events[0].id, outsider, events[1].id]}
        assert arm.refused("POST", f"{POOL}/{EVENTS}", ids)[:2] == (404, "ResourceNotFound")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (None, "missing required field 'value'"),
        ({"value": []}, "value: Expected 'array' of length >= 1"),
        ({"value": "x"}, "value: Expected 'array', got 'str'"),
        ({"value": [1]}, "value[0]: Expected 'str', got 'int'"),
        ({"value": ["x"], "more": 1}, "field 'more' is unknown"),
        (b"{", "the body is not JSON"),
    ],
)
def test_an_invalid_list_of_events_is_rejected_with_one_sentence(arm: Any, body: Any, expected: str) -> None:
    code, _, message = arm.refused("POST", f"{POOL}/{EVENTS}", body)
    assert code == 400
    assert expected in message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda inner: st.lists(inner) | st.fixed_dictionaries({"value": inner}),
    )
)
def test_a_generated_list_changes_nothing_unless_it_names_events(arm: Any, body: Any) -> None:
    assert arm.refused("POST", f"{DB}/{EVENTS}", body)[0] in (400, 404)


@pytest.mark.parametrize("over", [WEB_2, WEB_SET], ids=["another VM of the set", "the set"])
def test_the_events_that_the_vms_of_a_resource_see_are_listed(arm: Any, over: str) -> None:
    """Spec §7.2: all VMs of a scope see its events, and no VM sees those of another."""
    (event,) = restart(arm, "web-0")
    restart(arm, "db")
    (listed,) = arm.holding(Role.READER, over).get(f"{over}/{EVENTS}")["value"]
    name = event.id.lower()
    assert (listed["id"], listed["name"]) == (f"{WEB_SET}/providers/microsoft.maintenance/scheduledevents/{name}", name)
    properties = listed["properties"]
    assert (properties["EventStatus"], properties["EventType"]) == ("Scheduled", "Reboot")
    assert (properties["Resources"], properties["EventSource"]) == (["web-0"], "User")
    assert properties["NotBefore"].endswith(" GMT")


def test_a_started_event_is_listed_until_it_is_over(arm: Any) -> None:
    (event,) = restart(arm, "db")
    arm.call("POST", acknowledge(DB, event))
    (listed,) = arm.get(f"{DB}/{EVENTS}")["value"]
    assert (listed["properties"]["EventStatus"], listed["properties"]["NotBefore"]) == ("Started", "")
    arm.world.advance(3600)
    assert arm.get(f"{DB}/{EVENTS}")["value"] == []


def test_the_events_of_a_set_whose_last_vm_is_gone_are_not_found(arm_of: Any) -> None:
    arm = arm_of(Policy(enablement=EnablementMode.ALWAYS, settle_s=120.0))
    last = a_vm("last", availability_set="old", terminate_notice_min=5)
    arm.world.do(arm.world.control.fleet.apply_change(FleetChange(vms=(last,), text="last added"), who="test"))
    (event,) = arm.world.ask(RequestedOperation.DELETE, "last")
    old_set = f"{COMPUTE}/availabilitySets/old"
    assert len(arm.get(f"{old_set}/{EVENTS}")["value"]) == 1
    arm.world.advance(400)
    assert status(arm, event) is EventState.STARTED
    assert arm.world.store.scope(event.scope_id).vms == ()
    for method, target in (("GET", f"{old_set}/{EVENTS}"), ("POST", acknowledge(old_set, event)), ("GET", old_set)):
        code, _, message = arm.refused(method, target)
        assert code == 404
        assert message.startswith("availability set 'old' does not exist in resource group 'lab'")
