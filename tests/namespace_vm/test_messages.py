"""What a keeper and the service say to each other, and what is said when there is no service."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from forewarn.errors import Refused, Rejected, Unavailable
from forewarn.testing.keeping import Keeping
from forewarn.vm import message
from forewarn.vm.journal import Outcome
from forewarn.vm.link import Link
from forewarn.vm.message import Exit, Order


def test_a_hello_says_who_keeps_which_vm_and_what_was_done() -> None:
    said = message.hello(
        vm="web-0",
        pid=7,
        started="99",
        boot_id="b",
        program=("python3", "x.py"),
        state="frozen",
        known={"a": Outcome(ok=True, note="n")},
    )

    assert json.loads(message.line(said)) == {
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
    assert Order.from_message({"act": "a", "verb": "reboot"}) == Order(act="a", verb="reboot")
    assert Order.from_message({"act": "a", "verb": "freeze", "duration_s": 9, "host": None}).duration_s == 9.0


@pytest.mark.parametrize(
    ("how", "status"),
    [(Exit(code=0), 0), (Exit(code=3), 3), (Exit(signal=9), 137), (Exit(signal=15), 143)],
)
def test_a_program_s_end_is_told_as_shells_tell_it(how: Exit, status: int) -> None:
    assert how.status == status


async def _introduced(link: Link) -> message.Vm:
    hello = message.hello(vm="web-0", pid=1, started="1", boot_id="", program=None, state="running", known={})
    return await link.introduce(hello)


def test_a_vm_that_is_not_welcome_is_told_why(service: Keeping) -> None:
    service.refusals["web-0"] = "VM 'web-0' is kept by process 7: end that one first"
    link = Link.open(service.data)

    with pytest.raises(Refused, match="kept by process 7"):
        asyncio.run(_introduced(link))

    link.close()


def test_a_welcome_says_where_the_vm_keeps_its_things(service: Keeping) -> None:
    link = Link.open(service.data)

    vm = asyncio.run(_introduced(link))

    assert (vm.name, vm.computer_name, vm.host) == ("web-0", "web-0-computer", "host-0")
    assert vm.ephemeral == vm.directory / "ephemeral"
    link.close()


def test_without_a_service_the_way_on_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no forewarn service answers in .*: start one with `forewarn up`"):
        Link.open(tmp_path)


def test_a_service_that_was_killed_is_no_service(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "forewarn.vms"))

    with pytest.raises(Unavailable, match="no forewarn service answers"):
        Link.open(tmp_path)


def test_a_path_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="too long for a socket: choose a shorter --data"):
        Link.open(tmp_path / ("x" * 120))
