"""An open page as the browser sees it: reads the live stream of a world in virtual time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from forewarn.core.access import Principal
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import RequestedOperation
from forewarn.service.web_server import build_web_app
from forewarn.store.memory import MemoryStore
from forewarn.web.portal.context import CurrentSession
from tests.portal.conftest import PortalUser
from tests.support.world import World

WITHIN_S = 10.0
GROUP = "/subscriptions/sub/resourceGroups/lab"
LiveMessage = tuple[str, Any, int | None]  # event, data, id


class Stream:
    """An open page, as the browser's EventSource sees it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.is_over = False
        self._messages: asyncio.Queue[LiveMessage | None] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        for text in message["body"].decode().split("\n\n"):
            if text:
                self._messages.put_nowait(_read(text))
        if not message.get("more_body"):
            self._messages.put_nowait(None)

    async def next(self, *kinds: str) -> LiveMessage:
        """The next message of these kinds; skips others."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                message = await self._messages.get()
                assert message is not None, "the stream has ended"
                if message[0] in kinds:
                    return message

    async def all_until(self, kind: str) -> list[LiveMessage]:
        """All messages up to the next of this kind."""
        found: list[LiveMessage] = []
        async with asyncio.timeout(WITHIN_S):
            while not found or found[-1][0] != kind:
                message = await self._messages.get()
                assert message is not None, "the stream has ended"
                found.append(message)
        return found

    async def end(self) -> list[LiveMessage]:
        """All messages until the stream ends."""
        found = []
        async with asyncio.timeout(WITHIN_S):
            while (message := await self._messages.get()) is not None:
                found.append(message)
        return found


def _read(text: str) -> LiveMessage:
    fields = dict(line.split(": ", 1) for line in text.split("\n"))
    return fields["event"], json.loads(fields["data"]), int(fields["id"]) if "id" in fields else None


@asynccontextmanager
async def open_stream(portal: PortalUser, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    """Opens a live stream for the duration of the block."""
    stream = Stream()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/portal/live",
        "raw_path": b"/portal/live",
        "root_path": "",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "server": ("localhost", 8443),
        "client": ("127.0.0.1", 50000),
    }
    task = asyncio.create_task(portal.app(scope, stream.receive, stream.send))
    try:
        yield stream
    finally:
        stream.gone.set()
        stream.reads.set()
        async with asyncio.timeout(WITHIN_S):
            await task


def run_scenario(portal: PortalUser, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    portal.world.do(scenario())


async def restart(world: World, *names: str) -> str:
    """Requests a restart; returns the id of its event."""
    vms = [world.vm(name) for name in names]
    receipt = await world.control.requests.request_for_vms(RequestedOperation.RESTART, vms, who="ann")
    await world.control.reconciler.run_until_settled()
    return world.store.events(request_id=receipt.request.id)[0].id


async def advance_loop_time(seconds: float) -> None:
    """Advances the time of the event loop, as if real time had passed."""
    loop = asyncio.get_running_loop()
    offset = loop.time() + seconds - time.monotonic()
    loop.time = lambda: time.monotonic() + offset  # type: ignore[method-assign]
    await asyncio.sleep(0)


def subscriber_count(world: World) -> int:
    assert isinstance(world.store, MemoryStore)
    return len(world.store._subscribers._listeners)


async def commit_entry(world: World, times: int = 1) -> None:
    """Commits history entries that are about no VM."""
    for number in range(times):
        entry = HistoryEntry(at=world.now, kind=EntryKind.UPKEEP, text=f"number {number}")
        await world.store.commit(Commit(entries=(entry,)))


def session_for(principal: Principal) -> Any:
    async def authenticate(request: Any) -> CurrentSession:
        return CurrentSession(principal=principal, csrf_token="", ends_at=0)

    return authenticate


def with_authenticator(portal: PortalUser, authenticate: Any) -> PortalUser:
    """The same portal with another authenticator."""
    other = PortalUser(portal.api, portal.principal)
    other.app = build_web_app(portal.api.dependencies, authenticate_session=authenticate)
    return other
