"""Our service as a child process on the servers' core, and the API calls that the rows need."""

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
_TIMEOUT_S = 600.0  # for starts and calls with thousands of VMs

SMALL = """
[[hosts]]
name = "host-{n}"
count = 4

[[vms]]
name = "web-{n}"
count = 10
"""


def single_vms(count: int, hosts: int) -> str:
    """Return a fleet file in which each VM is a scope of its own."""
    return f'[[hosts]]\nname = "host-{{n}}"\ncount = {hosts}\n\n[[vms]]\nname = "web-{{n}}"\ncount = {count}\n'


def one_scope(count: int) -> str:
    """Return a fleet file in which all VMs share one scope, so one document."""
    hosts = f'[[hosts]]\nname = "host-{{n}}"\ncount = {count}\n\n'
    together = '[[availability_sets]]\nname = "shop"\n\n'
    return f'{hosts}{together}[[vms]]\nname = "web-{{n}}"\ncount = {count}\navailability_set = "shop"\n'


class BenchService(ServiceProcess):
    """A service on the servers' core, or on another; starts and calls may take long."""

    def __init__(self, *, core: int | None = SERVER_CORE, **options: Any) -> None:
        self._core = core
        super().__init__(start_s=_TIMEOUT_S, **options)

    def start(self) -> None:
        with on_core(self._core):
            super().start()

    def url(self, vm: str) -> str:
        """Return the URL that the VM polls."""
        endpoint = self.endpoint_of(vm)
        return f"http://{endpoint.address}:{endpoint.port}{TARGET}"

    def endpoint_of(self, vm: str) -> VmEndpoint:
        """Return where the VM connects, with one call: listing a large fleet would take long."""
        address, _, port = self.ask("GET", f"/vms/{vm}")["url"].split("/")[2].rpartition(":")
        return VmEndpoint(address, int(port))

    def endpoints(self, vms: Sequence[str]) -> list[VmEndpoint]:
        """Return where each of the VMs connects."""
        return [self.endpoint(vm) for vm in vms]

    def sample(self, vm: str) -> HttpAnswer:
        """Poll once as the VM."""
        connection = self.connect(self.endpoint_of(vm))
        try:
            connection.request("GET", TARGET, headers={"Metadata": "true"})
            response = connection.getresponse()
            return HttpAnswer(response.status, response.read(), dict(response.getheaders()))
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Call the API and return its JSON. AssertionError if it refuses."""
        return json.loads(self._fetch(method, "/forewarn/v1" + path, None if body is None else json.dumps(body)))

    def metric(self, series: str) -> float:
        """Return the current value of a Prometheus series."""
        return metric_value(self._fetch("GET", "/metrics").decode(), series)

    def check_vm_count(self, vms: int) -> None:
        """AssertionError unless the fleet has exactly this many VMs."""
        found = self.ask("GET", "/service")["counts"]["vms"]
        assert found == vms, f"the fleet has {found} VMs, not {vms}"

    def check_connections(self, connections: int) -> None:
        """AssertionError unless exactly this many connections of VMs are open."""
        found = self.metric("forewarn_connections")
        assert found == connections, f"{found:.0f} connections are open, not {connections}"

    def check_held(self, count: int) -> None:
        """AssertionError unless exactly this many long polls are held."""
        held = self.metric("forewarn_long_polls_waiting")
        assert held == count, f"the service holds {held:.0f} long polls, not {count}"

    def _fetch(self, method: str, target: str, payload: str | None = None) -> bytes:
        connection = http.client.HTTPConnection("localhost", timeout=_TIMEOUT_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(_TIMEOUT_S)
        connection.sock.connect(str(self.data / "forewarn.sock"))
        try:
            connection.request(method, target, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            body = response.read()
            assert response.status < 300, f"{method} {target}: {response.status} {body!r}"
            return body
        finally:
            connection.close()

    def schedule(self, *vms: str) -> list[str]:
        """Request a restart of the VMs and return the ids of the events."""
        return [event["id"] for event in self.ask("POST", "/requests", {"operation": "restart", "vms": vms})["events"]]

    def withdraw(self, event_id: str) -> None:
        """Withdraw an event."""
        self.ask("POST", f"/events/{event_id}/withdraw", {})


def metric_value(page: str, series: str) -> float:
    """Return the value of a series on a metrics page, by its name and labels as the page writes them."""
    for line in page.splitlines():
        if line.startswith(f"{series} "):
            return float(line.rpartition(" ")[2])
    raise LookupError(f"the service has no metric {series}")


@contextmanager
def running_service(
    directory: Path, fleet: str = SMALL, arguments: tuple[str, ...] = (), core: int | None = SERVER_CORE
) -> Iterator[BenchService]:
    """Run a service with this fleet until the block ends."""
    with BenchService(data=directory, fleet=fleet, arguments=arguments, core=core) as service:
        assert isinstance(service, BenchService)
        yield service
