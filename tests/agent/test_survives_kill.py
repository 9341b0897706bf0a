"""Agent and service as processes, either one killed with -9 at random moments (seeded).

Every event is still prepared for, approved and undone, and no ended step runs again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.journal import AgentJournal
from forewarn.agent.model import EventRecord
from tests.support.service_process import ServiceProcess, eventually

FLEET = '[[hosts]]\nname = "host-{n}"\ncount = 2\n[[vms]]\nname = "vm-{n}"\ncount = 10\n'
SEEDS = range(10)
AGENT = """
endpoint = "ENDPOINT"
state = "FOLDER/state"
listen = ""
[steps.drain]
use = "command"
run = "sleep 0.03; mkdir -p FOLDER/drained; echo drain $FOREWARN_EVENT_ID >> FOLDER/log; sleep 0.03"
undo = "sleep 0.03; rm -rf FOLDER/drained; echo undrain $FOREWARN_EVENT_ID >> FOLDER/log; sleep 0.03"
check = ["test", "-d", "FOLDER/drained"]
budget = "30s"
[steps.save]
use = "command"
run = "sleep 0.03; echo save $FOREWARN_EVENT_ID >> FOLDER/log"
undo = "echo restore $FOREWARN_EVENT_ID >> FOLDER/log"
budget = "30s"
repeatable = true
[[rules]]
steps = ["drain", "save"]
approve = "when-done"
"""


class AgentProcess:
    """`python -m forewarn.agent`, which is what `forewarn agent run` becomes."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder, self.kills = folder, 0
        folder.mkdir()
        self._config = folder / "agent.toml"
        self._config.write_text(AGENT.replace("ENDPOINT", endpoint).replace("FOLDER", str(folder)))
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "agent.log").open("ab") as log:
            line = [sys.executable, "-m", "forewarn.agent", "--config", str(self._config)]
            self._child = subprocess.Popen(line, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._child is not None:
            os.kill(self._child.pid, signal.SIGKILL)
            self._child.wait(60)
            self._child, self.kills = None, self.kills + 1

    def __enter__(self) -> AgentProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None and self._child.poll() is None:
            self.kill()

    @property
    def lines(self) -> list[str]:
        log = self.folder / "log"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    def record(self) -> EventRecord | None:
        if not (self.folder / "state" / "journal.db").exists():
            return None
        journal = AgentJournal(self.folder / "state" / "journal.db", readonly=True)
        try:
            return next(iter(journal.records()), None)
        finally:
            journal.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path_factory.mktemp("killed") / "d", fleet=FLEET) as service:
        yield service


def kill_one(chance: random.Random, agent: AgentProcess, service: ServiceProcess) -> None:
    """Kills one of the two at a random moment and restarts it."""
    time.sleep(chance.uniform(0.0, 0.3))
    if chance.random() < 0.7:
        agent.kill()
        agent.start()
    else:
        service.kill()
        service.start()


def is_closed(agent: AgentProcess) -> bool:
    record = agent.record()
    return record is not None and record.closed


@pytest.mark.parametrize("seed", SEEDS)
def test_an_event_is_prepared_for_approved_and_undone_although_agent_or_service_is_killed(
    service: ServiceProcess, tmp_path: Path, seed: int
) -> None:
    chance, vm = random.Random(seed), f"vm-{seed}"
    place = service.endpoint(vm)
    with AgentProcess(tmp_path / "agent", f"http://{place.address}:{place.port}") as agent:
        event = request_restart(service, vm)
        for _ in range(2):
            kill_one(chance, agent, service)
        eventually(lambda: service.api("GET", f"/events/{event}").json["approved_at"])
        service.advance(120)
        kill_one(chance, agent, service)
        eventually(lambda: is_closed(agent))

    record, lines = agent.record(), agent.lines
    assert record is not None
    assert record.approval is not None
    assert record.approval.state == "sent"
    assert not [run for run in record.step_runs if run.state not in ("done", "skipped")], record.step_runs
    assert not (tmp_path / "agent" / "drained").exists()
    for name in ("drain", "save", "restore", "undrain"):
        assert 1 <= lines.count(name) <= 1 + agent.kills, lines
    assert max(map(lines.index, ("drain", "save"))) < min(map(lines.index, ("restore", "undrain"))), lines


def request_restart(service: ServiceProcess, vm: str) -> str:
    """Requests a restart of this VM; returns the id of the resulting event."""
    answer = service.api("POST", "/requests", {"operation": "restart", "vms": [vm]})
    assert answer.status == 202, answer.body
    request: dict[str, Any] = answer.json["request"]

    def first() -> str:
        events = service.api("GET", f"/requests/{request['id']}").json["events"]
        return str(events[0]["id"]) if events else ""

    return eventually(first)
