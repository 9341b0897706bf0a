"""Long polls (spec §4.4) against the real process."""

from __future__ import annotations

import http.client
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.service_process import HttpAnswer, ServiceProcess, eventually

FLEET = """
[[hosts]]
name = "host-{n}"
count = 3

[[availability_sets]]
name = "db"

[[vms]]
name = "db-{n}"
count = 2
availability_set = "db"
"""
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"


@pytest.fixture(params=[(), ("--workers", "2")], ids=["one process", "two workers"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path, fleet=FLEET, arguments=request.param) as running:
        yield running


class Waiting:
    """A VM with an open long poll; constructed once the service has received it."""

    def __init__(self, service: ServiceProcess, vm: str, wait_s: int = 30) -> None:
        self.answer: HttpAnswer | None = None
        self._service, self._vm, self._wait_s = service, vm, wait_s
        self._etag = service.guest(vm, "GET", TARGET).headers["ETag"]
        self._thread = threading.Thread(target=self._wait)
        before = eventually(self._polls)
        self._thread.start()
        eventually(lambda: self._polls() > before)

    def _polls(self) -> int:
        polls: int = self._service.api("GET", f"/vms/{self._vm}").json["polls"]
        return polls

    def _wait(self) -> None:
        headers = {"If-None-Match": self._etag, "Prefer": f"wait={self._wait_s}"}
        try:
            self.answer = self._service.guest(self._vm, "GET", TARGET, **headers)
        except (OSError, http.client.HTTPException):
            pass  # the connection was closed without an answer

    def end(self) -> HttpAnswer | None:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()
        return self.answer


def test_every_long_poll_of_a_scope_is_answered_when_an_event_is_published(
    service: ServiceProcess, ask: Callable[..., str]
) -> None:
    """Spec §4.4, §7.2: at once, long before the wait ends."""
    waiting = [Waiting(service, vm) for vm in ("db-0", "db-1")]
    event_id = ask(service, "restart", "db-0")
    for answer in (one.end() for one in waiting):
        assert answer is not None
        assert (answer.status, answer.headers["Preference-Applied"]) == (200, "wait=30")
        assert [event["EventId"] for event in answer.json["Events"]] == [event_id]


def test_a_long_poll_without_a_change_is_answered_304(service: ServiceProcess) -> None:
    """Spec §4.3, §4.4."""
    etag = service.guest("db-0", "GET", TARGET).headers["ETag"]
    answer = service.guest("db-0", "GET", TARGET, **{"If-None-Match": etag, "Prefer": "wait=1"})
    assert (answer.status, answer.body, answer.headers["Preference-Applied"]) == (304, b"", "wait=1")


def test_long_polls_are_answered_when_the_service_stops(service: ServiceProcess) -> None:
    """Spec §4.4: the server drains, and exits with 0."""
    waiting = Waiting(service, "db-0")
    os.kill(service.pid, signal.SIGTERM)
    answer = waiting.end()
    assert answer is not None
    assert answer.status == 304
    eventually(lambda: not service.is_running)
    assert service.stop() == 0


def test_a_long_poll_continues_after_the_service_was_killed_and_restarted(
    service: ServiceProcess, ask: Callable[..., str]
) -> None:
    """Spec §4.3: the ETag of a document survives the process that sent it."""
    etag = service.guest("db-0", "GET", TARGET).headers["ETag"]
    waiting = Waiting(service, "db-0")
    service.kill()
    assert waiting.end() is None
    service.start()
    assert service.guest("db-0", "GET", TARGET, **{"If-None-Match": etag}).status == 304
    ask(service, "restart", "db-1")
    assert service.guest("db-0", "GET", TARGET, **{"If-None-Match": etag}).status == 200
