"""Generated bodies of writing routes are accepted or rejected, and a rejected one changes nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.core.access import Right, Role
from forewarn.web.arm import apply_updates, maintenance_configurations, token_endpoint
from forewarn.web.arm.routes import ROUTES

ELSEWHERE = (*token_endpoint.ROUTES, *maintenance_configurations.ROUTES, *apply_updates.ROUTES)
WRITING = [route for route in ROUTES if route.method in ("PUT", "PATCH", "POST") and route not in ELSEWHERE]
UPDATING = [route for route in WRITING if route.method in ("PUT", "PATCH")]

NAMES = {"subscription": "sub", "group": "lab", "instance": "1", "event": "00000000-0000-4000-8000-000000000001"}
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
MEMBERS = st.sampled_from(
    [
        "location", "tags", "sku", "capacity", "name", "id", "zones", "identity", "properties", "instanceIds", "value",
        "virtualMachineProfile", "scheduledEventsProfile", "terminateNotificationProfile", "osImageNotificationProfile",
        "enable", "notBeforeTimeout", "scheduledEventsPolicy", "userInitiatedReboot", "automaticallyApprove",
        "scheduledEventsAdditionalPublishingTargets", "eventGridAndResourceGraph", "hardwareProfile", "tempDisk",
    ]
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["westeurope", "PT5M", "PT10M", "PT900S", "PT1H", "*", "0", "1", "Spot"])
    | TEXT
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS | TEXT, inner, max_size=4),
    max_leaves=12,
)


def updates(junk: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of updates with random junk in them."""

    def some(**members: Any) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({}, optional={name: value | junk for name, value in members.items()})

    notices = some(enable=st.booleans(), notBeforeTimeout=st.sampled_from(["PT5M", "PT12M", "PT15M", "PT600S"]))
    approvals = some(automaticallyApprove=st.booleans())
    profiles = some(terminateNotificationProfile=notices, osImageNotificationProfile=some(enable=st.booleans()))
    policies = some(
        userInitiatedReboot=approvals,
        userInitiatedRedeploy=approvals,
        allInstancesDown=approvals,
        scheduledEventsAdditionalPublishingTargets=some(eventGridAndResourceGraph=some(enable=st.booleans())),
    )
    properties = some(
        scheduledEventsProfile=profiles,
        scheduledEventsPolicy=policies,
        virtualMachineProfile=some(scheduledEventsProfile=profiles),
    )
    tags = st.dictionaries(TEXT, TEXT, max_size=3)
    return some(location=st.just("westeurope"), tags=tags, sku=some(capacity=st.just(2)), properties=properties)


ACTIONS = st.fixed_dictionaries(
    {},
    optional={
        "instanceIds": st.lists(st.sampled_from(["0", "1", "9", "*"]), max_size=3),
        "value": st.lists(st.sampled_from([NAMES["event"], "x"]), max_size=3),
    },
)
BODIES = updates(JSON) | ACTIONS | JSON

slowly = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def target_of(route: Any) -> str:
    """The path of the route with names that exist."""
    vm_or_set = {"vm": "db", "set": "web" if "availabilitySets" in route.path else "pool"}
    return re.sub(r"\{(\w+)\}", lambda name: (NAMES | vm_or_set)[name[1]], route.path)


@pytest.mark.parametrize("route", WRITING, ids=lambda route: f"{route.method} {route.path.partition('Compute/')[2]}")
@given(body=BODIES | st.binary(max_size=20))
@slowly
def test_any_generated_body_is_accepted_or_rejected_as_a_whole(arm: Any, route: Any, body: Any) -> None:
    arm.world.settle()
    before = arm.stored()
    role = Role.OPERATOR if route.right is Right.OPERATE else Role.SCHEDULED_EVENT_CONTRIBUTOR
    answer = arm.holding(role, "/").call(route.method, target_of(route), body)
    assert answer.status in (200, 202, 204, 400, 404, 409), answer.content
    if answer.status >= 400:
        assert arm.stored() == before
        assert answer.error[2]


@pytest.mark.parametrize("route", UPDATING, ids=lambda route: f"{route.method} {route.path.partition('Compute/')[2]}")
@given(body=updates(st.nothing()))
@slowly
def test_the_response_of_an_update_can_be_put_back(arm: Any, route: Any, body: Any) -> None:
    target = target_of(route)
    answer = arm.call(route.method, target, {"location": "westeurope", **body})
    if answer.status != 200:
        return
    assert answer.json == arm.get(target)
    before = arm.stored()
    assert arm.call("PUT", target, answer.json).status == 200
    assert arm.stored() == before
