"""Who may call which route: every route, by every role.

The table repeats the right and the resources of each route, so that none changes unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forewarn.core.access import ROLE_RIGHTS, Right, Role
from forewarn.web.api_routes import ROUTES
from forewarn.web.routing import ApiRoute
from tests.api.test_every_route import NEEDS_A_REAL_SERVICE, valid_call

OWN, OTHER, EVERYTHING = "/subscriptions/sub/resourceGroups/lab", "/subscriptions/sub/resourceGroups/other", "/"
PLACES = (OWN, OTHER, EVERYTHING)

ROUTES_BY_RIGHT = {
    ("read", "signed_in"): "GET /, GET /openapi.json, GET /access/me",
    (
        "read",
        "listing",
    ): """GET /service, GET /fleet, GET /vm-supervisors, GET /requests/{id}, GET /events, GET /events/{id},
        GET /history, GET /explain/{thing:path}, GET /clock, GET /rollouts/hold""",
    ("read", "named_vm"): "GET /vms/{name:path}",
    ("read", "everything"): """POST /fleet/check, GET /rollouts, GET /rollouts/{id},
        GET /rollouts/{id}/checks, GET /replays, GET /replays/{id},
        GET /rollouts/standing-order, GET /budgets, GET /faults, GET /doctor, GET /nodes, GET /nodes/{name}""",
    ("operate", "named_vm"): "POST /vms/{name:path}/perform-maintenance",
    ("operate", "vms_asked_for"): "POST /requests, POST /requests/preview",
    ("approve", "named_event"): "POST /events/{id}/approve",
    ("approve", "listing"): "POST /events/approve",
    ("platform", "everything"): """POST /fleet/apply, POST /fleet/apply/preview, POST /fleet/vms,
        DELETE /fleet/vms/{name:path},
        POST /fleet/hosts, DELETE /fleet/hosts/{name}, POST /hosts/{name}/degrade, POST /hosts/{name}/fail,
        POST /hosts/{name}/confirm-down,
        POST /hosts/{name}/repair, POST /rollouts, POST /rollouts/{id}/pause, POST /rollouts/{id}/resume,
        POST /rollouts/{id}/abort, POST /rollouts/hold, POST /rollouts/hold/lift, POST /nodes/resign,
        POST /budgets, DELETE /budgets/{name}, POST /rollouts/standing-order, DELETE /rollouts/standing-order,
        POST /events/withdraw, POST /events/{id}/withdraw, POST /history/prune,
        POST /replays,
        DELETE /replays/{id}, POST /faults, POST /faults/clear, POST /faults/storm, DELETE /faults/{id},
        POST /clock/advance, POST /clock/speed, POST /rollouts/preview, POST /rollouts/plan, POST /rollouts/check,
        POST /hosts/{name}/degrade/preview,
        POST /hosts/{name}/fail/preview, POST /hosts/{name}/confirm-down/preview, POST /fleet/vms/{name:path}/preview,
        POST /fleet/hosts/{name}/preview, POST /rollouts/{id}/abort/preview""",
    ("administer", "everything"): """GET /access, POST /access/clients, POST /access/clients/{id}/secret,
        DELETE /access/clients/{id}, POST /access/grants, DELETE /access/grants/{id}, GET /webhooks, POST /webhooks,
        DELETE /webhooks/{id}, POST /webhooks/{id}/test, POST /backup, POST /access/links""",
}
ALLOWED, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND = "done", "401 Unauthenticated", "403 Forbidden", "404 NotFound"


def _everything(right: Right, role: Role, place: str, has_path_parameter: bool) -> str:
    return ALLOWED if place == EVERYTHING and right in ROLE_RIGHTS[role] else FORBIDDEN


def _own(right: Right, role: Role, place: str, has_path_parameter: bool) -> str:
    """Every role may read; a resource outside its grant does not exist."""
    if place == OTHER:
        return NOT_FOUND
    return ALLOWED if right in ROLE_RIGHTS[role] else FORBIDDEN


def _listing(right: Right, role: Role, place: str, has_path_parameter: bool) -> str:
    return NOT_FOUND if has_path_parameter and place == OTHER else ALLOWED


def _signed_in(right: Right, role: Role, place: str, has_path_parameter: bool) -> str:
    return ALLOWED


EXPECTED: dict[str, Callable[[Right, Role, str, bool], str]] = {
    "everything": _everything,
    "listing": _listing,
    "signed_in": _signed_in,
    "named_vm": _own,
    "named_event": _own,
    "vms_asked_for": _own,
}


def expected(route: ApiRoute) -> dict[str, str]:
    over = route.resources.__name__
    by_role = {
        f"{role} over {place}": EXPECTED[over](route.right, role, place, "{" in route.path)
        for role in Role
        for place in PLACES
    }
    return {"no token": UNAUTHENTICATED, "no role": ALLOWED if over == "signed_in" else FORBIDDEN, **by_role}


def outcome(api: Any, who: Callable[[Any], Any], route: ApiRoute) -> str:
    target, body = valid_call(api, route)
    before = api.stored()
    answer = who(api).call(route.method, target, body)
    if answer.status == route.status or ((route.method, route.path) in NEEDS_A_REAL_SERVICE and answer.status == 409):
        return ALLOWED
    assert api.stored() == before
    return f"{answer.status} {answer.json['error']['code']}"


def all_callers() -> dict[str, Callable[[Any], Any]]:
    def holding(role: Role, place: str) -> Callable[[Any], Any]:
        return lambda api: api.holding(role, place)

    roles = {f"{role} over {place}": holding(role, place) for role in Role for place in PLACES}
    return {"no token": lambda api: api.without_token(), "no role": lambda api: api.holding(Role.READER), **roles}


def test_the_table_lists_every_route_with_its_right() -> None:
    table = {name.strip(): key for key, names in ROUTES_BY_RIGHT.items() for name in names.split(",")}
    assert table == {f"{route.method} {route.path}": (route.right, route.resources.__name__) for route in ROUTES}


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if route.path != "/nodes/{name}"],  # a service that runs alone has no nodes to show
    ids=lambda route: f"{route.method} {route.path}",
)
def test_a_route_is_open_to_callers_with_its_right_only(api_of: Callable[..., Any], route: ApiRoute) -> None:
    found = {caller: outcome(api_of(), who, route) for caller, who in all_callers().items()}
    assert found == expected(route)
