"""A VM outlives the service: its requests fail at once meanwhile, and it reconnects (spec §11)."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_supervisor_server import FakeSupervisorServer

pytestmark = pytest.mark.namespaces

Start = Callable[..., "subprocess.Popen[str]"]
# Polls for ever; a line for each change of what came of it.
POLLING = """
import socket, sys, time
last = None
while True:
    try:
        with socket.create_connection(("169.254.169.254", 80), timeout=20) as sock:
            sock.sendall(b"GET /x HTTP/1.0\\r\\n\\r\\n")
            now = "answered" if sock.recv(100).startswith(b"HTTP/1.0 200") else "broken"
    except OSError as error:
        now = type(error).__name__
    if now != last and now not in ("broken", "ConnectionResetError"):
        last = now
        with open(sys.argv[1], "a") as file:
            file.write(now + "\\n")
    time.sleep(0.01)
"""


def wait_for_lines(path: Path, count: int) -> list[str]:
    deadline = time.monotonic() + 30
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text().splitlines()


def test_while_the_service_is_away_connections_are_refused_and_do_not_hang(
    service: FakeSupervisorServer, start: Start, tmp_path: Path
) -> None:
    start("web-0", "--", sys.executable, "-c", POLLING, str(tmp_path / "polls"))
    wait_for_lines(tmp_path / "polls", 1)

    service.stop()
    wait_for_lines(tmp_path / "polls", 2)
    service.start()

    assert wait_for_lines(tmp_path / "polls", 3) == ["answered", "ConnectionRefusedError", "answered"]


def test_a_supervisor_reconnects_with_the_same_vm(service: FakeSupervisorServer, start: Start) -> None:
    start("web-0", "--", "sleep", "1000")
    service.wait_for_message("web-0", "listener")
    done = service.order("web-0", "reapply", act="one")
    service.outcome("web-0", done)

    for _ in range(3):
        service.stop()
        service.start()
        service.wait_for_message(
            "web-0", "listener", times=1 + sum("hello" in stderr for stderr in service.messages_from("web-0"))
        )

    first, *later = [stderr["hello"] for stderr in service.messages_from("web-0") if "hello" in stderr]
    assert len(later) == 3
    for hello in later:
        assert hello == {**first, "known": {"one": {"ok": True, "note": ""}}}


def test_the_next_hello_has_the_outcomes_of_the_meantime(service: FakeSupervisorServer, start: Start) -> None:
    start("web-0", "--grace", "0.5", "--", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    service.wait_for_message("web-0", "listener")
    act = service.order("web-0", "power-off")
    service.wait_for(lambda: [stderr for stderr in service.messages_from("web-0") if stderr.get("act") == act])

    service.stop()
    service.start()

    hello = service.wait_for_message("web-0", "hello", times=2)["hello"]
    if act not in hello["known"]:  # it was still under way
        service.outcome("web-0", act)
    service.order("web-0", "power-off", act=act)
    assert service.outcome("web-0", act)["state"] == "down"


def test_a_vm_that_is_refused_on_reconnect_ends(service: FakeSupervisorServer, start: Start) -> None:
    child = start("web-0", "--", "sleep", "1000")
    service.wait_for_message("web-0", "listener")

    service.stop()
    service.refusals["web-0"] = "VM 'web-0' was removed from the fleet"
    service.start()

    _, stderr = child.communicate(timeout=30)
    assert (child.returncode, stderr) == (2, "VM 'web-0' was removed from the fleet\n")


class SilentService(FakeSupervisorServer):
    """Accepts the hello of a VM, and does not answer its listener."""

    def handle_message(self, line: Any, message: dict[str, Any], descriptors: list[int]) -> None:
        offered = {"offered": True} if "listener" in message else message
        super().handle_message(line, offered, descriptors)


def test_a_vm_can_be_stopped_before_the_service_listens(start: Start, tmp_path: Path) -> None:
    with SilentService(tmp_path) as service:
        child = start("web-0", "--", "sleep", "1000")
        service.wait_for_message("web-0", "offered")
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=30) == 128 + signal.SIGTERM
