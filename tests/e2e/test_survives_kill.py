"""The real process is killed at random moments while approvals and requests arrive.

Nothing that was answered is lost, no act is forgotten, and none takes effect twice.
"""

from __future__ import annotations

import http.client
import random
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.service_process import ServiceProcess

FLEET = """
[defaults]
location = "westeurope"
resource_group = "crash"

[[hosts]]
name = "host-{n}"
count = 6

[[availability_sets]]
name = "front"
update_domains = 3

[[vms]]
name = "front-{n}"
count = 12
availability_set = "front"

[[vms]]
name = "solo-{n}"
count = 28
"""
VMS = [f"front-{n}" for n in range(12)] + [f"solo-{n}" for n in range(28)]
ASKS = ["restart", "redeploy", "reapply", "power-off", "start", "restart"]


@dataclass
class Accepted:
    """What the service answered as accepted."""

    requests: list[str] = field(default_factory=list)
    approvals: list[str] = field(default_factory=list)
    calls: int = 0


def work(service: ServiceProcess, seed: int, accepted: Accepted, stop: threading.Event) -> None:
    """One client: requests operations and approves events; it continues when the service is down."""
    chance = random.Random(seed)
    while not stop.is_set():
        vm = chance.choice(VMS)
        accepted.calls += 1
        try:
            if chance.random() < 0.5:
                answer = service.api("POST", "/requests", {"operation": chance.choice(ASKS), "vms": [vm]})
                if answer.status == 202:
                    accepted.requests.append(answer.json["request"]["id"])
            else:
                ids = [event["EventId"] for event in service.poll(vm)["Events"]]
                if ids and service.approve(vm, *ids).status == 200:
                    accepted.approvals.extend(ids)
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(0.02)


def effects(data: Path) -> dict[str, int]:
    """How often each act took effect, read from the hypervisor's own ledger."""
    from forewarn.machines.ledger import EffectLedger

    ledger = EffectLedger(data / "simulated.db")
    try:
        assert ledger.repeated_effects == 0
        counted: dict[str, int] = {}
        for effect in ledger.effects():
            counted[effect.act_id] = counted.get(effect.act_id, 0) + 1
        return counted
    finally:
        ledger.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_answered_is_lost_when_the_process_is_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    accepted = Accepted()
    with ServiceProcess(data=tmp_path / "d", fleet=FLEET) as service:
        assert service.api("POST", "/clock/speed", {"speed": 300}).status == 200
        for _ in range(4):
            stop = threading.Event()
            clients = [threading.Thread(target=work, args=(service, chance.random(), accepted, stop)) for _ in range(6)]
            for client in clients:
                client.start()
            time.sleep(chance.uniform(0.3, 1.5))
            service.kill()
            stop.set()
            for client in clients:
                client.join()
            service.start()

        service.advance(2 * 3600)
        assert len(accepted.requests) + len(accepted.approvals) > 50
        for request_id in accepted.requests:
            answer = service.api("GET", f"/requests/{request_id}")
            assert answer.status == 200, f"accepted request {request_id} is lost"
            assert answer.json["events"], f"accepted request {request_id} led to nothing"
        for event_id in set(accepted.approvals):
            event = service.api("GET", f"/events/{event_id}").json
            # A redeploy replaces a pending restart: approving that afterwards is harmless (spec §5.2).
            replaced = event["ending"] == "withdrawn" and event["reason"].startswith("replaced by")
            assert event["approved_at"] is not None or event["started_at"] is not None or replaced
        owed = service.api("GET", "/events?all=true&limit=100000").json["events"]
        assert all(event["status"] == "over" for event in owed)
        performed = {f"{e['id']}:{act['vm'].casefold()}" for e in owed for act in e["acts"] if act["ok"]}
        assert service.stop() == 0

    happened = effects(tmp_path / "d")
    assert performed <= happened.keys(), "an act was reported as performed and left no effect"
    assert set(happened.values()) <= {1}, "an act took effect twice"
    with closing(sqlite3.connect(tmp_path / "d" / "forewarn.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
