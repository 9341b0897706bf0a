"""Changes are journalled all at once; while that is impossible, the agent keeps polling."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from forewarn.agent.reporting import NullObserver
from forewarn.agent.watcher import EventWatcher
from forewarn.client import AsyncClient, Change
from forewarn.errors import Unavailable
from tests.support.scripted_server import ScriptedServer, json_reply

FULL = "the journal cannot be written (database or disk is full): free disk space"
EVENT = {
    "EventId": "8F5F4BE7-8B08-46B3-87C4-D1CEEE73ECF9",
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-0"],
    "NotBefore": "Mon, 19 Sep 2033 18:29:47 GMT",
}
LISTED = json_reply({"DocumentIncarnation": 2, "Events": [EVENT]}, headers=(("ETag", '"1-2"'),))


class SilentObserver(NullObserver):
    """Counts the polls that were reported as answered and as failed."""

    def __init__(self) -> None:
        self.answered = 0
        self.failures: list[str] = []

    def poll_answered(self, lag_s: float) -> None:
        self.answered += 1

    def poll_failed(self, why: str) -> None:
        self.failures.append(why)


@dataclass
class Journal:
    """Refuses to write until `has_space`."""

    has_space: bool = False
    changes: list[Change] = field(default_factory=list)
    attempts: int = 0

    def save(self, changes: Sequence[Change]) -> None:
        self.attempts += 1
        self.require_space()
        self.changes += changes

    def require_space(self) -> None:
        if not self.has_space:
            raise Unavailable(FULL)


async def sleep_no_time(seconds: float) -> None:
    await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def while_watching(watcher: EventWatcher, script: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.create_task(watcher.watch())
    try:
        await script()
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_changes_wait_for_the_journal_while_the_polls_go_on(tmp_path: Path) -> None:
    journal, observer = Journal(), SilentObserver()
    with ScriptedServer(LISTED) as server:
        client = AsyncClient(server.url, sleep=sleep_no_time)
        watcher = EventWatcher(
            client, tmp_path / "cursor.json", observer, on_changes=journal.save, on_poll=lambda: None, hold_s=300.0
        )

        async def script() -> None:
            await until(lambda: len(server.requests) >= 5 and journal.attempts >= 3)
            assert (journal.changes, watcher.problem, observer.answered) == ([], FULL, 0)
            assert set(observer.failures) == {FULL}
            journal.has_space = True
            await until(lambda: observer.answered >= 1)
            assert [change.event.id for change in journal.changes] == [EVENT["EventId"]]
            assert watcher.problem == ""

        asyncio.run(while_watching(watcher, script))
        held = [dict(request.headers).get("prefer", "wait=0") for request in server.requests[:5]]
    assert {int(text.removeprefix("wait=")) for text in held} <= {0, 1, 300}
    assert "wait=300" not in held[2:]


def test_the_watch_goes_on_if_the_journal_fails_after_a_poll(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal()
    with ScriptedServer(json_reply({"DocumentIncarnation": 1, "Events": []})) as server:
        client = AsyncClient(server.url, sleep=sleep_no_time)
        watcher = EventWatcher(
            client, tmp_path / "cursor.json", SilentObserver(), on_changes=journal.save, on_poll=journal.require_space
        )

        async def script() -> None:
            await until(lambda: len(server.requests) >= 4)
            assert watcher.problem == FULL
            journal.has_space = True
            await until(lambda: watcher.problem == "")

        asyncio.run(while_watching(watcher, script))
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [FULL]


def test_a_single_look_reports_that_the_journal_cannot_be_written(tmp_path: Path) -> None:
    with ScriptedServer(LISTED) as server:
        client = AsyncClient(server.url, sleep=sleep_no_time)
        watcher = EventWatcher(
            client, tmp_path / "cursor.json", SilentObserver(), on_changes=Journal().save, on_poll=lambda: None
        )
        with pytest.raises(Unavailable, match="disk is full"):
            asyncio.run(watcher.watch(once=True))


def test_all_changes_of_a_document_are_journalled_at_once(tmp_path: Path) -> None:
    """One by one, thousands of events of other VMs would take longer than the notice of the own event."""
    events = [{**EVENT, "EventId": f"E{number}", "Resources": [f"vm-{number}"]} for number in range(100)]
    passed: list[int] = []
    with ScriptedServer(json_reply({"DocumentIncarnation": 200, "Events": events})) as server:
        watcher = EventWatcher(
            AsyncClient(server.url, sleep=sleep_no_time),
            tmp_path / "cursor.json",
            SilentObserver(),
            on_changes=lambda changes: passed.append(len(changes)),
            on_poll=lambda: None,
        )
        asyncio.run(watcher.watch(once=True))
    assert passed == [100]
