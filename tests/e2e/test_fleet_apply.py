"""`fleet apply` on the running service: new VMs are served at once, VMs in use are not removed."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.service_process import ServiceProcess, VmEndpoint, eventually, free_port

HOSTS = '[[hosts]]\nname = "host-{n}"\ncount = 3\n'
NAME = "/metadata/instance/compute/name?api-version=2019-08-01&format=text"
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
Ask = Callable[..., str]


def fleet_of(*names: str) -> str:
    return HOSTS + "".join(f'\n[[vms]]\nname = "{name}"\n' for name in names)


@pytest.fixture(params=[(), ("--one-port-per-vm",)], ids=["addresses", "ports"])
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    options = tuple(request.param)
    with ServiceProcess(data=tmp_path, fleet=fleet_of("a", "b"), port=free_port(8), arguments=options) as running:
        yield running


def apply(service: ServiceProcess, *names: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    file = service.data / "proposal.toml"
    file.write_text(fleet_of(*names))
    return service.forewarn("fleet", "apply", str(file), "--yes", *options)


def names_of(service: ServiceProcess) -> list[str]:
    return sorted(vm["name"] for vm in service.api("GET", "/fleet").json["vms"])


def status_at(service: ServiceProcess, endpoint: VmEndpoint) -> int:
    with closing(service.connect(endpoint)) as connection:
        connection.request("GET", TARGET, headers={"Metadata": "true"})
        return connection.getresponse().status


def test_a_vm_that_is_added_is_served_at_once(service: ServiceProcess, ask: Ask) -> None:
    """Spec §7.1: with its own endpoint and document."""
    done = apply(service, "a", "b", "c", "d")
    assert (done.returncode, done.stderr) == (0, ""), done
    for name in ("c", "d"):
        assert service.guest(name, "GET", NAME).body.decode() == name
        assert service.poll(name) == {"DocumentIncarnation": 1, "Events": []}
    event_id = ask(service, "restart", "c")
    assert [event["EventId"] for event in service.poll("c")["Events"]] == [event_id]
    assert service.poll("d")["Events"] == []


def test_endpoints_stay_the_same_when_vms_come_and_go_and_after_a_restart(service: ServiceProcess) -> None:
    assert apply(service, "a", "b", "c").returncode == 0
    before = {name: service.endpoint(name) for name in ("a", "b", "c")}
    assert apply(service, "a", "c", "d").returncode == 0
    assert service.stop() == 0
    service.start()
    assert {name: service.endpoint(name) for name in ("a", "c")} == {name: before[name] for name in ("a", "c")}
    assert service.endpoint("d") != before["b"], "what is gone is not taken for what is new"
    for name in ("a", "c", "d"):
        assert service.guest(name, "GET", NAME).body.decode() == name


def test_the_endpoint_of_a_removed_vm_answers_404(service: ServiceProcess) -> None:
    """Spec §10: an unknown caller gets 404."""
    gone = service.endpoint("b")
    assert status_at(service, gone) == 200
    assert apply(service, "a").returncode == 0
    assert status_at(service, gone) == 404
    assert names_of(service) == ["a"]


def test_a_deleted_vm_stays_deleted_unless_resurrected(service: ServiceProcess) -> None:
    assert service.forewarn("delete", "b").returncode == 0
    service.advance(120)
    assert names_of(service) == ["a"]
    done = apply(service, "a", "b")
    assert done.returncode == 0
    assert names_of(service) == ["a"]

    assert apply(service, "a", "b", options=("--resurrect",)).returncode == 0
    assert names_of(service) == ["a", "b"]
    assert service.guest("b", "GET", NAME).body.decode() == "b"


def test_a_fleet_file_that_removes_a_vm_under_maintenance_is_refused_whole(service: ServiceProcess, ask: Ask) -> None:
    event_id = ask(service, "restart", "b")
    assert service.approve("b", event_id).status == 200
    eventually(lambda: service.poll("b")["Events"][0]["EventStatus"] == "Started")
    done = apply(service, "a", "c")
    assert done.returncode == 2
    assert "'b'" in done.stderr
    assert names_of(service) == ["a", "b"]

    service.advance(120)
    assert apply(service, "a", "c").returncode == 0
    assert names_of(service) == ["a", "c"]


def test_a_pending_event_of_a_vm_that_is_removed_is_withdrawn(service: ServiceProcess, ask: Ask) -> None:
    """Spec §4.2: an event with no VM left is withdrawn."""
    event_id = ask(service, "restart", "b")
    assert apply(service, "a").returncode == 0
    event = service.api("GET", f"/events/{event_id}").json
    assert (event["status"], event["ending"]) == ("over", "withdrawn")


def test_a_new_vm_is_served_even_if_the_next_port_is_taken(tmp_path: Path) -> None:
    """With one port per VM, another program may have the next port."""
    port = free_port(5)
    with (
        ServiceProcess(data=tmp_path, fleet=fleet_of("a"), port=port, arguments=("--one-port-per-vm",)) as service,
        socket.create_server(("127.0.0.1", port + 1)),
    ):
        assert apply(service, "a", "b", "c").returncode == 0
        for name in ("a", "b", "c"):
            assert service.guest(name, "GET", NAME).body.decode() == name
        assert service.endpoint("b").port != port + 1


def test_an_address_that_moves_to_another_vm_and_back_serves_the_first_vm_again(tmp_path: Path) -> None:
    """The fleet's current address decides, no matter which VM had it in between."""
    with ServiceProcess(data=tmp_path) as service:
        for name in ("first", "second", "first"):
            added = service.api("POST", "/fleet/vms", {"name": name, "address": "127.0.99.9"})
            assert added.status in (200, 201), added.body
            answer = service.guest(name, "GET", NAME)
            assert (answer.status, answer.body.decode()) == (200, name)
            assert service.api("DELETE", f"/fleet/vms/{name}").status == 200


def test_a_fleet_option_for_a_store_with_a_fleet_is_reported_as_not_applied(tmp_path: Path) -> None:
    with ServiceProcess(data=tmp_path, fleet=fleet_of("a"), port=free_port(8)) as first:
        first.stop()
        first.start()
        assert "is not applied" not in first.log.read_text()  # the same file again
    with ServiceProcess(data=tmp_path, fleet=fleet_of("b"), port=free_port(8)) as second:
        assert names_of(second) == ["a"]
        assert "was not applied, because" in second.log.read_text()
        assert "`forewarn fleet apply" in second.log.read_text()


def test_every_vm_of_a_large_file_is_served_when_the_change_is_answered(service: ServiceProcess) -> None:
    """Many scopes are published in turns, and the answer waits for the last of them."""
    names = ["a", "b", *(f"vm-{number}" for number in range(250))]
    assert apply(service, *names).returncode == 0
    assert service.guest("vm-249", "GET", NAME).body.decode() == "vm-249"
    assert service.poll("vm-0") == {"DocumentIncarnation": 1, "Events": []}
