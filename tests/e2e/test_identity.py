"""The network identifies the calling VM (spec §2.1, §7.4), in every way a service can listen."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.service_process import ServiceProcess, VmEndpoint, free_port

LAB = """
[[hosts]]
name = "host-{n}"
count = 3

[[vms]]
name = "web-{n}"
count = 3
"""
NETWORK = """
[[hosts]]
name = "host-{n}"
count = 3

[[availability_sets]]
name = "db"

[[vms]]
name = "db-{n}"
count = 2
availability_set = "db"
address = "127.0.0.21"

[[vms]]
name = "solo"
address = "127.0.0.31"
"""
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2019-08-01&format=text"
NOT_FOUND = b'{ "error": "Not found" }'


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path, fleet=LAB, port=free_port(6), arguments=("--one-port-per-vm",)) as running:
        yield running


@pytest.fixture(params=[(), ("--workers", "2")], ids=["one process", "two workers"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path, fleet=NETWORK, command="serve", arguments=request.param) as running:
        yield running


def test_each_vm_has_its_own_port_on_a_single_address(ports: ServiceProcess, ask: Callable[..., str]) -> None:
    names = ["web-0", "web-1", "web-2"]
    endpoints = [ports.endpoint(name) for name in names]
    assert [endpoint.address for endpoint in endpoints] == ["127.0.0.1"] * 3
    assert [endpoint.port for endpoint in endpoints] == [ports.port, ports.port + 1, ports.port + 2]
    assert [ports.guest(name, "GET", NAME).body.decode() for name in names] == names

    event_id = ask(ports, "restart", "web-1")
    assert [len(ports.poll(name)["Events"]) for name in names] == [0, 1, 0]
    assert ports.approve("web-0", event_id).status == 400
    assert ports.approve("web-1", event_id).status == 200


def test_the_ports_are_the_same_after_a_restart(ports: ServiceProcess) -> None:
    before = [ports.endpoint(f"web-{n}") for n in range(3)]
    assert ports.stop() == 0
    ports.start()
    assert [ports.endpoint(f"web-{n}") for n in range(3)] == before


def test_the_called_loopback_address_identifies_the_vm_and_other_addresses_get_404(tmp_path: Path) -> None:
    with ServiceProcess(data=tmp_path, fleet=LAB) as lab:
        names = ["web-0", "web-1", "web-2"]
        assert len({lab.endpoint(name).address for name in names}) == 3
        assert [lab.guest(name, "GET", NAME).body.decode() for name in names] == names
        assert request_from(lab, VmEndpoint("127.0.0.77", lab.port), TARGET) == (404, NOT_FOUND)


def request_from(service: ServiceProcess, at: VmEndpoint, target: str, method: str = "GET") -> tuple[int, bytes]:
    connection = service.connect(at)
    try:
        connection.request(method, target, headers={"Metadata": "true"})
        response: http.client.HTTPResponse = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_vms_of_a_network_are_identified_by_their_source_addresses(
    network: ServiceProcess, ask: Callable[..., str]
) -> None:
    """Spec §7.2, §7.4: the VMs of the set share a document that other VMs do not see."""
    names = ["db-0", "db-1", "solo"]
    assert [network.endpoint(name).source for name in names] == ["127.0.0.21", "127.0.0.22", "127.0.0.31"]
    assert [network.guest(name, "GET", NAME).body.decode() for name in names] == names
    for name in names:
        assert network.poll(name) == {"DocumentIncarnation": 1, "Events": []}

    event_id = ask(network, "restart", "db-0")
    assert [len(network.poll(name)["Events"]) for name in names] == [1, 1, 0]
    refused = network.approve("solo", event_id)
    assert (refused.status, refused.body) == (
        400,
        b'{ "error": "Bad request. Unknown EventId: %s" }' % event_id.encode(),
    )
    assert network.approve("db-1", event_id).status == 200
    assert network.api("GET", f"/events/{event_id}").json["approved_by"] == "db-1"


@pytest.mark.parametrize("target", [TARGET, NAME, "/metadata/versions", "/metadata/nothing", "/"])
def test_a_caller_that_is_not_a_vm_gets_404_and_learns_nothing(network: ServiceProcess, target: str) -> None:
    """Spec §10: for every target; §2.7: before any other check."""
    for method in ("GET", "POST", "PUT"):
        assert request_from(network, VmEndpoint("127.0.0.1", network.port, "127.0.0.99"), target, method) == (
            404,
            NOT_FOUND,
        )
    assert network.api("GET", "/fleet").json["scopes"][0]["enabled"] is False, "and enables nobody"


def test_forwarding_headers_do_not_identify_a_vm(network: ServiceProcess) -> None:
    """Spec §2.3, §7.4."""
    connection = network.connect(network.endpoint("solo"))
    connection.request("GET", TARGET, headers={"Metadata": "true", "X-Forwarded-For": "127.0.0.21"})
    assert connection.getresponse().status == 400
    connection.close()


def test_the_clock_of_a_real_service_cannot_be_changed(network: ServiceProcess) -> None:
    """Spec §12: only a lab's clock can."""
    done = network.forewarn("clock", "advance", "1h")
    assert done.returncode == 2
    assert "use a lab (`forewarn up`)" in done.stderr


def test_a_vm_of_a_lab_is_known_on_loopback_and_by_its_address_on_another_network(tmp_path: Path) -> None:
    fleet = LAB + '\n[[vms]]\nname = "elsewhere"\naddress = "::1"\n'
    port = free_port()
    with ServiceProcess(data=tmp_path, fleet=fleet, arguments=("--listen", f"[::1]:{port}")) as lab:
        with closing(lab.connect(VmEndpoint("::1", port))) as connection:
            connection.request("GET", NAME, headers={"Metadata": "true"})
            assert connection.getresponse().read() == b"elsewhere"
        for name in ("web-2", "elsewhere"):
            assert lab.guest(name, "GET", NAME).body == name.encode()
