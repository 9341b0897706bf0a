"""The messages between a supervisor and the service, and the errors without a service."""

import asyncio
import json
import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from forewarn.errors import Refused, Rejected, Unavailable
from forewarn.machines.namespace_vm import messages
from forewarn.machines.namespace_vm.act_journal import VmActOutcome
from forewarn.machines.namespace_vm.connection import ServiceConnection
from forewarn.machines.namespace_vm.messages import VmActOrder, VmProgramExit
from tests.support.fake_supervisor_server import FakeSupervisorServer


def test_a_hello_names_the_vm_its_supervisor_and_the_known_outcomes() -> None:
    message = messages.hello_message(
        vm="web-0",
        pid=7,
        started="99",
        boot_id="b",
        program=("python3", "x.py"),
        state="frozen",
        known={"a": VmActOutcome(ok=True, note="n")},
    )

    assert json.loads(messages.encode_message(message)) == {
        "hello": {
            "vm": "web-0",
            "pid": 7,
            "started": "99",
            "boot_id": "b",
            "program": ["python3", "x.py"],
            "state": "frozen",
            "known": {"a": {"ok": True, "note": "n"}},
        }
    }


def test_an_order_may_omit_fields_that_its_verb_does_not_need() -> None:
    assert VmActOrder.from_message({"act": "a", "verb": "reboot", "effect": "reboot"}) == VmActOrder(
        act="a", verb="reboot", effect="reboot"
    )
    freeze = {"act": "a", "verb": "freeze", "effect": "pause", "duration_s": 9, "host": None}
    assert VmActOrder.from_message(freeze).duration_s == 9.0


@pytest.mark.parametrize(
    ("program_exit", "status"),
    [
        (VmProgramExit(code=0), 0),
        (VmProgramExit(code=3), 3),
        (VmProgramExit(signal=9), 137),
        (VmProgramExit(signal=15), 143),
    ],
)
def test_the_exit_status_of_a_program_is_that_of_a_shell(program_exit: VmProgramExit, status: int) -> None:
    assert program_exit.status == status


async def _send_hello(connection: ServiceConnection) -> messages.VmDescription:
    hello = messages.hello_message(vm="web-0", pid=1, started="1", boot_id="", program=None, state="running", known={})
    return await connection.send_hello(hello)


def test_a_refused_hello_raises_the_message_of_the_service(service: FakeSupervisorServer) -> None:
    service.refusals["web-0"] = "VM 'web-0' already runs a program (supervisor: process 7): end that one first"
    connection = ServiceConnection.open(service.data)

    with pytest.raises(Refused, match="supervisor: process 7"):
        asyncio.run(_send_hello(connection))

    connection.close()


def test_a_welcome_names_the_directories_of_the_vm(service: FakeSupervisorServer) -> None:
    connection = ServiceConnection.open(service.data)

    vm = asyncio.run(_send_hello(connection))

    assert (vm.name, vm.computer_name, vm.host) == ("web-0", "web-0-computer", "host-0")
    assert vm.ephemeral == vm.directory / "ephemeral"
    connection.close()


def test_a_descriptor_is_sent_once_the_service_reads_again() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    ours.setblocking(False)
    connection = ServiceConnection(ours)

    async def scenario() -> list[int]:
        backlog = 0
        with suppress(BlockingIOError):
            while True:
                backlog += ours.send(b" " * 65536)
        sending = asyncio.create_task(connection.send({"fds": 1}, (ours.fileno(),)))
        await asyncio.sleep(0)  # it cannot be sent yet
        while backlog > 0:
            backlog -= len(theirs.recv(65536))
        await sending
        _, received, _, _ = socket.recv_fds(theirs, 65536, 1)
        return received

    (descriptor,) = asyncio.run(scenario())
    assert os.path.sameopenfile(descriptor, ours.fileno())
    os.close(descriptor)
    connection.close()
    theirs.close()


def test_a_message_that_is_sent_meanwhile_does_not_keep_a_descriptor_from_being_sent() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    ours.setblocking(False)
    connection = ServiceConnection(ours)

    async def scenario() -> bytes:
        backlog = 0
        with suppress(BlockingIOError):
            while True:
                backlog += ours.send(b" " * 65536)
        sending = [asyncio.create_task(connection.send({"fds": 1}, (ours.fileno(),)))]
        await asyncio.sleep(0)
        sending.append(asyncio.create_task(connection.send({"outcome": "done"})))
        await asyncio.sleep(0)  # neither can be sent yet
        while backlog > 0:
            backlog -= len(theirs.recv(65536))
        async with asyncio.timeout(30):
            await asyncio.gather(*sending)
        received, descriptors, _, _ = socket.recv_fds(theirs, 65536, 1)
        os.close(descriptors[0])
        return received + theirs.recv(65536)

    assert asyncio.run(scenario()).splitlines() == [b'{"fds":1}', b'{"outcome":"done"}']
    connection.close()
    theirs.close()


def test_without_a_service_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"start one with `forewarn up` for a lab, or with `forewarn serve`"):
        ServiceConnection.open(tmp_path)


def test_the_socket_of_a_killed_service_counts_as_no_service(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "forewarn.vms"))

    with pytest.raises(Unavailable, match="no forewarn service answers"):
        ServiceConnection.open(tmp_path)


def test_a_data_directory_with_a_path_too_long_for_a_socket_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="too long for a socket: choose a shorter --data"):
        ServiceConnection.open(tmp_path / ("x" * 120))
