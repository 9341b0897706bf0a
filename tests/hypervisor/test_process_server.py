"""The door for keepers, on a service that really runs: a fake keeper brings a plain loopback listener instead of one
from inside a namespace, and service and keeper die in every order.
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
def own(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service that may be killed."""
    with ServiceProcess(data=tmp_path / "data", fleet=FLEET) as service:
        yield service


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def socket_of(service: ServiceProcess) -> Path:
    return service.data / "forewarn.vms"


@asynccontextmanager
async def kept(service: ServiceProcess, vm: str = "web-0", *, listens: bool = False) -> AsyncIterator[FakeSupervisor]:
    keeper = FakeSupervisor(vm)
    keeper.listener = listening() if listens else None
    await keeper.connect(socket_of(service))
    try:
        yield keeper
    finally:
        await keeper.disconnect()
        if keeper.listener is not None:
            keeper.listener.close()


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def call(service: ServiceProcess, method: str, path: str, body: Any = None) -> HttpAnswer:
    return await asyncio.to_thread(service.api, method, path, body)


async def until(condition: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(eventually, condition)


def asked(port: int, version: str = "2020-07-01", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
    try:
        connection.request("GET", POLL + version, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


async def starts(service: ServiceProcess, ask: str = "restart", vm: str = "web-0") -> str:
    """Somebody asks for maintenance, and approves it: from then on an act is owed."""
    answer = await call(service, "POST", "/requests", {"ask": ask, "vms": [vm]})
    assert answer.status == 202, answer.body
    event_id: str = answer.json["events"][0]["id"]
    assert (await call(service, "POST", f"/events/{event_id}/approve")).status == 200
    return event_id


def is_over(service: ServiceProcess, event_id: str) -> Any:
    event = service.api("GET", f"/events/{event_id}").json
    return event if event["status"] == "over" else None


def test_only_its_owner_can_open_the_socket(lab: ServiceProcess) -> None:
    assert stat.S_IMODE(socket_of(lab).stat().st_mode) == 0o600


def test_a_keeper_is_told_about_its_vm(lab: ServiceProcess) -> None:
    async def story() -> None:
        async with kept(lab, "WEB-1") as keeper:
            vm = keeper.welcome
            assert vm is not None
            assert (vm["name"], vm["computer_name"], vm["host"]) == ("web-1", "web-1", "host-1")
            assert vm["key"].endswith("/fleet/web-1")
            assert Path(vm["ephemeral"]).is_dir()
            assert Path(vm["ephemeral"]).parent == Path(vm["directory"])
            assert Path(vm["directory"]).parent == lab.data / "vms"

    play(story())


def test_a_vm_has_one_keeper_at_a_time(lab: ServiceProcess) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        try:

            async def story() -> None:
                async with kept(lab):
                    second = FakeSupervisor("web-0", pid=child.pid)
                    await second.connect(socket_of(lab))
                    assert second.refusal == (
                        f"VM 'web-0' is kept by process {os.getpid()} already: end that one first"
                    )
                    await second.wait_until(lambda: not second.is_connected)

            play(story())
        finally:
            child.kill()


def test_the_keeper_of_no_vm_is_refused(lab: ServiceProcess) -> None:
    async def story() -> None:
        async with kept(lab, "nobody") as keeper:
            assert keeper.refusal == "VM 'nobody' does not exist: `forewarn fleet show` lists the VMs"

    play(story())


def test_in_a_vm_that_is_turned_off_nothing_is_started(own: ServiceProcess) -> None:
    async def story() -> None:
        own.api("POST", "/requests", {"ask": "power-off", "vms": ["web-0"]})
        own.api("POST", "/clock/advance", {"by_s": 120})
        async with kept(own) as keeper:
            assert keeper.refusal == "VM 'web-0' is stopped: turn it on first, with `forewarn power web-0 start`"

    play(story())


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b'{"exited": {"code": 0}}\n', b"a keeper says hello first"),
        (b"GET / HTTP/1.1\r\n", b"this line is not understood"),
        (b'{"good": "morning"}\n', b"this line says nothing that is known"),
    ],
)
def test_whoever_is_no_keeper_is_told_so(lab: ServiceProcess, line: bytes, sentence: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(15)
        stranger.connect(str(socket_of(lab)))
        stranger.sendall(line)
        assert sentence in stranger.recv(4096)
        assert stranger.recv(4096) == b""


def test_calls_on_the_listener_are_the_vms(lab: ServiceProcess) -> None:
    """Spec §7.4: and nobody else's."""

    async def story() -> None:
        async with kept(lab, listens=True) as mine, kept(lab, "web-1", listens=True) as other:
            await mine.wait_until(lambda: mine.listener is None)
            await other.wait_until(lambda: other.listener is None)
            event_id = await _scheduled(lab, "web-0")
            (status, mine_sees), (_, other_sees) = [
                await asyncio.to_thread(asked, keeper.port, Metadata="true") for keeper in (mine, other)
            ]
            assert status == 200
            assert event_id.encode() in mine_sees
            assert event_id.encode() not in other_sees
            assert (await call(lab, "POST", f"/events/{event_id}/withdraw", {})).status == 200

    play(story())


async def _scheduled(service: ServiceProcess, vm: str) -> str:
    answer = await call(service, "POST", "/requests", {"ask": "restart", "vms": [vm]})
    event_id: str = answer.json["events"][0]["id"]
    return event_id


def test_the_header_is_required_in_every_version_inside_a_vm(lab: ServiceProcess) -> None:
    """Spec §2.2: by default on every listener that is not loopback, and inside a VM none is."""

    async def story() -> None:
        async with kept(lab, listens=True) as keeper:
            await keeper.wait_until(lambda: keeper.listener is None)
            assert (await asyncio.to_thread(asked, keeper.port, "2017-03-01"))[0] == 400
            assert (await asyncio.to_thread(asked, keeper.port, "2017-03-01", Metadata="true"))[0] == 200

    play(story())


def test_when_the_line_ends_the_listener_does(lab: ServiceProcess) -> None:
    async def story() -> None:
        async with kept(lab, listens=True) as keeper:
            await keeper.wait_until(lambda: keeper.listener is None)
            await keeper.disconnect()
            await until(lambda: _is_refused(keeper.port))

    play(story())


def _is_refused(port: int) -> bool:
    try:
        asked(port, Metadata="true")
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def test_a_socket_that_does_not_listen_is_refused(lab: ServiceProcess) -> None:
    async def story() -> None:
        async with kept(lab) as keeper:
            with socket.socket() as useless:
                keeper.send({"listener": {"address": "", "port": 0}, "fds": 1}, (useless.fileno(),))
                await keeper.wait_until(lambda: keeper.refusal)
            assert keeper.refusal == "what was handed over is no listening TCP socket: listen on it first"

    play(story())


def test_the_api_shows_who_keeps_what(lab: ServiceProcess) -> None:
    async def story() -> None:
        async with kept(lab):
            expected = {
                "vm": "web-0",
                "pid": os.getpid(),
                "state": "running",
                "boot_id": "boot-0",
                "program": ["sleep", "60"],
            }
            assert (await call(lab, "GET", "/vms/web-0")).json["keeper"] == expected
            assert (await call(lab, "GET", "/keepers")).json == {"keepers": [expected]}
            assert (await call(lab, "GET", "/vms/web-1")).json["keeper"] is None
        await until(lambda: lab.api("GET", "/keepers").json == {"keepers": []})

    play(story())


def test_how_a_program_ended_is_in_the_history(lab: ServiceProcess) -> None:
    async def story() -> None:
        async with kept(lab) as keeper:
            keeper.send({"exited": {"code": 3, "signal": None, "output": "no such table: users\n"}})
            await until(lambda: "ended with code 3" in _told(lab))

    play(story())
    assert "the program of web-0 ended with code 3; it said: no such table: users" in _told(lab)


def _told(service: ServiceProcess) -> str:
    entries = service.api("GET", "/history?limit=50").json["entries"]
    return "\n".join(entry["text"] for entry in entries if entry["what"] == "program")


def test_a_restart_reboots_the_vm_that_is_kept_and_simulates_the_other(lab: ServiceProcess) -> None:
    async def story() -> None:
        async with kept(lab) as keeper:
            event_id = await starts(lab)
            event = await until(lambda: is_over(lab, event_id))
            assert event["ending"] == "finished"
            assert event["acts"][0]["note"] == "done by a fake"
            assert keeper.journal.effects == [(f"{event_id}:web-0", "reboot")]
            other = await starts(lab, vm="web-2")  # whom no test keeps
            await asyncio.to_thread(lab.advance, 60)
            assert (await until(lambda: is_over(lab, other)))["acts"][0]["note"] == "reboot took 30 s"

    play(story())


@pytest.mark.parametrize("moment", ["the order is on its way", "the answer is on its way", "nobody was there"])
def test_a_service_that_is_killed_reboots_nobody_twice_and_forgets_nobody(own: ServiceProcess, moment: str) -> None:
    """kill -9 between commit and act, between act and answer, and while the keeper was not there at all."""

    async def story() -> None:
        async with kept(own) as keeper:
            keeper.ignores_orders = moment == "the order is on its way"
            keeper.sends_no_outcomes = moment == "the answer is on its way"
            if moment == "nobody was there":
                await keeper.disconnect()
            event_id = await starts(own)
            if moment != "nobody was there":
                await keeper.wait_until(lambda: keeper.orders)
            await asyncio.to_thread(own.kill)
            keeper.ignores_orders = keeper.sends_no_outcomes = False
            await asyncio.to_thread(own.start)
            await keeper.connect(socket_of(own))
            event = await until(lambda: is_over(own, event_id))
            assert (event["ending"], event["acts"][0]["note"]) == ("finished", "done by a fake")
            assert keeper.journal.effects == [(f"{event_id}:web-0", "reboot")]

    play(story())


def test_a_service_that_is_killed_during_a_freeze_leaves_nobody_frozen(own: ServiceProcess) -> None:
    """Spec §6.4: nine seconds; lab time is advanced, and the keeper's own timer is never needed."""

    async def story() -> None:
        async with kept(own) as keeper:
            answer = await call(own, "POST", "/rollouts", {"impact": "update", "hosts": ["host-0"]})
            assert answer.status == 202, answer.body
            event_id = (await until(lambda: own.api("GET", "/events").json["events"]))[0]["id"]
            await call(own, "POST", f"/events/{event_id}/approve")
            await keeper.wait_until(lambda: keeper.state == "frozen")
            await asyncio.to_thread(own.kill)
            await asyncio.to_thread(own.start)
            await keeper.connect(socket_of(own))
            await keeper.wait_until(lambda: len(keeper.orders) == 2)
            await asyncio.to_thread(own.advance, 10)
            assert (await until(lambda: is_over(own, event_id)))["ending"] == "finished"
            assert keeper.journal.effects == [(f"{event_id}:web-0", "freeze")]
            assert keeper.state == "running"

    play(story())


def test_a_keeper_that_dies_with_its_vm_leaves_the_act_to_the_simulation(own: ServiceProcess) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:

        async def story() -> None:
            keeper = FakeSupervisor("web-0", pid=child.pid)
            keeper.ignores_orders = True
            await keeper.connect(socket_of(own))
            event_id = await starts(own)
            await keeper.wait_until(lambda: keeper.orders)
            child.kill()
            child.wait()
            await keeper.disconnect()
            await until(lambda: own.api("GET", "/keepers").json == {"keepers": []})
            await asyncio.to_thread(own.advance, 120)
            note = (await until(lambda: is_over(own, event_id)))["acts"][0]["note"]
            assert note == f"reboot took 30 s; its keeper (process {child.pid}) is gone, and its program with it"

        play(story())
