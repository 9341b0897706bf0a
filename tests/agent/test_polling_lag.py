"""The polling lag: the time between two answers, without the time that the endpoint held a long poll."""

import asyncio
from pathlib import Path

import pytest

from forewarn.agent.reporting import NullObserver
from forewarn.agent.watcher import EventWatcher
from forewarn.client import AsyncClient
from forewarn.protocol.http_message import HttpRequest
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

EMPTY = {"DocumentIncarnation": 1, "Events": []}
HELD = json_reply(EMPTY, headers=(("ETag", '"1-1"'), ("Preference-Applied", "wait=20")))


class SlowServer(ScriptedServer):
    """Its own clock advances by 20 s for each request that it may hold."""

    now = 100.0

    def next_reply(self, request: HttpRequest) -> ScriptedReply:
        self.now += 20 if "prefer" in dict(request.headers) else 0
        return super().next_reply(request)

    async def advance(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class LagObserver(NullObserver):
    def __init__(self) -> None:
        self.seen: list[float] = []
        self.enough = asyncio.Event()

    def poll_answered(self, lag_s: float) -> None:
        self.seen.append(round(lag_s, 3))
        if len(self.seen) == 4:
            self.enough.set()


async def lags(server: SlowServer, cursor: Path) -> list[float]:
    client = AsyncClient(server.url, clock=lambda: server.now, sleep=server.advance)
    observer = LagObserver()
    watcher = EventWatcher(client, cursor, observer, on_changes=lambda _: None, on_poll=lambda: None)
    task = asyncio.create_task(watcher.watch())
    try:
        await asyncio.wait_for(observer.enough.wait(), 60)
    finally:
        task.cancel()
        await asyncio.wait([task])
    return observer.seen[:4]


@pytest.mark.parametrize(
    ("reply", "seen"),
    [(HELD, [0.0, 0.05, 0.05, 0.05]), (json_reply(EMPTY), [0.0, 1.0, 1.0, 1.0])],
    ids=["held", "asked once a second"],
)
def test_the_time_of_a_held_long_poll_is_not_lag(reply: ScriptedReply, seen: list[float], tmp_path: Path) -> None:
    with SlowServer(reply) as server:
        assert asyncio.run(lags(server, tmp_path / "cursor.json")) == seen
    assert server.now > (150 if reply is HELD else 102)
