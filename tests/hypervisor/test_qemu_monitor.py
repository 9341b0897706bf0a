"""The connection to QEMU's monitor: what people read when it is missing, forbidden, silent, or not QEMU."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.errors import Refused
from forewarn.machines.driver import HostUnreachable
from forewarn.machines.qemu.qmp import Monitor, MonitorCommandFailed, MonitorNotListening, connect_monitor
from tests.support import fake_qemu
from tests.support.service_process import eventually

CONNECT_AS_NOBODY = """
import asyncio, os, sys
from pathlib import Path
from forewarn.machines.qemu.qmp import connect_monitor, require_qmp

async def main():
    async with connect_monitor(Path(sys.argv[1]), "VM x", timeout_s=5):
        pass

require_qmp()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
asyncio.run(main())
"""
NAME = "VM 'web-0' on host 'host-1'"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]
StartFake = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_fake(tmp_path: Path) -> Iterator[StartFake]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> subprocess.Popen[bytes]:
        qmp = f"unix:{tmp_path / 'q'},server=on,wait=off"
        line = [sys.executable, "-I", "-S", fake_qemu.__file__, "-qmp", qmp, "-pidfile", str(tmp_path / "pid")]
        started.append(subprocess.Popen([*line, *options]))
        eventually((tmp_path / "q").exists)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def use(socket_path: Path, act: Callable[[Monitor], Any], *, timeout_s: float = 5.0) -> Any:
    async def scenario() -> Any:
        async with connect_monitor(socket_path, NAME, timeout_s=timeout_s) as monitor:
            return await act(monitor)

    return asyncio.run(scenario())


def use_scripted(path: Path, talk: Talk, *, timeout_s: float = 5.0) -> None:
    """Connect to a server that sends what `talk` writes."""

    async def scenario() -> None:
        server = await asyncio.start_unix_server(talk, path)
        async with server, connect_monitor(path, NAME, timeout_s=timeout_s) as monitor:
            await monitor.execute("query-status")

    asyncio.run(scenario())


def query_status(monitor: Monitor) -> Any:
    return monitor.execute("query-status")


def test_commands_are_answered(tmp_path: Path, start_fake: StartFake) -> None:
    start_fake()
    assert use(tmp_path / "q", query_status) == {"status": "running", "running": True}
    assert use(tmp_path / "q", query_status) == {"status": "running", "running": True}


def test_a_missing_socket_and_one_without_a_listener_say_that_qemu_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(MonitorNotListening, match=rf"QEMU of {NAME} does not run: socket '.*/q' does not exist"):
        use(tmp_path / "q", query_status)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "q"))
    with pytest.raises(MonitorNotListening, match=r"does not run: nothing listens on socket '.*/q'"):
        use(tmp_path / "q", query_status)


def test_a_socket_without_permission_says_who_may_connect() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as server:
        os.chmod(directory, 0o755)
        path = Path(directory) / "q"
        server.bind(str(path))
        path.chmod(0o600)
        server.listen()
        done = subprocess.run(
            [sys.executable, "-c", CONNECT_AS_NOBODY, str(path)], capture_output=True, text=True, check=False
        )
    assert "Refused: no permission to connect to socket" in done.stderr
    assert "run the service as the user who owns the socket" in done.stderr


def test_an_error_of_qemu_is_told_in_one_sentence(tmp_path: Path, start_fake: StartFake) -> None:
    start_fake("-refuse", "query-status")
    with pytest.raises(MonitorCommandFailed) as caught:
        use(tmp_path / "q", query_status)
    assert str(caught.value) == f"QEMU of {NAME} refused 'query-status': The command query-status is refused"
    assert isinstance(caught.value, Refused)


def test_a_command_without_an_answer_ends_after_the_timeout(tmp_path: Path, start_fake: StartFake) -> None:
    start_fake("-hang", "query-status")
    with pytest.raises(HostUnreachable, match=r"did not answer 'query-status' within 0.2 s"):
        use(tmp_path / "q", query_status, timeout_s=0.2)


def test_a_socket_that_is_used_by_another_program_is_silent(tmp_path: Path, start_fake: StartFake) -> None:
    start_fake()

    async def connect_again(_: Monitor) -> None:
        async with connect_monitor(tmp_path / "q", NAME, timeout_s=0.2):
            pass

    with pytest.raises(HostUnreachable, match="it hangs, or another program is connected to this socket"):
        use(tmp_path / "q", connect_again)


def test_quit_is_quiet(tmp_path: Path, start_fake: StartFake, caplog: pytest.LogCaptureFixture) -> None:
    process = start_fake()
    use(tmp_path / "q", lambda monitor: monitor.quit())
    assert process.wait(timeout=10) == 0
    assert caplog.records == []


def test_qemu_that_ends_during_a_command_is_unreachable(tmp_path: Path, start_fake: StartFake) -> None:
    process = start_fake("-hang", "query-status")

    async def kill_and_ask(monitor: Monitor) -> None:
        process.kill()
        await monitor.execute("query-status")

    with pytest.raises(HostUnreachable, match="closed the connection during 'query-status'"):
        use(tmp_path / "q", kill_and_ask)


def test_a_server_that_closes_at_once_counts_as_not_listening(tmp_path: Path) -> None:
    with pytest.raises(MonitorNotListening, match="closed the connection on socket"):
        use_scripted(tmp_path / "q", lambda _, writer: writer.close())


def test_a_socket_that_is_not_a_monitor_is_named(tmp_path: Path) -> None:
    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    with pytest.raises(HostUnreachable, match="is not a QMP monitor of QEMU"):
        use_scripted(tmp_path / "q", greet)


def test_a_missing_library_is_named_with_its_install_command() -> None:
    program = (
        "import sys; sys.modules['qemu'] = None\nfrom forewarn.machines.qemu.qmp import require_qmp\nrequire_qmp()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "Rejected: hypervisor 'qemu' needs the package qemu.qmp" in done.stderr
    assert "pip install 'forewarn[qemu]'" in done.stderr
