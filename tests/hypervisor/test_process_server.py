"""The server for supervisors, in a real service process; service and supervisors die in every order.

The fake supervisor sends a loopback listener instead of one from inside a namespace.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import stat
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_supervisor import FakeSupervisor
from tests.support.service_process import HttpAnswer, ServiceProcess, eventually

FLEET = """
[[hosts]]
name = "host-{n}"
count = 3

[[vms]]
name = "web-{n}"
count = 3
"""
POLL = "/metadata/scheduledevents?api-version="


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path_factory.mktemp("lab"), fleet=FLEET) as service:
        yield service


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service that tests may kill."""
    with ServiceProcess(data=tmp_path / "data", fleet=FLEET) as service:
        yield service


def run_scenario(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def socket_of(service: ServiceProcess) -> Path:
    return service.data / "forewarn.vms"


@asynccontextmanager
async def connected(
    service: ServiceProcess, vm: str = "web-0", *, listens: bool = False
) -> AsyncIterator[FakeSupervisor]:
    supervisor = FakeSupervisor(vm)
    supervisor.listener = open_listener() if listens else None
    await supervisor.connect(socket_of(service))
    try:
        yield supervisor
    finally:
        await supervisor.disconnect()
        if supervisor.listener is not None:
            supervisor.listener.close()


def open_listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def call(service: ServiceProcess, method: str, path: str, body: Any = None) -> HttpAnswer:
    return await asyncio.to_thread(service.api, method, path, body)


async def wait_until(condition: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(eventually, condition)


def poll(port: int, version: str = "2020-07-01", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
    try:
        connection.request("GET", POLL + version, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


async def start_event(service: ServiceProcess, operation: str = "restart", vm: str = "web-0") -> str:
    """Request maintenance and approve it: from then on an act is pending."""
    answer = await call(service, "POST", "/requests", {"operation": operation, "vms": [vm]})
    assert answer.status == 202, answer.body
    event_id: str = answer.json["events"][0]["id"]
    assert (await call(service, "POST", f"/events/{event_id}/approve")).status == 200
    return event_id


def outcome_of(service: ServiceProcess, event_id: str) -> Any:
    event = service.api("GET", f"/events/{event_id}").json
    return event if event["status"] == "over" else None


def test_only_its_owner_can_open_the_supervisor_socket(lab: ServiceProcess) -> None:
    assert stat.S_IMODE(socket_of(lab).stat().st_mode) == 0o600


def test_the_welcome_describes_the_vm(lab: ServiceProcess) -> None:
    async def scenario() -> None:
        async with connected(lab, "WEB-1") as supervisor:
            vm = supervisor.welcome
            assert vm is not None
            assert (vm["name"], vm["computer_name"], vm["host"]) == ("web-1", "web-1", "host-1")
            assert vm["key"].endswith("/fleet/web-1")
            assert Path(vm["ephemeral"]).is_dir()
            assert Path(vm["ephemeral"]).parent == Path(vm["directory"])
            assert Path(vm["directory"]).parent == lab.data / "vms"

    run_scenario(scenario())


def test_a_second_supervisor_of_a_vm_is_refused(lab: ServiceProcess) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        try:

            async def scenario() -> None:
                async with connected(lab):
                    second = FakeSupervisor("web-0", pid=child.pid)
                    await second.connect(socket_of(lab))
                    assert second.refusal == (
                        f"VM 'web-0' already runs a program (supervisor: process {os.getpid()}): end that one first"
                    )
                    await second.wait_until(lambda: not second.is_connected)

            run_scenario(scenario())
        finally:
            child.kill()


def test_a_supervisor_of_an_unknown_vm_is_refused(lab: ServiceProcess) -> None:
    async def scenario() -> None:
        async with connected(lab, "unknown") as supervisor:
            assert supervisor.refusal == "VM 'unknown' does not exist: `forewarn fleet show` lists the VMs"

    run_scenario(scenario())


def test_a_program_is_not_started_in_a_stopped_vm(killable: ServiceProcess) -> None:
    async def scenario() -> None:
        killable.api("POST", "/requests", {"operation": "power-off", "vms": ["web-0"]})
        killable.api("POST", "/clock/advance", {"by_s": 120})
        async with connected(killable) as supervisor:
            assert supervisor.refusal == "VM 'web-0' is stopped: start it first, with `forewarn power web-0 start`"

    run_scenario(scenario())


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b'{"exited": {"code": 0}}\n', b"the first message must be a hello"),
        (b"GET / HTTP/1.1\r\n", b"the message is not understood"),
        (b'{"good": "morning"}\n', b"the message has no known key"),
    ],
)
def test_a_caller_that_is_no_supervisor_gets_an_error_message(
    lab: ServiceProcess, line: bytes, sentence: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(15)
        client.connect(str(socket_of(lab)))
        client.sendall(line)
        assert sentence in client.recv(4096)
        assert client.recv(4096) == b""


def test_requests_on_the_listener_of_a_vm_are_identified_as_that_vm(lab: ServiceProcess) -> None:
    """Spec §7.4."""

    async def scenario() -> None:
        async with connected(lab, listens=True) as mine, connected(lab, "web-1", listens=True) as other:
            await mine.wait_until(lambda: mine.listener is None)
            await other.wait_until(lambda: other.listener is None)
            event_id = await _scheduled(lab, "web-0")
            (status, mine_sees), (_, other_sees) = [
                await asyncio.to_thread(poll, supervisor.port, Metadata="true") for supervisor in (mine, other)
            ]
            assert status == 200
            assert event_id.encode() in mine_sees
            assert event_id.encode() not in other_sees
            assert (await call(lab, "POST", f"/events/{event_id}/withdraw", {})).status == 200

    run_scenario(scenario())


async def _scheduled(service: ServiceProcess, vm: str) -> str:
    answer = await call(service, "POST", "/requests", {"operation": "restart", "vms": [vm]})
    event_id: str = answer.json["events"][0]["id"]
    return event_id


def test_the_header_is_required_in_every_version_inside_a_vm(lab: ServiceProcess) -> None:
    """Spec §2.2: the default on every listener that is not loopback, which none inside a VM is."""

    async def scenario() -> None:
        async with connected(lab, listens=True) as supervisor:
            await supervisor.wait_until(lambda: supervisor.listener is None)
            assert (await asyncio.to_thread(poll, supervisor.port, "2017-03-01"))[0] == 400
            assert (await asyncio.to_thread(poll, supervisor.port, "2017-03-01", Metadata="true"))[0] == 200

    run_scenario(scenario())


def test_the_listener_closes_with_the_connection(lab: ServiceProcess) -> None:
    async def scenario() -> None:
        async with connected(lab, listens=True) as supervisor:
            await supervisor.wait_until(lambda: supervisor.listener is None)
            await supervisor.disconnect()
            await wait_until(lambda: _is_refused(supervisor.port))

    run_scenario(scenario())


def _is_refused(port: int) -> bool:
    try:
        poll(port, Metadata="true")
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def test_a_socket_that_does_not_listen_is_refused(lab: ServiceProcess) -> None:
    async def scenario() -> None:
        async with connected(lab) as supervisor:
            with socket.socket() as useless:
                supervisor.send({"listener": {"address": "", "port": 0}, "fds": 1}, (useless.fileno(),))
                await supervisor.wait_until(lambda: supervisor.refusal)
            assert supervisor.refusal == "the socket is not a listening TCP socket: listen on it first"

    run_scenario(scenario())


def test_the_api_shows_supervisors_and_programs(lab: ServiceProcess) -> None:
    async def scenario() -> None:
        async with connected(lab):
            expected = {
                "vm": "web-0",
                "pid": os.getpid(),
                "state": "running",
                "boot_id": "boot-0",
                "program": ["sleep", "60"],
            }
            assert (await call(lab, "GET", "/vms/web-0")).json["supervisor"] == expected
            assert (await call(lab, "GET", "/vm-supervisors")).json == {"supervisors": [expected]}
            assert (await call(lab, "GET", "/vms/web-1")).json["supervisor"] is None
        await wait_until(lambda: lab.api("GET", "/vm-supervisors").json == {"supervisors": []})

    run_scenario(scenario())


def test_the_history_says_how_a_program_ended(lab: ServiceProcess) -> None:
    async def scenario() -> None:
        async with connected(lab) as supervisor:
            supervisor.send({"exited": {"code": 3, "signal": None, "output": "no such table: users\n"}})
            await wait_until(lambda: "ended with code 3" in history_text(lab))

    run_scenario(scenario())
    assert "the program of web-0 ended with code 3; its output: no such table: users" in history_text(lab)


def history_text(service: ServiceProcess) -> str:
    entries = service.api("GET", "/history?limit=50").json["entries"]
    return "\n".join(entry["text"] for entry in entries if entry["kind"] == "program")


def test_a_restart_reboots_the_namespace_vm_and_simulates_the_other(lab: ServiceProcess) -> None:
    async def scenario() -> None:
        async with connected(lab) as supervisor:
            event_id = await start_event(lab)
            event = await wait_until(lambda: outcome_of(lab, event_id))
            assert event["ending"] == "finished"
            assert event["acts"][0]["note"] == "done by a fake"
            assert supervisor.journal.effects == [(f"{event_id}:web-0", "reboot")]
            other = await start_event(lab, vm="web-2")  # whom no test keeps
            await asyncio.to_thread(lab.advance, 60)
            assert (await wait_until(lambda: outcome_of(lab, other)))["acts"][0]["note"] == "reboot took 30 s"

    run_scenario(scenario())


@pytest.mark.parametrize("moment", ["the order is on its way", "the answer is on its way", "the supervisor is away"])
def test_a_killed_service_reboots_each_vm_exactly_once(killable: ServiceProcess, moment: str) -> None:
    """kill -9 between commit and act, between act and answer, and while the supervisor is away."""

    async def scenario() -> None:
        async with connected(killable) as supervisor:
            supervisor.ignores_orders = moment == "the order is on its way"
            supervisor.sends_no_outcomes = moment == "the answer is on its way"
            if moment == "the supervisor is away":
                await supervisor.disconnect()
            event_id = await start_event(killable)
            if moment != "the supervisor is away":
                await supervisor.wait_until(lambda: supervisor.orders)
            await asyncio.to_thread(killable.kill)
            supervisor.ignores_orders = supervisor.sends_no_outcomes = False
            await asyncio.to_thread(killable.start)
            await supervisor.connect(socket_of(killable))
            event = await wait_until(lambda: outcome_of(killable, event_id))
            assert (event["ending"], event["acts"][0]["note"]) == ("finished", "done by a fake")
            assert supervisor.journal.effects == [(f"{event_id}:web-0", "reboot")]

    run_scenario(scenario())


def test_a_service_killed_during_a_freeze_leaves_no_vm_frozen(killable: ServiceProcess) -> None:
    """Spec §6.4: nine seconds; lab time is advanced, so the supervisor's own timer is not needed."""

    async def scenario() -> None:
        async with connected(killable) as supervisor:
            answer = await call(killable, "POST", "/rollouts", {"impact": "update", "hosts": ["host-0"]})
            assert answer.status == 202, answer.body
            event_id = (await wait_until(lambda: killable.api("GET", "/events").json["events"]))[0]["id"]
            await call(killable, "POST", f"/events/{event_id}/approve")
            await supervisor.wait_until(lambda: supervisor.state == "frozen")
            await asyncio.to_thread(killable.kill)
            await asyncio.to_thread(killable.start)
            await supervisor.connect(socket_of(killable))
            await supervisor.wait_until(lambda: len(supervisor.orders) == 2)
            await asyncio.to_thread(killable.advance, 10)
            assert (await wait_until(lambda: outcome_of(killable, event_id)))["ending"] == "finished"
            assert supervisor.journal.effects == [(f"{event_id}:web-0", "freeze")]
            assert supervisor.state == "running"

    run_scenario(scenario())


def test_an_act_on_a_vm_whose_supervisor_died_is_simulated(killable: ServiceProcess) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:

        async def scenario() -> None:
            supervisor = FakeSupervisor("web-0", pid=child.pid)
            supervisor.ignores_orders = True
            await supervisor.connect(socket_of(killable))
            event_id = await start_event(killable)
            await supervisor.wait_until(lambda: supervisor.orders)
            child.kill()
            child.wait()
            await supervisor.disconnect()
            await wait_until(lambda: killable.api("GET", "/vm-supervisors").json == {"supervisors": []})
            await asyncio.to_thread(killable.advance, 120)
            note = (await wait_until(lambda: outcome_of(killable, event_id)))["acts"][0]["note"]
            assert note == f"reboot took 30 s; its supervisor (process {child.pid}) is gone, and its program with it"

        run_scenario(scenario())
