"""Who may call which ARM route: every route, by every role.

The expectation follows from the route's right and authorizer. Routes without a token are listed here; they change
nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from forewarn.core.access import ROLE_RIGHTS, Principal, Right, Role
from forewarn.core.request import RequestedOperation
from forewarn.errors import Unauthenticated
from forewarn.web.arm.routes import ROUTES
from forewarn.web.arm.routing import ArmRoute
from tests.arm.conftest import Arm

OWN, OTHER, EVERYTHING = "/subscriptions/sub/resourceGroups/lab", "/subscriptions/sub/resourceGroups/other", "/"
PLACES = (OWN, OTHER, EVERYTHING)
ALLOWED, UNAUTHENTICATED, FORBIDDEN = "let in", "401 AuthenticationFailed", "403 AuthorizationFailed"

# Discovery and sign-in, which a client needs before it has a token.
WITHOUT_TOKEN = {
    "GET /metadata/endpoints",
    "GET /metadata/endpoints-list",
    "GET /adfs/.well-known/openid-configuration",
    "GET /{tenant}/v2.0/.well-known/openid-configuration",
    "GET /adfs/{tenant}/v2.0/.well-known/openid-configuration",
    "GET /adfs/discovery/keys",
    "POST /adfs/oauth2/token",
    "POST /{tenant}/oauth2/v2.0/token",
}
OVER_THE_RESOURCE = {"require_on_resource", "authorize_instances", "authorize_scale_set", "authorize_set_and_vms"}


def label(route: ArmRoute) -> str:
    return f"{route.method} {route.path}"


WITH_TOKEN = [pytest.param(route, id=label(route)) for route in ROUTES if route.right is not None]
PUBLIC = [pytest.param(route, id=label(route)) for route in ROUTES if route.right is None]


def target(arm: Any, route: ArmRoute) -> str:
    """The path of the route with names that exist."""
    (event,) = arm.world.ask(RequestedOperation.RESTART, "db")
    names = {
        "subscription": "sub",
        "group": "lab",
        "vm": "db",
        "set": "web" if "availabilitySets" in route.path else "pool",
        "instance": "1",
        "location": "westeurope",
        "operation": event.request_id,
        "event": event.id,
        "tenant": "tenant",
        "configuration": "nightly",
        "assignment": "one",
        "update": "default",
    }
    return route.path.format_map(names)


def expected(route: ArmRoute) -> dict[str, str]:
    assert route.right is not None
    if route.authorize.__name__ == "allow_listing":
        expected_by_role = {f"{role} over {place}": ALLOWED for role in Role for place in PLACES}
        return {"no token": UNAUTHENTICATED, "no role": ALLOWED, **expected_by_role}
    assert route.authorize.__name__ in OVER_THE_RESOURCE, (
        f"{label(route)} is over {route.authorize.__name__}: expect what?"
    )
    places = {OWN, EVERYTHING} if "/resourceGroups/{group}" in route.path else {EVERYTHING}
    expected_by_role = {
        f"{role} over {place}": ALLOWED if place in places and route.right in ROLE_RIGHTS[role] else FORBIDDEN
        for role in Role
        for place in PLACES
    }
    return {"no token": UNAUTHENTICATED, "no role": FORBIDDEN, **expected_by_role}


def all_callers(arm: Any) -> dict[str, Any]:
    roles = {f"{role} over {place}": arm.holding(role, place) for role in Role for place in PLACES}
    return {"no token": without_token(arm), "no role": arm.holding(Role.READER), **roles}


def without_token(arm: Any) -> Arm:
    async def authenticate(request: Request) -> Principal:
        raise Unauthenticated("nobody knows you: sign in")

    return Arm(arm.api, authenticate)


def outcome(arm: Any, caller: Any, route: ArmRoute, where: str) -> str:
    before = arm.stored()
    answer = caller.call(route.method, where)
    if answer.status not in (401, 403):
        return ALLOWED
    assert arm.stored() == before
    return f"{answer.status} {answer.json['error']['code']}"


def test_only_discovery_and_sign_in_need_no_token() -> None:
    assert {label(route) for route in ROUTES if route.right is None} == WITHOUT_TOKEN


def test_every_writing_route_needs_more_than_the_right_to_read() -> None:
    changing = [route for route in ROUTES if route.method != "GET" and route.right is not None]
    assert {route.right for route in changing} == {Right.OPERATE, Right.APPROVE}
    assert all(route.authorize.__name__ in OVER_THE_RESOURCE for route in changing)
    approving = {label(route) for route in changing if route.right is Right.APPROVE}
    assert approving == {label(route) for route in changing if "scheduledevents" in route.path}
    reading = [route for route in ROUTES if route.method == "GET" and route.right is not None]
    assert {route.right for route in reading} == {Right.READ}


@pytest.mark.parametrize("route", PUBLIC)
def test_routes_without_a_token_change_nothing(arm: Any, route: ArmRoute) -> None:
    where = target(arm, route)
    before = arm.stored()
    for body in (None, b"grant_type=client_credentials&client_id=bot&client_secret=x", {"grant_type": "x"}):
        assert without_token(arm).call(route.method, where, body).status < 500
    assert arm.stored() == before


@pytest.mark.parametrize("route", WITH_TOKEN)
def test_a_route_is_open_to_callers_with_its_right_only(arm: Any, route: ArmRoute) -> None:
    where = target(arm, route)
    found = {name_of_caller: outcome(arm, caller, route, where) for name_of_caller, caller in all_callers(arm).items()}
    assert found == expected(route)


LISTING = [
    pytest.param(route, id=label(route))
    for route in ROUTES
    if route.right is not None and route.authorize.__name__ == "allow_listing"
]


@pytest.mark.parametrize("route", LISTING)
def test_a_list_names_nothing_that_the_caller_may_not_read(arm: Any, route: ArmRoute) -> None:
    where = target(arm, route)
    for caller in (arm.holding(Role.OPERATOR, OTHER), arm.holding(Role.READER)):
        expected_by_role = caller.call("GET", where).content.decode()
        named = [name for name in ("db", "web-", "pool_", "resourceGroups/lab", "spot") if name in expected_by_role]
        assert named == []
