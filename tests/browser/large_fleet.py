"""A fleet of 3,000 VMs with events of every state, for tests and screenshots."""

from __future__ import annotations

from typing import Any

from tests.support.web_service import WebService

LARGE_FLEET = """
[defaults]
resource_group = "shop"
location = "westeurope"

[[hosts]]
name = "host-{n}"
count = 100

[[availability_sets]]
name = "web"
update_domains = 5
fault_domains = 3

[[vms]]
name = "web-{n}"
count = 100
availability_set = "web"

[[scale_sets]]
name = "checkout-frontend-westeurope"
count = 300

[[vms]]
name = "db-{n}"
count = 600

[[vms]]
name = "batch-worker-{n}"
count = 1600
resource_group = "batch"

[[vms]]
name = "cache-{n}"
count = 400
resource_group = "cache"
"""


def populate_large_fleet(console: WebService) -> dict[str, str]:
    """Makes past, pending and failed events, an open rollout and a fault; returns their ids and names of things."""
    service = console.service

    def post(path: str, body: dict[str, Any]) -> Any:
        answer = service.api("POST", path, body)
        assert answer.status < 300, answer.body
        return answer.json

    for vm in ("db-0", "db-1", "db-2", "web-0", "cache-0", "batch-worker-0"):
        service.poll(vm)
    over = post("/requests", {"operation": "restart", "vms": [f"db-{n}" for n in range(8)]})["events"]
    console.approve_all("db-1")
    service.advance(1200)
    withdrawn = post("/requests", {"operation": "restart", "vms": ["cache-0"]})["events"][0]["id"]
    post(f"/events/{withdrawn}/withdraw", {"reason": "wrong VM"})
    pending = post(
        "/requests", {"operation": "redeploy", "vms": ["db-0", *(f"batch-worker-{n}" for n in range(1, 20))]}
    )
    rollout = post("/rollouts", {"impact": "reboot", "scope": "web"})
    post("/rollouts", {"impact": "update", "hosts": ["host-7", "host-8"]})
    post("/hosts/host-9/degrade", {"in_s": 3600})
    post("/faults", {"kind": "slow-body", "vm": "web-1", "duration_s": 86400})
    vms = {vm["name"]: vm for vm in service.api("GET", "/fleet").json["vms"]}
    return {
        "over": over[0]["id"],
        "event": pending["events"][0]["id"],
        "request": pending["request"]["id"],
        "rollout": rollout["id"],
        "scope": vms["web-0"]["scope"],
        "vm": vms["db-0"]["key"],
    }
