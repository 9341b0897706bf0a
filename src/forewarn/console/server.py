"""The console on a unix socket that only its owner can open, and on a port: HTTPS, and for this machine plain http."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette

from forewarn.console.reception import Reception
from forewarn.console.visitor import Visitor
from forewarn.errors import Refused, Rejected

_LONGEST_PATH = 107  # bytes; what Linux has room for in a socket's address
_DRAIN_S = 5


class _Server(uvicorn.Server):
    """Inside a loop that is somebody else's: signals are theirs to handle. Who connects is taken in by us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers: list[asyncio.Server] = []
        self._receptions = [Reception(sock, self._visitor, self.config.ssl) for sock in sockets or []]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for reception in self._receptions:
            await reception.close()
        await super().shutdown(sockets)

    def _visitor(self) -> Visitor:
        return Visitor(config=self.config, server_state=self.server_state, app_state={})


@asynccontextmanager
async def serve_unix(app: Starlette, path: Path) -> AsyncIterator[None]:
    """Answer on this socket until the block is left; then finish what is being answered."""
    sock = bind_unix(path)  # what is in the way is somebody else's, and stays
    try:
        async with _serving(_config(app), sock):
            yield
    finally:
        path.unlink(missing_ok=True)


@asynccontextmanager
async def serve_tls(app: Starlette, sock: socket.socket, certificate: Path, key: Path) -> AsyncIterator[ssl.SSLContext]:
    """As `serve_unix`, over TLS, on a socket that listens already, and over plain http for whoever is on this machine.

    What is loaded into the context counts from then.
    """
    config = _config(app, ssl_certfile=certificate, ssl_keyfile=key)
    config.load()
    assert config.ssl is not None
    async with _serving(config, sock):
        yield config.ssl


@asynccontextmanager
async def _serving(config: uvicorn.Config, sock: socket.socket) -> AsyncIterator[None]:
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await _until_started(server, task)
        yield
    finally:
        config.app.state.dependencies.closing.set()  # type: ignore[union-attr]
        server.should_exit = True
        await task


def _config(app: Starlette, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=_DRAIN_S,
        server_header=False,
        proxy_headers=False,  # who calls, and over what, is told by the connection alone
        **more,
    )


async def _until_started(server: uvicorn.Server, task: asyncio.Task[None]) -> None:
    while not server.started:
        if task.done():
            task.result()
            return
        await asyncio.sleep(0)


def bind_unix(path: Path) -> socket.socket:
    """A socket at this path that only its owner can open; one that a process left behind is taken over."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise Rejected(
            f"the socket's path {str(path)!r} is longer than the {_LONGEST_PATH} bytes a system allows: "
            "name a data directory with a shorter path"
        )
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)  # nobody else may ever open it, not even for a moment
    try:
        sock.bind(os.fspath(path))
    except OSError as error:
        sock.close()
        raise Rejected(
            f"the socket {str(path)!r} cannot be made: {error.strerror}; see to its directory, or name another"
        ) from error
    finally:
        os.umask(umask)
    return sock


def _remove_stale(path: Path) -> None:
    """What a process that is gone left behind; a socket that answers is somebody's."""
    if not path.exists():
        return
    if not path.is_socket():
        raise Refused(f"{str(path)!r} is in the way and is no socket: move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise Refused(f"another forewarn answers on {str(path)!r}: stop it first, or name another data directory")
