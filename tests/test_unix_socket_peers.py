"""Unix sockets serve their owner and root; other users are refused, and the log says so."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.base.unix_socket import PeerCredentials, bind_unix_socket, peer_refusal
from forewarn.machines.process.hypervisor import SupervisorRecords, SupervisorRegistry
from forewarn.machines.process.server import SupervisorServer
from forewarn.web.server import serve_unix
from tests.support import operator_api

api, api_of = operator_api.api, operator_api.api_of  # fixtures
OTHER_UID = 65534
REFUSED_TEXT = f"runs as user {OTHER_UID}, and only user {os.geteuid()} and root may connect"


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users can enter, as if somebody had changed the mode of the data directory."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


async def receive_as_another_user(path: Path) -> str:
    """What another user receives on a socket whose mode was changed."""
    path.chmod(0o666)
    client = socket.socket(socket.AF_UNIX)
    os.seteuid(OTHER_UID)  # the kernel records the user at this moment
    try:
        client.connect(str(path))
    finally:
        os.seteuid(0)
    reader, writer = await asyncio.open_unix_connection(sock=client)
    writer.write(b"GET /forewarn/v1/clock HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    try:
        async with asyncio.timeout(30):
            return (await reader.read()).decode()
    except ConnectionError:
        return ""
    finally:
        writer.close()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def test_the_owner_and_root_may_connect_and_nobody_else() -> None:
    assert peer_refusal(PeerCredentials(7, 1000), 1000) == ""
    assert peer_refusal(PeerCredentials(7, 0), 1000) == ""
    assert peer_refusal(PeerCredentials(7, 1001), 1000) == (
        "process 7 runs as user 1001, and only user 1000 and root may connect"
    )


def test_the_credentials_of_a_peer_are_those_of_its_process(tmp_path: Path) -> None:
    with bind_unix_socket(tmp_path / "s") as listener, socket.socket(socket.AF_UNIX) as client:
        listener.listen()
        client.connect(str(tmp_path / "s"))
        connection, _ = listener.accept()
        with connection:
            assert PeerCredentials.of(connection) == PeerCredentials(os.getpid(), os.geteuid())


@needs_root
def test_another_user_is_refused_on_the_operators_socket(
    api: Any, open_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = open_directory / "forewarn.sock"

    async def scenario() -> str:
        async with serve_unix(api.app, path):
            return await receive_as_another_user(path)

    answer = asyncio.run(scenario())
    assert answer.startswith("HTTP/1.1 403 Forbidden")
    assert f"this service belongs to another user: process {os.getpid()} {REFUSED_TEXT}" in answer
    assert REFUSED_TEXT in caplog.text


@needs_root
def test_another_user_is_refused_on_the_supervisors_socket(
    open_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = open_directory / "forewarn.vms"

    async def unused(*arguments: Any) -> Any:
        raise AssertionError("a refused peer must reach nothing")

    async def scenario() -> str:
        server = SupervisorServer(
            supervisors=SupervisorRegistry(SupervisorRecords(open_directory / "vms")),
            find_vm=lambda name: pytest.fail("a refused peer must reach nothing"),
            listen=unused,
            write_history=unused,
        )
        async with server.serve(bind_unix_socket(path), path):
            return await receive_as_another_user(path)

    assert asyncio.run(scenario()) == ""
    assert "a supervisor was refused: process" in caplog.text
    assert REFUSED_TEXT in caplog.text
