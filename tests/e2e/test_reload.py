"""Signals to a service with workers: a reload refuses no request, and a start can be interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service_process import HttpAnswer, ServiceProcess, eventually, free_port

FLEET = '[[hosts]]\nname = "host-{n}"\ncount = 2\n\n[[vms]]\nname = "web-{n}"\ncount = 2\n'
LARGE = FLEET.replace("count = 2", "count = 10000")
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
POLL = {"Metadata": "true"}


@pytest.fixture(params=[1, 2], ids=["one worker", "two workers"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path, fleet=FLEET, arguments=("--workers", str(request.param))) as running:
        yield running


def workers(service: ServiceProcess) -> set[int]:
    return {worker["pid"] for worker in service.api("GET", "/service").json["workers"] if worker["ready"]}


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class Held:
    """A long poll on its own connection; it waits from construction on."""

    def __init__(self, service: ServiceProcess, vm: str) -> None:
        self._connection = service.connect(service.endpoint(vm))
        tag = self._ask({}).headers["ETag"]
        self._answers: list[HttpAnswer] = []
        headers = {"If-None-Match": tag, "Prefer": "wait=60"}
        self._thread = threading.Thread(target=lambda: self._answers.append(self._ask(headers)))
        self._thread.start()

    def _ask(self, headers: dict[str, str]) -> HttpAnswer:
        self._connection.request("GET", TARGET, headers=POLL | headers)
        response = self._connection.getresponse()
        return HttpAnswer(response.status, response.read(), dict(response.getheaders()))

    def answer(self) -> HttpAnswer:
        self._thread.join(60)
        self._connection.close()
        return self._answers[0]


def test_a_reload_replaces_every_worker_answers_held_requests_and_refuses_none(service: ServiceProcess) -> None:
    before = workers(service)
    held = [Held(service, "web-0") for _ in range(4)]

    os.kill(service.pid, signal.SIGHUP)
    polls = 0
    while workers(service) & before or len(workers(service)) < len(before):
        assert service.poll("web-1")["Events"] == []
        polls += 1
        assert polls < 10_000

    assert [each.answer().status for each in held] == [304] * 4
    eventually(lambda: not any(map(is_there, before)))
    assert service.poll("web-1")["Events"] == []
    assert "WARNING" not in service.log.read_text()


def test_an_event_requested_during_a_reload_is_shown_by_old_and_new_workers(service: ServiceProcess) -> None:
    before = workers(service)
    os.kill(service.pid, signal.SIGHUP)
    asked = service.api("POST", "/requests", {"operation": "restart", "vms": ["web-0"]}).json
    for _ in range(20):
        assert [event["EventId"] for event in service.poll("web-0")["Events"]] == [asked["events"][0]["id"]]
    eventually(lambda: len(workers(service)) == len(before) and not workers(service) & before)
    assert [event["EventId"] for event in service.poll("web-0")["Events"]] == [asked["events"][0]["id"]]


def stop_by_hangup(tmp_path: Path, workers: int, stdin: int) -> str:
    """Start `forewarn up`, end it with SIGHUP, and return what it logged then."""
    log = tmp_path / "log"
    line = [sys.executable, "-m", "forewarn", "--data", str(tmp_path / "data"), "up", "--port", str(free_port())]
    line += ["--workers", str(workers), "--api", ""]
    with log.open("wb") as output:
        child = subprocess.Popen(line, stdout=output, stderr=output, stdin=stdin, start_new_session=True)
    try:
        eventually(lambda: "is up" in log.read_text())
        started = log.read_text()
        child.send_signal(signal.SIGHUP)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
    return log.read_text().removeprefix(started)


def test_a_service_without_workers_logs_why_a_hangup_stops_it(tmp_path: Path) -> None:
    logged = stop_by_hangup(tmp_path, 0, subprocess.DEVNULL)
    assert "SIGHUP stops the service: it has no workers that SIGHUP could replace\n" in logged


def test_a_service_at_a_terminal_logs_why_a_hangup_stops_it(tmp_path: Path) -> None:
    terminal, end = os.openpty()
    try:
        logged = stop_by_hangup(tmp_path, 1, end)
    finally:
        os.close(terminal)
        os.close(end)
    assert "SIGHUP stops the service: it runs at a terminal, and SIGHUP means that the terminal has closed\n" in logged


@pytest.mark.parametrize("count", [0, 2])
def test_a_start_that_is_interrupted_with_its_process_group_ends_cleanly(tmp_path: Path, count: int) -> None:
    fleet, log = tmp_path / "fleet.toml", tmp_path / "log"
    fleet.write_text(LARGE, encoding="utf-8")
    line = [sys.executable, "-m", "forewarn", "--data", str(tmp_path / "data"), "up", "--port", str(free_port())]
    line += ["--fleet", str(fleet), "--workers", str(count), "--api", ""]
    with log.open("wb") as output:
        child = subprocess.Popen(line, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        eventually(lambda: (tmp_path / "data" / "forewarn.db-wal").exists())
        eventually(lambda: not count or len(children.read_text().split()) == count)
        os.killpg(child.pid, signal.SIGTERM)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
    assert log.read_text() == ""
