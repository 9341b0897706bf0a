"""Our service as a child process on the servers' core, and what the rows ask of it over its API."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.process import SERVER_CORE, on_core
from tests.support.service_process import HttpAnswer, ServiceProcess, VmEndpoint

TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
_LONG_S = 600.0  # for starts and calls over thousands of VMs

SMALL = """
[[hosts]]
name = "host-{n}"
count = 4

[[vms]]
name = "web-{n}"
count = 10
"""


def single_vms(count: int, hosts: int) -> str:
    """A fleet of VMs that each are a scope of their own."""
    return f'[[hosts]]\nname = "host-{{n}}"\ncount = {hosts}\n\n[[vms]]\nname = "web-{{n}}"\ncount = {count}\n'


def one_scope(count: int) -> str:
    """A fleet whose VMs share one document."""
    hosts = f'[[hosts]]\nname = "host-{{n}}"\ncount = {count}\n\n'
    together = '[[availability_sets]]\nname = "shop"\n\n'
    return f'{hosts}{together}[[vms]]\nname = "web-{{n}}"\ncount = {count}\navailability_set = "shop"\n'


class Subject(ServiceProcess):
    """A lab, started on the servers' core or another, however long that takes."""

    def __init__(self, *, core: int | None = SERVER_CORE, **given: Any) -> None:
        self._core = core
        super().__init__(start_s=_LONG_S, **given)

    def start(self) -> None:
        with on_core(self._core):
            super().start()

    def url(self, vm: str) -> str:
        at = self.seat(vm)
        return f"http://{at.address}:{at.port}{TARGET}"

    def seat(self, vm: str) -> VmEndpoint:
        """Where the VM calls; one by one, since the whole fleet may be large."""
        address, _, port = self.ask("GET", f"/vms/{vm}")["url"].split("/")[2].rpartition(":")
        return VmEndpoint(address, int(port))

    def seats(self, vms: Sequence[str]) -> list[VmEndpoint]:
        return [self.endpoint(vm) for vm in vms]

    def sample(self, vm: str) -> HttpAnswer:
        at = self.seat(vm)
        connection = self.connect(at)
        try:
            connection.request("GET", TARGET, headers={"Metadata": "true"})
            response = connection.getresponse()
            return HttpAnswer(response.status, response.read(), dict(response.getheaders()))
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What the API answers, however long that takes; AssertionError if it refuses."""
        return json.loads(self._fetch(method, "/forewarn/v1" + path, None if body is None else json.dumps(body)))

    def series(self, name: str) -> float:
        """What the service tells Prometheus of this series."""
        return series_in(self._fetch("GET", "/metrics").decode(), name)

    def must_serve(self, vms: int) -> None:
        """AssertionError unless the fleet has so many VMs."""
        there = self.ask("GET", "/service")["counts"]["vms"]
        assert there == vms, f"the fleet has {there} VMs where {vms} were wanted"

    def must_have(self, connections: int) -> None:
        """AssertionError unless so many connections of VMs are open."""
        there = self.series("forewarn_connections")
        assert there == connections, f"{there:.0f} connections are open where {connections} were made"

    def must_hold(self, count: int) -> None:
        """AssertionError unless so many requests are held."""
        held = self.series("forewarn_long_polls_waiting")
        assert held == count, f"the service holds {held:.0f} requests where {count} wait"

    def _fetch(self, method: str, target: str, payload: str | None = None) -> bytes:
        connection = http.client.HTTPConnection("localhost", timeout=_LONG_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(_LONG_S)
        connection.sock.connect(str(self.data / "forewarn.sock"))
        try:
            connection.request(method, target, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            given = response.read()
            assert response.status < 300, f"{method} {target}: {response.status} {given!r}"
            return given
        finally:
            connection.close()

    def schedule(self, *vms: str) -> list[str]:
        """The ids of the events that follow from restarting these."""
        return [event["id"] for event in self.ask("POST", "/requests", {"ask": "restart", "vms": vms})["events"]]

    def withdraw(self, event_id: str) -> None:
        self.ask("POST", f"/events/{event_id}/withdraw", {})


def series_in(page: str, name: str) -> float:
    """The value of one series, by its name and labels as the page spells them."""
    for line in page.splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    raise LookupError(f"the service tells nothing of {name}")


@contextmanager
def subject(
    directory: Path, fleet: str = SMALL, arguments: tuple[str, ...] = (), core: int | None = SERVER_CORE
) -> Iterator[Subject]:
    with Subject(data=directory, fleet=fleet, arguments=arguments, core=core) as service:
        assert isinstance(service, Subject)
        yield service
