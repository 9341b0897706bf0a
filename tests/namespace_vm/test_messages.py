"""What a keeper and the service say to each other, and what is said when there is no service."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from forewarn.errors import Refused, Rejected, Unavailable
from forewarn.namespace_vm import messages
from forewarn.namespace_vm.act_journal import VmActOutcome
from forewarn.namespace_vm.connection import ServiceConnection
from forewarn.namespace_vm.messages import VmActOrder, VmProgramExit
from tests.support.fake_supervisor_server import FakeSupervisorServer


def test_a_hello_says_who_keeps_which_vm_and_what_was_done() -> None:
    said = messages.hello_message(
        vm="web-0",
        pid=7,
        started="99",
        boot_id="b",
        program=("python3", "x.py"),
        state="frozen",
        known={"a": VmActOutcome(ok=True, note="n")},
    )

    assert json.loads(messages.encode_message(said)) == {
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


def test_an_order_may_leave_out_what_its_verb_does_not_need() -> None:
    assert VmActOrder.from_message({"act": "a", "verb": "reboot"}) == VmActOrder(act="a", verb="reboot")
    assert VmActOrder.from_message({"act": "a", "verb": "freeze", "duration_s": 9, "host": None}).duration_s == 9.0


@pytest.mark.parametrize(
    ("how", "status"),
    [
        (VmProgramExit(code=0), 0),
        (VmProgramExit(code=3), 3),
        (VmProgramExit(signal=9), 137),
        (VmProgramExit(signal=15), 143),
    ],
)
def test_a_program_s_end_is_told_as_shells_tell_it(how: VmProgramExit, status: int) -> None:
    assert how.status == status


async def _introduced(link: ServiceConnection) -> messages.VmDescription:
    hello = messages.hello_message(vm="web-0", pid=1, started="1", boot_id="", program=None, state="running", known={})
    return await link.send_hello(hello)


def test_a_vm_that_is_not_welcome_is_told_why(service: FakeSupervisorServer) -> None:
    service.refusals["web-0"] = "VM 'web-0' already runs a program (supervisor: process 7): end that one first"
    link = ServiceConnection.open(service.data)

    with pytest.raises(Refused, match="kept by process 7"):
        asyncio.run(_introduced(link))

    link.close()


def test_a_welcome_says_where_the_vm_keeps_its_things(service: FakeSupervisorServer) -> None:
    link = ServiceConnection.open(service.data)

    vm = asyncio.run(_introduced(link))

    assert (vm.name, vm.computer_name, vm.host) == ("web-0", "web-0-computer", "host-0")
    assert vm.ephemeral == vm.directory / "ephemeral"
    link.close()


def test_without_a_service_the_way_on_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no forewarn service answers in .*: start one with `forewarn up`"):
        ServiceConnection.open(tmp_path)


def test_a_service_that_was_killed_is_no_service(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "forewarn.vms"))

    with pytest.raises(Unavailable, match="no forewarn service answers"):
        ServiceConnection.open(tmp_path)


def test_a_path_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="too long for a socket: choose a shorter --data"):
        ServiceConnection.open(tmp_path / ("x" * 120))
