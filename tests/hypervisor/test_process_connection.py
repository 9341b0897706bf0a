"""The line to a keeper, whatever comes along it: what is handed over belongs to us alone, and nothing piles up."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from forewarn.hypervisor.process.connection import SupervisorConnection

LISTENER = b'{"listener": {"address": "127.0.0.1", "port": 80}, "fds": 1}\n'
Play = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def play(request: pytest.FixtureRequest) -> Play:
    def playing(story: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(story)

    return playing


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def send(sock: socket.socket, raw: bytes, *, files: int = 1) -> None:
    with open(os.devnull, "rb") as file:
        socket.send_fds(sock, [raw], [file.fileno()] * files)


def test_no_command_that_the_service_runs_inherits_the_socket_of_a_vm(play: Play) -> None:
    """It would stay open when the service is gone, and clients would wait on it in vain."""

    async def story() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        link = SupervisorConnection(ours)
        send(theirs, LISTENER)
        heard = await link.receive()
        assert heard is not None
        assert not os.get_inheritable(heard.fds[0])
        os.close(heard.fds[0])
        link.close()
        theirs.close()

    play(story())


@pytest.mark.parametrize("line", [b'{"exited": {"code": 0}, "fds": 1}\n', b'{"act": "A", "ok": true, "fds": 1}\n'])
def test_files_that_come_with_a_line_that_needs_none_are_closed(play: Play, line: bytes) -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        link = SupervisorConnection(ours)
        before = open_files()
        send(theirs, line + b'{"exited": {"code": 7}}\n')
        while (heard := await link.receive()) is not None and (heard.exited is None or heard.exited.code != 7):
            pass
        assert open_files() == before
        link.close()
        theirs.close()

    play(story())


def test_files_that_no_line_announces_end_the_link(play: Play) -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        before = open_files()
        link = SupervisorConnection(ours)
        for _ in range(2):
            send(theirs, b" ", files=16)
        assert await link.receive() is None
        assert b"32 file descriptors came that no line announced" in theirs.recv(4096)
        assert open_files() == before - 1, "ours is closed, and all that came"
        theirs.close()

    play(story())


def test_a_line_of_nothing_but_brackets_ends_the_link(play: Play) -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        link = SupervisorConnection(ours)
        theirs.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(theirs, b'{"x": ' + b"[" * 100_000 + b"\n")
        assert await link.receive() is None
        assert b"this line is not understood" in theirs.recv(4096)
        theirs.close()

    play(story())
