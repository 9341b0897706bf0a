"""The connection to a supervisor: received file descriptors are not inherited, and none pile up."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from forewarn.machines.process.connection import SupervisorConnection

LISTENER = b'{"listener": {"address": "127.0.0.1", "port": 80}, "fds": 1}\n'
RunScenario = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def run_scenario(request: pytest.FixtureRequest) -> RunScenario:
    def playing(scenario: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scenario)

    return playing


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def send(sock: socket.socket, data: bytes, *, fd_count: int = 1) -> None:
    with open(os.devnull, "rb") as file:
        socket.send_fds(sock, [data], [file.fileno()] * fd_count)


def test_a_command_of_the_service_does_not_inherit_the_socket_of_a_vm(run_scenario: RunScenario) -> None:
    """An inherited socket would stay open without the service, and clients would wait on it in vain."""

    async def scenario() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        connection = SupervisorConnection(ours)
        send(theirs, LISTENER)
        notification = await connection.receive()
        assert notification is not None
        assert not os.get_inheritable(notification.fds[0])
        os.close(notification.fds[0])
        connection.close()
        theirs.close()

    run_scenario(scenario())


@pytest.mark.parametrize("line", [b'{"exited": {"code": 0}, "fds": 1}\n', b'{"act": "A", "ok": true, "fds": 1}\n'])
def test_file_descriptors_of_a_message_that_needs_none_are_closed(run_scenario: RunScenario, line: bytes) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        connection = SupervisorConnection(ours)
        before = open_files()
        send(theirs, line + b'{"exited": {"code": 7}}\n')
        while (notification := await connection.receive()) is not None and (
            notification.exited is None or notification.exited.code != 7
        ):
            pass
        assert open_files() == before
        connection.close()
        theirs.close()

    run_scenario(scenario())


@pytest.mark.parametrize("discards", [False, True])
def test_every_call_of_receive_reports_the_end_of_a_closed_connection(
    run_scenario: RunScenario, discards: bool
) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        connection = SupervisorConnection(ours)
        theirs.close()
        async with asyncio.timeout(10):
            assert await connection.receive() is None
            if discards:
                connection.discard_received()
            assert [await connection.receive() for _ in range(2)] == [None, None]

    run_scenario(scenario())


def test_unannounced_file_descriptors_close_the_connection(run_scenario: RunScenario) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        before = open_files()
        connection = SupervisorConnection(ours)
        for _ in range(2):
            send(theirs, b" ", fd_count=16)
        assert await connection.receive() is None
        assert b"32 file descriptors arrived that no message announced" in theirs.recv(4096)
        assert open_files() == before - 1, "ours is closed, and all that came"
        theirs.close()

    run_scenario(scenario())


def test_a_deeply_nested_message_closes_the_connection(run_scenario: RunScenario) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        connection = SupervisorConnection(ours)
        theirs.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(theirs, b'{"x": ' + b"[" * 100_000 + b"\n")
        assert await connection.receive() is None
        assert b"the message is not understood" in theirs.recv(4096)
        theirs.close()

    run_scenario(scenario())
