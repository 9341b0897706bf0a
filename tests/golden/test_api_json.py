"""Our own API, /forewarn/v1, is frozen: each route is called once with success, and each area refuses once.

Keys, types, codes, numbers and words that programs read are compared; sentences for people are masked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.golden.harness import API, Answer, Console, Service, Walk, check_golden_json

FLEET = """
[defaults]
resource_group = "shop"
location = "westeurope"

[[hosts]]
name = "host-{n}"
count = 6

[[availability_sets]]
name = "web"
update_domains = 3

[[vms]]
name = "web-{n}"
count = 3
availability_set = "web"

[[vms]]
name = "lone-{n}"
count = 6

[[vms]]
name = "spot"
priority = "Spot"

[[scale_sets]]
name = "workers"
count = 2
terminate_notification = 5
"""
ADDED = '\n[[vms]]\nname = "added"\n'
RECORDING = {
    "vm": "x",
    "api_version": "2020-07-01",
    "started_at": "2026-01-05T12:00:00Z",
    "answers": [{"at_s": 0, "status": 500}],
}
AREAS = (
    *(
        "service",
        "fleet",
        "vms",
        "vm-supervisors",
        "requests",
        "previews",
        "events",
        "history",
        "explain",
        "hosts",
        "rollouts",
        "budgets",
    ),
    *("faults", "replays", "clock", "backup", "doctor", "access", "webhooks", "nodes"),
)


class Api:
    """Calls of the owner, each noted under its route."""

    def __init__(self, service: Service, walk: Walk) -> None:
        self.service, self.walk = service, walk
        self.began = service.good("GET", "/history?limit=1")["entries"][-1]["seq"]

    def __call__(
        self, area: str, method: str, template: str, target: str = "", body: Any = None, title: str = ""
    ) -> Any:
        answer = self.service.api(method, target or template, body)
        self.walk.note(area, f"{method} {template}", answer, title)
        return answer.json


def nodes(api: Api) -> None:
    api("nodes", "GET", "/nodes", title="of a service that runs alone")
    api("nodes", "GET", "/nodes/{name}", "/nodes/c1", title="an unknown one")
    api("nodes", "POST", "/nodes/resign", title="of a service that runs alone")


def fleet_and_vms(api: Api) -> None:
    api("fleet", "GET", "/fleet")
    api("fleet", "GET", "/fleet", "/fleet?host=host-0&limit=2", title="of a host")
    api("fleet", "GET", "/fleet", "/fleet?limit=0", title="a bad limit")
    api("fleet", "GET", "/fleet", "/fleet?colour=red", title="an unknown parameter")
    api("fleet", "POST", "/fleet/check", body={"text": FLEET + ADDED, "source": "f.toml"})
    api("fleet", "POST", "/fleet/check", body={"text": "[[vms]]\n", "source": "f.toml"}, title="a bad file")
    api("fleet", "POST", "/fleet/apply", body={"text": FLEET + ADDED, "source": "f.toml"})
    api("fleet", "POST", "/fleet/apply", body={"text": "colour = 1", "source": "f.toml"}, title="a bad file")
    api("fleet", "POST", "/fleet/hosts", body={"name": "extra", "location": "westeurope"})
    api("fleet", "POST", "/fleet/hosts", body={"name": "extra", "location": "westeurope"}, title="again")
    api("fleet", "POST", "/fleet/vms", body={"name": "more", "location": "westeurope", "host": "extra"})
    api("fleet", "DELETE", "/fleet/hosts/{name}", "/fleet/hosts/extra", title="a VM is on it")
    api("fleet", "DELETE", "/fleet/vms/{name}", "/fleet/vms/more")
    api("fleet", "DELETE", "/fleet/hosts/{name}", "/fleet/hosts/extra")
    api("fleet", "DELETE", "/fleet/vms/{name}", "/fleet/vms/nothing", title="unknown")
    api("vms", "GET", "/vms/{name}", "/vms/web-0")
    api("vms", "GET", "/vms/{name}", "/vms/nothing", title="unknown")
    api("vms", "POST", "/vms/{name}/perform-maintenance", "/vms/lone-0/perform-maintenance", {}, "nothing pending")
    api("vm-supervisors", "GET", "/vm-supervisors")
    api("vm-supervisors", "GET", "/vm-supervisors", "/vm-supervisors?colour=red", title="an unknown parameter")


def previews(api: Api) -> None:
    api("previews", "POST", "/requests/preview", body={"operation": "restart", "vms": ["lone-0"]})
    api("previews", "POST", "/requests/preview", body={"operation": "evict", "vms": ["lone-0"]}, title="not a Spot VM")
    api("previews", "POST", "/hosts/{name}/degrade/preview", "/hosts/host-1/degrade/preview", {"in_s": 604_800})
    api("previews", "POST", "/hosts/{name}/fail/preview", "/hosts/host-1/fail/preview")
    api("previews", "POST", "/hosts/{name}/confirm-down/preview", "/hosts/host-1/confirm-down/preview", {}, "healthy")
    api("previews", "POST", "/fleet/apply/preview", body={"text": "", "source": "f.toml"})
    api("previews", "POST", "/fleet/vms/{name}/preview", "/fleet/vms/lone-0/preview")
    api("previews", "POST", "/fleet/hosts/{name}/preview", "/fleet/hosts/host-1/preview", {}, "VMs are on it")
    api("previews", "POST", "/rollouts/{id}/abort/preview", "/rollouts/nothing/abort/preview", {}, "unknown")
    api("previews", "POST", "/rollouts/preview", body={"impact": "update", "scope": "web"})
    api("previews", "POST", "/rollouts/plan", body={"impact": "update", "scope": "web"})


def requests_and_events(api: Api) -> None:
    told = api("requests", "POST", "/requests", body={"operation": "restart", "vms": ["lone-0"]})
    for ask, vm in (("redeploy", "lone-1"), ("evict", "spot"), ("delete", "workers_0"), ("power-off", "lone-2")):
        api("requests", "POST", "/requests", body={"operation": ask, "vms": [vm]}, title=ask)
    api("requests", "POST", "/requests", body={"operation": "restart", "vms": ["lone-0"]}, title="again")
    api("requests", "POST", "/requests", body={"operation": "paint", "vms": ["lone-0"]}, title="an unknown verb")
    api(
        "requests",
        "POST",
        "/requests",
        body={"operation": "restart", "vms": ["lone-0"], "colour": 1},
        title="unknown member",
    )
    api("requests", "GET", "/requests/{id}", f"/requests/{told['request']['id']}")
    api("requests", "GET", "/requests/{id}", "/requests/nothing", title="unknown")
    event = told["events"][0]["id"]
    api("events", "GET", "/events")
    api("events", "GET", "/events/{id}", f"/events/{event}")
    api("events", "GET", "/events/{id}", "/events/nothing", title="unknown")
    api("events", "POST", "/events/{id}/approve", f"/events/{event}/approve")
    api("events", "POST", "/events/{id}/withdraw", f"/events/{event}/withdraw", {}, "after its start")
    later = api("requests", "POST", "/requests", body={"operation": "restart", "vms": ["lone-3"]}, title="restart")
    api("events", "POST", "/events/{id}/withdraw", f"/events/{later['events'][0]['id']}/withdraw", {"reason": "later"})
    pair = api("requests", "POST", "/requests", body={"operation": "restart", "vms": ["lone-3"]}, title="a third time")
    ids = {"ids": [pair["events"][0]["id"], "nothing"]}
    api("events", "POST", "/events/withdraw", body=ids)
    api("events", "POST", "/events/approve", body=ids)
    api("events", "POST", "/events/approve", body={}, title="of nothing")
    api.service.advance(120)
    api("events", "GET", "/events", "/events?all=true&limit=50", title="all")
    api("events", "GET", "/events", "/events?all=perhaps", title="a bad parameter")
    api("explain", "GET", "/explain/{thing}", f"/explain/{event}", title="an event")
    api("explain", "GET", "/explain/{thing}", f"/explain/{told['request']['id']}", title="a request")


def hosts_and_rollouts(api: Api) -> None:
    rollout = api("rollouts", "POST", "/rollouts", body={"impact": "update", "scope": "web"})
    api("rollouts", "GET", "/rollouts")
    api("rollouts", "GET", "/rollouts/{id}", f"/rollouts/{rollout['id']}")
    api("rollouts", "GET", "/rollouts/{id}/checks", f"/rollouts/{rollout['id']}/checks")
    checks = [{"name": "acts", "figure": "failed-acts"}]
    api("rollouts", "POST", "/rollouts/check", body={"scope": "web", "checks": checks})
    api("rollouts", "POST", "/rollouts/{id}/pause", f"/rollouts/{rollout['id']}/pause")
    api("rollouts", "POST", "/rollouts/{id}/resume", f"/rollouts/{rollout['id']}/resume")
    api("vms", "POST", "/vms/{name}/perform-maintenance", "/vms/web-0/perform-maintenance", {})
    api("explain", "GET", "/explain/{thing}", f"/explain/{rollout['id']}", title="a rollout")
    api("rollouts", "POST", "/rollouts/{id}/abort", f"/rollouts/{rollout['id']}/abort")
    api("rollouts", "GET", "/rollouts/{id}", "/rollouts/nothing", title="unknown")
    api("rollouts", "POST", "/rollouts", body={"impact": "paint", "scope": "web"}, title="an unknown impact")
    api("rollouts", "POST", "/rollouts/hold", body={"reason": "an incident"})
    api("rollouts", "GET", "/rollouts/hold")
    api("rollouts", "POST", "/rollouts/hold/lift")
    api("hosts", "POST", "/hosts/{name}/degrade", "/hosts/host-4/degrade", {"in_s": 604_800})
    api("hosts", "POST", "/hosts/{name}/fail", "/hosts/host-5/fail")
    api("hosts", "POST", "/hosts/{name}/confirm-down", "/hosts/host-3/confirm-down", title="a healthy host")
    api("hosts", "POST", "/hosts/{name}/repair", "/hosts/host-5/repair", {})
    api("hosts", "POST", "/hosts/{name}/fail", "/hosts/nothing/fail", title="unknown")
    for thing in ("lone-0", "host-4", "web"):
        api("explain", "GET", "/explain/{thing}", f"/explain/{thing}", title=thing)
    api("explain", "GET", "/explain/{thing}", "/explain/nothing", title="unknown")


def faults_and_replays(api: Api) -> None:
    replay = api("replays", "POST", "/replays", body={"vm": "lone-5", "recording": RECORDING})
    api("replays", "GET", "/replays")
    api("replays", "GET", "/replays/{id}", f"/replays/{replay['id']}")
    api("replays", "DELETE", "/replays/{id}", f"/replays/{replay['id']}")
    api("replays", "GET", "/replays/{id}", "/replays/nothing", title="unknown")
    first = api("faults", "POST", "/faults", body={"kind": "gone", "vm": "lone-4", "count": 2})
    api("faults", "POST", "/faults", body={"kind": "short-notice", "vm": "lone-4", "count": 1}, title="of events")
    api("faults", "POST", "/faults", body={"kind": "rain", "all": True}, title="an unknown kind")
    api("faults", "GET", "/faults")
    api("faults", "DELETE", "/faults/{id}", f"/faults/{first['id']}")
    api("faults", "DELETE", "/faults/{id}", "/faults/nothing", title="unknown")
    api("faults", "POST", "/faults/clear", body={"all": True})
    storm = api("faults", "POST", "/faults/storm", body={"seed": 7, "duration_s": 3600, "vms": ["lone-4"]})
    api("faults", "DELETE", "/faults/{id}", f"/faults/{storm['id']}", title="a storm")


def upkeep(api: Api) -> None:
    service, walk = api.service, api.walk
    api("service", "GET", "/service")
    api("service", "GET", "/nowhere", title="an unknown path")
    api("service", "PUT", "/rollouts", title="another method")
    walk.routes -= {"GET /nowhere", "PUT /rollouts"}
    api("clock", "GET", "/clock")
    api("clock", "POST", "/clock/advance", body={"by_s": 60})
    api("clock", "POST", "/clock/speed", body={"speed": 0})
    api("clock", "POST", "/clock/advance", body={"by_s": -1}, title="backwards")
    api("clock", "POST", "/clock/speed", body={"speed": -1}, title="backwards")
    api("history", "GET", "/history", f"/history?after={api.began}&limit=200")
    api("history", "GET", "/history", "/history?vm=lone-0&limit=2", title="of a VM")
    api("history", "GET", "/history", "/history?after=-1", title="a bad parameter")
    api("history", "POST", "/history/prune", body={"older_than_s": 86_400})
    api("backup", "POST", "/backup", body={"path": str(service.data / "copy.db")})
    api("backup", "POST", "/backup", body={"path": str(service.data / "copy.db")}, title="again")
    told = service.api("GET", "/doctor")
    checks = [{name: type(value).__name__ for name, value in check.items()} for check in told.json["checks"]]
    walk.note("doctor", "GET /doctor", told, body={"keys": sorted(told.json), "check": checks[0]})
    assert all(check == checks[0] for check in checks)
    api("doctor", "GET", "/doctor", "/doctor?colour=red", title="an unknown parameter")


def access(api: Api, console: Console) -> None:
    client = api("access", "POST", "/access/clients", body={"id": "bot", "name": "A bot"})
    api("access", "POST", "/access/clients", body={"id": "bot"}, title="again")
    renewed = api("access", "POST", "/access/clients/{id}/secret", "/access/clients/bot/secret")
    grant = api(
        "access", "POST", "/access/grants", body={"role": "Reader", "principal": client["id"], "resource": "lone-0"}
    )
    api(
        "access",
        "POST",
        "/access/grants",
        body={"role": "King", "principal": "bot", "resource": "/"},
        title="an unknown role",
    )
    api("access", "GET", "/access")
    api("access", "GET", "/access/me")
    token = console.token("bot", renewed["secret"])
    by_others(api.walk, console, token)
    api("access", "DELETE", "/access/grants/{id}", f"/access/grants/{grant['id']}")
    api("access", "DELETE", "/access/clients/{id}", "/access/clients/bot")
    api("access", "DELETE", "/access/clients/{id}", "/access/clients/bot", title="again")
    link = api.service.api("POST", "/access/links")
    shown = {name: type(value).__name__ for name, value in link.json.items()}
    api.walk.note("access", "POST /access/links", link, body=shown)


def by_others(walk: Walk, console: Console, token: str) -> None:
    """What somebody gets over TLS who has no token, a bad one, or a role over one VM only."""

    def told(title: str, method: str, path: str, body: Any = None, **sent: str) -> Answer:
        return walk.note("access", f"{method} {path}", console.call(method, API + path, body, **sent), title)

    told("no token", "GET", "/fleet")
    told("a bad token", "GET", "/fleet", token="nonsense")
    told("a Reader of one VM", "GET", "/access/me", token=token)
    told("a Reader of one VM", "GET", "/access", token=token)
    told("a Reader of one VM", "GET", "/fleet", token=token)
    told("a Reader of one VM", "POST", "/requests", {"operation": "restart", "vms": ["lone-0"]}, token=token)


def webhooks(api: Api) -> None:
    hook = api("webhooks", "POST", "/webhooks", body={"url": "http://127.0.0.1:1/nobody"})
    api("webhooks", "GET", "/webhooks")
    api("webhooks", "POST", "/webhooks/{id}/test", f"/webhooks/{hook['id']}/test")
    api("webhooks", "DELETE", "/webhooks/{id}", f"/webhooks/{hook['id']}")
    api("webhooks", "POST", "/webhooks", body={"url": "ftp://example.org"}, title="a bad URL")
    api("webhooks", "DELETE", "/webhooks/{id}", "/webhooks/nothing", title="unknown")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("api") / "data", fleet=FLEET, has_api=True) as running:
        running.stop_the_clock()
        yield running


def budgets(api: Api) -> None:
    api("budgets", "POST", "/budgets", body={"name": "all", "max_percent": 50, "per": "location"})
    api("budgets", "GET", "/budgets")
    api("budgets", "POST", "/budgets", body={"name": "none", "max_vms": 0}, title="a budget of 0")
    api("budgets", "DELETE", "/budgets/{name}", "/budgets/all")
    api("rollouts", "GET", "/rollouts/standing-order")
    api("rollouts", "POST", "/rollouts/standing-order", body={"within_s": 1}, title="too short an interval")
    api("rollouts", "POST", "/rollouts/standing-order", body={"within_s": 864000})
    api("rollouts", "DELETE", "/rollouts/standing-order")


@pytest.fixture(scope="module")
def walk(service: Service) -> Walk:
    """Every route, called in a fixed order."""
    walk, console = Walk(service.masks()), Console(service)
    api = Api(service, walk)
    api("service", "GET", "/")
    openapi = service.api("GET", "/openapi.json")
    walk.note("service", "GET /openapi.json", openapi, body=sorted(openapi.json))
    nodes(api)
    fleet_and_vms(api)
    previews(api)
    requests_and_events(api)
    hosts_and_rollouts(api)
    faults_and_replays(api)
    webhooks(api)
    access(api, console)
    upkeep(api)
    budgets(api)
    return walk


@pytest.mark.parametrize("area", AREAS)
def test_the_answers_of_the_api_keep_their_shape(walk: Walk, area: str) -> None:
    walk.check("api", area)


def test_every_route_of_the_api_is_frozen(walk: Walk, service: Service) -> None:
    paths: dict[str, Any] = service.good("GET", "/openapi.json")["paths"]
    assert walk.routes == {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


def test_the_openapi_document_keeps_its_routes_parameters_and_properties(service: Service) -> None:
    document = service.good("GET", "/openapi.json")
    schemas = document["components"]["schemas"]
    routes = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            routes[f"{method.upper()} {path}"] = {
                "right": operation["x-forewarn-right"],
                "parameters": [
                    f"{p['in']} {p['name']}: {_form(p['schema'], schemas)}" for p in operation["parameters"]
                ],
                "body": _content(operation.get("requestBody"), schemas),
                "answers": {code: _content(answer, schemas) for code, answer in operation["responses"].items()},
            }
    check_golden_json("api/openapi.json", {"openapi": document["openapi"], "routes": routes})


def _content(part: Any, schemas: dict[str, Any]) -> Any:
    if part is None or "$ref" in part:
        return None
    return _form(part["content"]["application/json"]["schema"], schemas)


def _form(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> Any:
    """A schema without descriptions, titles and the names of components: types, members and words."""
    if "$ref" in schema:
        return _form(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth + 1) if depth < 8 else "…"
    if "properties" in schema:
        needed = set(schema.get("required", ()))
        return {
            name + ("" if name in needed else "?"): _form(inner, schemas, depth + 1)
            for name, inner in schema["properties"].items()
        }
    if "anyOf" in schema:
        return [_form(inner, schemas, depth + 1) for inner in schema["anyOf"]]
    if schema.get("type") == "array":
        return {"array of": _form(schema.get("items") or {}, schemas, depth + 1)}
    if isinstance(schema.get("additionalProperties"), dict):
        return {"object of": _form(schema["additionalProperties"], schemas, depth + 1)}
    dropped = ("title", "description", "default")
    return {name: value for name, value in schema.items() if name not in dropped}
