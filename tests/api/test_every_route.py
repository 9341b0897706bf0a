"""The contract of every route of `/forewarn/v1`.

It needs a right, answers a valid call, and rejects unknown fields and names without a change.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.access import Right
from forewarn.errors import Conflict, Unavailable
from forewarn.web.api_routes import ROUTES
from forewarn.web.routing import API_PREFIX

FILE = '[[hosts]]\nname = "h1"\nlocation = "westeurope"\n'
RECORDING = {
    "vm": "x",
    "api_version": "2020-07-01",
    "started_at": "2026-01-05T12:00:00Z",
    "answers": [{"at_s": 0, "status": 500}],
}

ValidCall = Callable[[Any], tuple[str, Any]]
VALID_CALLS: dict[tuple[str, str], ValidCall] = {
    ("GET", "/"): lambda api: ("/", None),
    ("GET", "/openapi.json"): lambda api: ("/openapi.json", None),
    ("GET", "/service"): lambda api: ("/service", None),
    ("GET", "/fleet"): lambda api: ("/fleet", None),
    ("POST", "/fleet/check"): lambda api: ("/fleet/check", {"text": FILE, "source": "f.toml"}),
    ("POST", "/fleet/apply"): lambda api: ("/fleet/apply", {"text": FILE, "source": "f.toml", "dry_run": True}),
    ("POST", "/fleet/apply/preview"): lambda api: ("/fleet/apply/preview", {"text": FILE, "source": "f.toml"}),
    ("POST", "/fleet/vms"): lambda api: ("/fleet/vms", {"name": "new"}),
    ("DELETE", "/fleet/vms/{name:path}"): lambda api: ("/fleet/vms/lab%2Fdb", None),
    ("POST", "/fleet/hosts"): lambda api: ("/fleet/hosts", {"name": "h9", "location": "westeurope"}),
    ("DELETE", "/fleet/hosts/{name}"): lambda api: (f"/fleet/hosts/{_empty_host(api)}", None),
    ("POST", "/vms/{name:path}/perform-maintenance"): lambda api: (
        f"/vms/{_under_maintenance(api)}/perform-maintenance",
        {},
    ),
    ("GET", "/vms/{name:path}"): lambda api: ("/vms/sub%2Flab%2Fdb", None),
    ("GET", "/vm-supervisors"): lambda api: ("/vm-supervisors", None),
    ("POST", "/requests"): lambda api: ("/requests", {"operation": "restart", "vms": ["db"]}),
    ("GET", "/requests/{id}"): lambda api: (f"/requests/{api.restart_of('db')[0]['request_id']}", None),
    ("POST", "/hosts/{name}/degrade"): lambda api: ("/hosts/h1/degrade", {"in_s": 7 * 86400}),
    ("POST", "/requests/preview"): lambda api: ("/requests/preview", {"operation": "restart", "vms": ["db"]}),
    ("POST", "/hosts/{name}/degrade/preview"): lambda api: ("/hosts/h1/degrade/preview", {"in_s": 7 * 86400}),
    ("POST", "/hosts/{name}/fail/preview"): lambda api: ("/hosts/h1/fail/preview", None),
    ("POST", "/hosts/{name}/confirm-down/preview"): lambda api: (
        f"/hosts/{_failed_host(api)}/confirm-down/preview",
        None,
    ),
    ("POST", "/fleet/vms/{name:path}/preview"): lambda api: ("/fleet/vms/lab%2Fdb/preview", None),
    ("POST", "/fleet/hosts/{name}/preview"): lambda api: (f"/fleet/hosts/{_empty_host(api)}/preview", None),
    ("POST", "/rollouts/{id}/abort/preview"): lambda api: (f"/rollouts/{_rollout(api)}/abort/preview", None),
    ("POST", "/rollouts/preview"): lambda api: ("/rollouts/preview", {"impact": "update", "hosts": ["h1", "h2"]}),
    ("POST", "/hosts/{name}/fail"): lambda api: ("/hosts/h1/fail", None),
    ("POST", "/hosts/{name}/confirm-down"): lambda api: (f"/hosts/{_failed_host(api)}/confirm-down", {}),
    ("POST", "/hosts/{name}/repair"): lambda api: (f"/hosts/{_failed_host(api)}/repair", {}),
    ("POST", "/rollouts/plan"): lambda api: ("/rollouts/plan", {"everything": True, "canary": "1"}),
    ("POST", "/rollouts/check"): lambda api: (
        "/rollouts/check",
        {"everything": True, "checks": [{"name": "acts", "figure": "failed-acts"}]},
    ),
    ("GET", "/rollouts/{id}/checks"): lambda api: (f"/rollouts/{_rollout(api)}/checks", None),
    ("GET", "/rollouts"): lambda api: ("/rollouts", None),
    ("POST", "/rollouts"): lambda api: ("/rollouts", {"impact": "update", "hosts": ["h1", "h2"]}),
    ("GET", "/nodes"): lambda api: ("/nodes", None),
    ("GET", "/rollouts/hold"): lambda api: ("/rollouts/hold", None),
    ("POST", "/rollouts/hold"): lambda api: ("/rollouts/hold", {"reason": "an incident"}),
    ("POST", "/rollouts/hold/lift"): lambda api: (_held(api), None),
    ("GET", "/rollouts/standing-order"): lambda api: ("/rollouts/standing-order", None),
    ("POST", "/rollouts/standing-order"): lambda api: ("/rollouts/standing-order", {"within_s": 30 * 86400}),
    ("DELETE", "/rollouts/standing-order"): lambda api: (_standing_order(api), None),
    ("GET", "/rollouts/{id}"): lambda api: (f"/rollouts/{_rollout(api)}", None),
    ("POST", "/rollouts/{id}/pause"): lambda api: (f"/rollouts/{_rollout(api)}/pause", None),
    ("POST", "/rollouts/{id}/resume"): lambda api: (f"/rollouts/{_paused(api)}/resume", None),
    ("POST", "/rollouts/{id}/abort"): lambda api: (f"/rollouts/{_rollout(api)}/abort", None),
    ("GET", "/budgets"): lambda api: ("/budgets", None),
    ("POST", "/budgets"): lambda api: ("/budgets", {"name": "all", "max_vms": 2}),
    ("DELETE", "/budgets/{name}"): lambda api: (_budget(api), None),
    ("GET", "/events"): lambda api: ("/events?all=true&limit=10", None),
    ("GET", "/events/{id}"): lambda api: (f"/events/{api.restart_of('db')[0]['id']}", None),
    ("POST", "/events/approve"): lambda api: ("/events/approve", {"ids": [api.restart_of("db")[0]["id"]]}),
    ("POST", "/events/withdraw"): lambda api: ("/events/withdraw", {"ids": [api.restart_of("db")[0]["id"]]}),
    ("POST", "/events/{id}/approve"): lambda api: (f"/events/{api.restart_of('db')[0]['id']}/approve", None),
    ("POST", "/events/{id}/withdraw"): lambda api: (f"/events/{api.restart_of('db')[0]['id']}/withdraw", {}),
    ("GET", "/history"): lambda api: ("/history", None),
    ("POST", "/history/prune"): lambda api: ("/history/prune", {"older_than_s": 86400}),
    ("GET", "/explain/{thing:path}"): lambda api: ("/explain/lab%2Fdb", None),
    ("GET", "/replays"): lambda api: ("/replays", None),
    ("POST", "/replays"): lambda api: ("/replays", {"vm": "db", "recording": RECORDING}),
    ("GET", "/replays/{id}"): lambda api: (f"/replays/{_replay(api)}", None),
    ("DELETE", "/replays/{id}"): lambda api: (f"/replays/{_replay(api)}", None),
    ("GET", "/faults"): lambda api: ("/faults", None),
    ("POST", "/faults"): lambda api: ("/faults", {"kind": "gone", "vm": "db", "count": 2}),
    ("POST", "/faults/clear"): lambda api: ("/faults/clear", {"all": True}),
    ("POST", "/faults/storm"): lambda api: ("/faults/storm", {"seed": 7, "duration_s": 60}),
    ("DELETE", "/faults/{id}"): lambda api: (f"/faults/{_fault(api)}", None),
    ("GET", "/clock"): lambda api: ("/clock", None),
    ("POST", "/clock/advance"): lambda api: ("/clock/advance", {"by_s": 60}),
    ("POST", "/clock/speed"): lambda api: ("/clock/speed", {"speed": 2}),
    ("GET", "/doctor"): lambda api: ("/doctor", None),
    ("GET", "/access"): lambda api: ("/access", None),
    ("GET", "/access/me"): lambda api: ("/access/me", None),
    ("POST", "/access/clients"): lambda api: ("/access/clients", {"name": "A bot"}),
    ("POST", "/access/clients/{id}/secret"): lambda api: (f"/access/clients/{_client(api)}/secret", None),
    ("DELETE", "/access/clients/{id}"): lambda api: (f"/access/clients/{_client(api)}", None),
    ("POST", "/access/grants"): lambda api: (
        "/access/grants",
        {"role": "Reader", "principal": _client(api), "resource": "db"},
    ),
    ("DELETE", "/access/grants/{id}"): lambda api: (f"/access/grants/{_grant(api)}", None),
    ("GET", "/webhooks"): lambda api: ("/webhooks", None),
    ("POST", "/webhooks"): lambda api: ("/webhooks", {"url": "https://example.org/hook"}),
    ("DELETE", "/webhooks/{id}"): lambda api: (f"/webhooks/{_webhook(api)}", None),
    ("POST", "/webhooks/{id}/test"): lambda api: (f"/webhooks/{_webhook(api)}/test", None),
}
# These need more than a world in memory: see test_service_routes and test_sign_in_links.
# Those of nodes need a cluster.
NEEDS_A_REAL_SERVICE = {
    *(("POST", "/backup"), ("POST", "/access/links")),
    *(("GET", "/nodes/{name}"), ("POST", "/nodes/resign")),
}


def _empty_host(api: Any) -> str:
    api.post("/fleet/hosts", {"name": "h8", "location": "westeurope"})
    return "h8"


def _failed_host(api: Any) -> str:
    api.post("/hosts/h1/fail")
    return "h1"


def _replay(api: Any) -> str:
    started: str = api.post("/replays", {"vm": "db", "recording": RECORDING})["id"]
    return started


def _rollout(api: Any) -> str:
    started: str = api.post("/rollouts", {"impact": "update", "hosts": ["h1"]})["id"]
    return started


def _fault(api: Any) -> str:
    fault: str = api.post("/faults", {"kind": "reset", "all": True})["id"]
    return fault


def _client(api: Any) -> str:
    added: str = api.post("/access/clients", {"id": "bot"})["id"]
    return added


def _grant(api: Any) -> str:
    granted: str = api.post("/access/grants", {"role": "Operator", "principal": _client(api), "resource": "/"})["id"]
    return granted


def _webhook(api: Any) -> str:
    added: str = api.post("/webhooks", {"url": "http://127.0.0.1:1/nobody"})["id"]
    return added


def _budget(api: Any) -> str:
    api.post("/budgets", {"name": "all", "max_vms": 2})
    return "/budgets/all"


def _standing_order(api: Any) -> str:
    api.post("/rollouts/standing-order", {"within_s": 30 * 86400})
    return "/rollouts/standing-order"


def _held(api: Any) -> str:
    api.post("/rollouts/hold", {"reason": "an incident"})
    return "/rollouts/hold/lift"


def _paused(api: Any) -> str:
    rollout = _rollout(api)
    api.post(f"/rollouts/{rollout}/pause")
    return rollout


def _under_maintenance(api: Any) -> str:
    api.post("/rollouts", {"impact": "migrate", "scope": "web"})
    return "web-0"


def _route_params(*, having: str = "") -> list[Any]:
    return [pytest.param(route, id=f"{route.method} {route.path}") for route in ROUTES if having in route.path]


def valid_call(api: Any, route: Any) -> tuple[str, Any]:
    if (route.method, route.path) in NEEDS_A_REAL_SERVICE:
        return route.path, {"path": "/x"} if route.path == "/backup" else None
    return VALID_CALLS[route.method, route.path](api)


def test_every_route_needs_a_right() -> None:
    assert all(isinstance(route.right, Right) for route in ROUTES)


def test_a_caller_who_may_only_read_changes_nothing() -> None:
    changing = [route for route in ROUTES if route.method != "GET" and route.right is Right.READ]
    assert [route.path for route in changing] == ["/fleet/check"]
    reading = [route for route in ROUTES if route.method == "GET" and route.right is not Right.READ]
    assert [(route.path, route.right) for route in reading] == [
        ("/access", Right.ADMINISTER),
        ("/webhooks", Right.ADMINISTER),
    ]


def test_every_route_has_a_valid_call_in_the_table() -> None:
    assert set(VALID_CALLS) | NEEDS_A_REAL_SERVICE == {(route.method, route.path) for route in ROUTES}


@pytest.mark.parametrize(("method", "path"), VALID_CALLS, ids=lambda value: str(value))
def test_a_valid_call_is_answered_with_the_routes_status(api: Any, method: str, path: str) -> None:
    route = next(route for route in ROUTES if (route.method, route.path) == (method, path))
    target, body = VALID_CALLS[method, path](api)
    answer = api.call(method, target, body)
    assert answer.status == route.status, answer.content
    assert isinstance(answer.json, dict)


@pytest.mark.parametrize("route", [p for p in _route_params() if p.values[0].method == "POST"])
def test_an_unknown_field_is_rejected_by_its_name(api: Any, route: Any) -> None:
    target, body = valid_call(api, route)
    status, code, message = api.refused("POST", target, {**(body or {}), "colour": "red"})
    assert (status, code) == (400, "Rejected")
    assert "colour" in message


@pytest.mark.parametrize("route", [p for p in _route_params() if p.values[0].method == "POST"])
def test_a_body_that_is_not_an_object_is_rejected(api: Any, route: Any) -> None:
    target, _ = valid_call(api, route)
    for body in (b"[1]", b"{", b"\xff"):
        status, code, message = api.refused("POST", target, body)
        assert (status, code) == (400, "Rejected")
        assert "body" in message


@pytest.mark.parametrize("route", _route_params(having="{"))
def test_an_unknown_name_in_a_path_is_not_found(api: Any, route: Any) -> None:
    good = {f"/hosts/{{name}}/degrade{end}": {"in_s": 86400} for end in ("", "/preview")}
    target = route.path.replace("{name:path}", "nothing").replace("{thing:path}", "nothing")
    target = target.replace("{name}", "nothing").replace("{id}", "nothing")
    status, code, message = api.refused(route.method, target, good.get(route.path))
    assert (status, code) == (404, "NotFound")
    assert "'nothing'" in message


QUERIES = [
    ("/fleet?limit=0", "limit"),
    ("/fleet?limit=many", "limit"),
    ("/fleet?colour=red", "colour"),
    ("/events?all=perhaps", "all"),
    ("/events?limit=-1", "limit"),
    ("/events?limit=1&limit=2", "'limit' more than once"),
    ("/history?after=-1", "after"),
    ("/history?wait_s=61", "wait_s"),
    ("/clock?x=1", "x"),
]


@pytest.mark.parametrize(("target", "named"), QUERIES)
def test_an_invalid_query_is_rejected_by_the_name_of_its_parameter(api: Any, target: str, named: str) -> None:
    status, code, message = api.refused("GET", target)
    assert (status, code) == (400, "Rejected")
    assert named in message


@pytest.mark.parametrize("target", ["/fleet?host=h7", "/fleet?scope=s7", "/events?vm=v7", "/events?scope=s7"])
def test_an_unknown_name_in_a_query_is_not_found(api: Any, target: str) -> None:
    assert api.refused("GET", target)[:2] == (404, "NotFound")


def test_an_unknown_path_is_not_found_and_says_where_the_api_is(api: Any) -> None:
    answer = api.call("GET", "/nowhere")
    assert answer.status == 404
    assert answer.json["error"]["code"] == "NotFound"
    answer = api.call("GET", "/nowhere", prefix="")
    assert answer.status == 404
    assert answer.json["error"]["code"] == "ResourceNotFound"
    assert API_PREFIX in answer.json["error"]["message"]


def test_an_unknown_method_is_rejected_with_the_allowed_ones(api: Any) -> None:
    answer = api.call("PUT", "/rollouts")
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert answer.json["error"]["code"] == "Rejected"


def test_a_body_that_is_too_long_is_rejected(api: Any) -> None:
    answer = api.call("POST", "/fleet/check", b" " * (16 * 1024 * 1024 + 1))
    assert answer.status == 413
    assert answer.json["error"]["code"] == "Rejected"


def test_an_unavailable_store_answers_503_with_retry_after(api: Any) -> None:
    api.world.store.fail_next(Unavailable("the disk is full: make room"))
    before = api.stored()
    answer = api.call("POST", "/requests", {"operation": "restart", "vms": ["db"]})
    assert api.stored() == before
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json["error"] == {"code": "Unavailable", "message": "the disk is full: make room"}


def test_a_conflict_tells_the_caller_to_try_again(api: Any) -> None:
    for _ in range(20):
        api.world.store.fail_next(Conflict("somebody was quicker"))
    status, code, message = api.refused("POST", "/requests", {"operation": "restart", "vms": ["db"]})
    assert (status, code) == (409, "Conflict")
    assert message.endswith("try again")


def test_an_unexpected_error_is_a_500_without_secrets(api: Any, caplog: pytest.LogCaptureFixture) -> None:
    api.world.store.fail_next(RuntimeError("secret"))
    status, code, message = api.refused("POST", "/requests", {"operation": "restart", "vms": ["db"]})
    assert (status, code) == (500, "Internal")
    assert "secret" not in message
    assert "secret" in caplog.text


def test_the_web_packages_write_no_files_except_backups(api: Any, tmp_path: Path) -> None:
    status, code, message = api.refused("POST", "/backup", {"path": str(tmp_path / "b.db")})
    assert (status, code) == (409, "Refused")  # a store in memory has no backup
    assert list(tmp_path.iterdir()) == []
    assert "in memory" in message
