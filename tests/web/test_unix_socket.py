"""The console on a real unix socket: private, answered by uvicorn, stopped gracefully."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from forewarn.errors import Refused, Rejected
from forewarn.web.server import serve_unix


async def ask(path: Path, target: str, *, method: str = "GET") -> tuple[int, Any]:
    """Sends one request on its own connection."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(f"{method} /forewarn/v1{target} HTTP/1.1\r\nHost: forewarn\r\nConnection: close\r\n\r\n".encode())
    raw = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body else None


LOOPS: list[Any] = [
    pytest.param(asyncio.new_event_loop, id="asyncio"),
    pytest.param(uvloop.new_event_loop, id="uvloop"),
]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    def run(doing: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(doing)

    return run


def test_the_unix_socket_is_private_and_removed_at_the_end(run: Any, api: Any, tmp_path: Path) -> None:
    path = tmp_path / "forewarn.sock"

    async def scenario() -> None:
        async with serve_unix(api.app, path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert path.is_socket()
            status, body = await ask(path, "/vms/lab%2Fdb")
            assert (status, body["name"]) == (200, "db")
            assert (await ask(path, "/vms/nobody"))[0] == 404
            assert await ask(path, "/clock", method="HEAD") == (200, None)
        assert not path.exists()

    before = os.umask(0o022)
    try:
        run(scenario())
        assert os.umask(0o022) == 0o022  # the umask is changed only while it binds
    finally:
        os.umask(before)


def test_a_held_request_is_answered_when_the_service_stops(run: Any, api: Any, tmp_path: Path) -> None:
    path = tmp_path / "forewarn.sock"

    async def scenario() -> Any:
        seq = api.world.store.last_seq()
        async with serve_unix(api.app, path):
            held = asyncio.create_task(ask(path, f"/history?after={seq}&wait_s=60"))
            await ask(path, "/clock")
            await ask(path, "/clock")  # then the request before it was accepted
        return await held

    status, body = run(scenario())
    assert (status, body["entries"]) == (200, [])


def test_the_socket_of_a_dead_service_is_replaced(run: Any, api: Any, tmp_path: Path) -> None:
    path = tmp_path / "forewarn.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def scenario() -> int:
        async with serve_unix(api.app, path):
            return (await ask(path, "/clock"))[0]

    assert run(scenario()) == 200


def test_a_socket_that_another_process_serves_is_left_alone(run: Any, api: Any, tmp_path: Path) -> None:
    path = tmp_path / "forewarn.sock"

    async def scenario() -> None:
        async with serve_unix(api.app, path):
            pass

    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(Refused, match="another forewarn answers on"):
            run(scenario())
        assert path.is_socket()


def test_a_file_at_the_socket_path_is_left_alone(run: Any, api: Any, tmp_path: Path) -> None:
    path = tmp_path / "forewarn.sock"
    path.write_text("precious")

    async def scenario() -> None:
        async with serve_unix(api.app, path):
            pass

    with pytest.raises(Refused, match="is not a socket"):
        run(scenario())
    assert path.read_text() == "precious"


@pytest.mark.parametrize("name", ["x" * 107, "ö" * 54])
def test_a_socket_path_that_is_too_long_is_rejected(api: Any, tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with serve_unix(api.app, tmp_path / name):
            pass

    with pytest.raises(Rejected, match="longer than the 107 bytes"):
        asyncio.run(scenario())


def test_a_socket_path_without_a_directory_is_rejected(api: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serve_unix(api.app, tmp_path / "no" / "forewarn.sock"):
            pass

    with pytest.raises(Rejected, match="cannot be created: No such file or directory"):
        asyncio.run(scenario())
