"""The live stream over a real connection: request timeouts do not end it, and it ends properly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.web.portal import live_stream
from forewarn.web.server import REQUEST_TIMEOUT_S, WRITE_TIMEOUT_S, serve_unix
from tests.portal.conftest import PortalUser

WITHIN_S = 10.0
HEAD = b"GET /portal/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def streaming(path: Path) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(HEAD)
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"transfer-encoding: chunked" in head.lower()
        await until(reader, b"event: counts")
        yield reader
    finally:
        writer.close()


async def until(reader: asyncio.StreamReader, text: bytes) -> None:
    async with asyncio.timeout(WITHIN_S):
        await reader.readuntil(text)


def advance_loop_time(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    ahead = loop.time() + seconds - time.monotonic()
    loop.time = lambda: time.monotonic() + ahead  # type: ignore[method-assign]


async def commit_entry(portal: PortalUser) -> None:
    entry = HistoryEntry(at=portal.world.now, kind=EntryKind.UPKEEP, text="something")
    await portal.world.store.commit(Commit(entries=(entry,)))


def test_a_stream_lasts_longer_than_a_request_may_take(portal: PortalUser, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serve_unix(portal.app, tmp_path / "s"), streaming(tmp_path / "s") as reader:
            for _ in range(round(max(REQUEST_TIMEOUT_S, WRITE_TIMEOUT_S) / live_stream.KEEP_ALIVE_INTERVAL_S) + 2):
                advance_loop_time(live_stream.KEEP_ALIVE_INTERVAL_S)
                await until(reader, b"event: alive")
            await commit_entry(portal)
            await until(reader, b"event: change")

    portal.world.do(scenario())


def test_a_service_that_stops_does_not_wait_for_open_pages(portal: PortalUser, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serve_unix(portal.app, tmp_path / "s"):
            task = asyncio.create_task(_last_bytes(tmp_path / "s", begun := asyncio.Event()))
            await begun.wait()
            stopped_at = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - stopped_at < 2
        assert (await task).endswith(b"0\r\n\r\n")  # the end of a chunked response, not an aborted connection

    portal.world.do(scenario())


async def _last_bytes(path: Path, begun: asyncio.Event) -> bytes:
    async with streaming(path) as reader:
        begun.set()
        async with asyncio.timeout(WITHIN_S):
            return await reader.read()


def test_the_stream_ends_when_the_browser_disconnects(portal: PortalUser, tmp_path: Path) -> None:
    subscribers: Any = portal.world.store._subscribers  # type: ignore[attr-defined]

    async def scenario() -> None:
        async with serve_unix(portal.app, tmp_path / "s"):
            async with streaming(tmp_path / "s"):
                open_ = len(subscribers._listeners)
            async with asyncio.timeout(WITHIN_S):
                while len(subscribers._listeners) == open_:
                    await asyncio.sleep(0.001)

    portal.world.do(scenario())
