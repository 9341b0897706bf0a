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
from forewarn.portal.context import CurrentSession
from forewarn.service.web_app import build_web_app
from forewarn.store.memory import MemoryStore
from tests.portal.conftest import Visitor
from tests.support.world import World

WITHIN_S = 10.0
GROUP = "/subscriptions/sub/resourceGroups/lab"
Told = tuple[str, Any, int | None]  # event, data, id


class Stream:
    """An open page, as the browser's EventSource sees it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.is_over = False
        self._told: asyncio.Queue[Told | None] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        for part in message["body"].decode().split("\n\n"):
            if part:
                self._told.put_nowait(_read(part))
        if not message.get("more_body"):
            self._told.put_nowait(None)

    async def next(self, *kinds: str) -> Told:
        """The next that is told of these kinds."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                told = await self._told.get()
                assert told is not None, "the stream has ended"
                if told[0] in kinds:
                    return told

    async def all_until(self, kind: str) -> list[Told]:
        """Everything up to the next of this kind."""
        found: list[Told] = []
        async with asyncio.timeout(WITHIN_S):
            while not found or found[-1][0] != kind:
                told = await self._told.get()
                assert told is not None, "the stream has ended"
                found.append(told)
        return found

    async def end(self) -> list[Told]:
        """What is told until the stream ends."""
        found = []
        async with asyncio.timeout(WITHIN_S):
            while (told := await self._told.get()) is not None:
                found.append(told)
        return found


def _read(part: str) -> Told:
    fields = dict(line.split(": ", 1) for line in part.split("\n"))
    return fields["event"], json.loads(fields["data"]), int(fields["id"]) if "id" in fields else None


@asynccontextmanager
async def looking(portal: Visitor, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    """A page that is open while the block lasts."""
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
    task = asyncio.create_task(portal.app(scope, stream.receive, stream.send))  # type: ignore[arg-type]
    try:
        yield stream
    finally:
        stream.gone.set()
        stream.reads.set()
        async with asyncio.timeout(WITHIN_S):
            await task


def play(portal: Visitor, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    portal.world.do(story())


async def restart(world: World, *names: str) -> str:
    """Somebody asks; the id of the event that follows."""
    vms = [world.vm(name) for name in names]
    receipt = await world.control.requests.request_for_vms(RequestedOperation.RESTART, vms, who="ann")
    await world.control.reconciler.run_until_settled()
    return world.store.events(request_id=receipt.request.id)[0].id


async def put_forward(seconds: float) -> None:
    """The loop's own time, as if so much real time had passed."""
    loop = asyncio.get_running_loop()
    now = loop.time() + seconds - time.monotonic()
    loop.time = lambda: time.monotonic() + now  # type: ignore[method-assign]
    await asyncio.sleep(0)


def subscribers(world: World) -> int:
    assert isinstance(world.store, MemoryStore)
    return len(world.store._subscribers._listeners)


async def note(world: World, times: int = 1) -> None:
    """Something happens that is about no VM."""
    for number in range(times):
        entry = HistoryEntry(at=world.now, what=EntryKind.UPKEEP, text=f"number {number}")
        await world.store.commit(Commit(entries=(entry,)))


def welcoming(principal: Principal) -> Any:
    async def welcome(request: Any) -> CurrentSession:
        return CurrentSession(principal=principal, csrf_token="", ends_at=0)

    return welcome


def visited_by(portal: Visitor, welcome: Any) -> Visitor:
    """The same portal, where somebody else says who is looking."""
    other = Visitor(portal.api, portal.principal)
    other.app = build_web_app(portal.api.house, authenticate_session=welcome)
    return other
