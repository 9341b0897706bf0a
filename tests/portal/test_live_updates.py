"""What open pages are told as it happens: changes, counts, the clock, trouble; and that nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest

from forewarn.core.access import Principal
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, EventDelivery, HistoryEntry
from forewarn.core.request import RequestedOperation
from forewarn.errors import Unauthenticated, Unavailable
from forewarn.metadata import GuestObservations
from forewarn.portal import live_stream, live_updates, store_monitor
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


def test_a_page_hears_first_how_things_are(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            told = await page.all_until("counts")
            assert page.status == 200
            assert page.headers["content-type"].startswith("text/event-stream")
            assert "no-store" in page.headers["cache-control"]
            assert told[0] == ("clock", {"now": portal.world.now, "speed": 0.0, "lab": True}, None)
            assert told[1] == ("health", {"ok": True, "text": ""}, None)
            assert told[-1][1]["running"] == 7
            assert [kind for kind, _, _ in told] == ["clock", "health", "counts"]

    play(portal, story)


def test_a_change_names_everything_that_it_concerns(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            event_id = await restart(portal.world, "web-0")
            _, told, number = await page.next("change")
            vm = portal.world.vm("web-0")
            event = portal.world.store.event(event_id)
            assert event is not None
            assert told["events"] == [event_id]
            assert told["scopes"] == [vm.scope_id]
            assert told["requests"] == [event.request_id]
            assert told["hosts"] == [vm.host]
            assert told["vms"] == [[vm.key, "noticed"]]
            assert {"requested", "published"} <= set(told["what"])
            assert told["now"] == portal.world.now
            assert told["seq"] == number == portal.world.store.last_seq()

    play(portal, story)


def test_counts_follow_changes(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            await restart(portal.world, "web-0")
            _, counts, _ = await page.next("counts")
            assert (counts["running"], counts["noticed"]) == (6, 1)

    play(portal, story)


def test_counts_are_right_for_a_page_that_comes_later(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
        await restart(portal.world, "web-0")
        async with looking(portal) as page, looking(portal.holding("Reader", GROUP)) as other:
            for one in (page, other):
                _, counts, _ = await one.next("counts")
                assert (counts["running"], counts["noticed"]) == (6, 1)

    play(portal, story)


def test_commits_close_to_each_other_are_one_change(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            ids = [await restart(portal.world, name) for name in ("web-0", "db", "spot")]
            _, told, _ = await page.next("change")
            assert sorted(told["events"]) == sorted(ids)
            assert len(told["vms"]) == 3

    play(portal, story)


def test_that_a_vm_was_given_an_event_is_told(portal: Visitor) -> None:
    observations = GuestObservations()
    house = replace(portal.api.house, subscribe_deliveries=observations.subscribe_deliveries)
    other = Visitor(portal.api, portal.principal)
    other.app = build_web_app(house, authenticate_session=welcoming(portal.principal))

    async def story() -> None:
        event_id = await restart(portal.world, "web-0")
        scope_id = portal.world.vm("web-0").scope_id
        async with looking(other) as page:
            await page.next("counts")
            seen = EventDelivery(
                event_id=event_id, scope_id=scope_id, vm="web-0", status="scheduled", version="", incarnation=1, at=0
            )
            observations.notify_written([seen])
            _, told, number = await page.next("change")
            assert (told["events"], told["scopes"]) == ([event_id], [scope_id])
            assert number == portal.world.store.last_seq()
        await asyncio.sleep(0)
        assert observations._delivery_subscribers == []

    play(portal, story)


def welcoming(principal: Principal) -> Any:
    async def welcome(request: Any) -> CurrentSession:
        return CurrentSession(principal=principal, csrf_token="", ends_at=0)

    return welcome


def test_commits_that_concern_no_page_are_not_told(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            await portal.world.store.commit(Commit(unplanned=("none",)))
            await put_forward(live_updates.BATCH_WINDOW_S)
            await note(portal.world)
            _, told, _ = await page.next("change")
            assert told["what"] == ["upkeep"]

    play(portal, story)


def test_the_clock_is_told_when_it_is_moved(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            before = portal.world.now
            await portal.world.control.lab_clock.advance(600)
            _, told, _ = await page.next("clock")
            assert told == {"now": before + 600, "speed": 0.0, "lab": True}

    play(portal, story)


def test_a_page_that_comes_back_is_told_what_it_missed(portal: Visitor) -> None:
    async def story() -> None:
        known = portal.world.store.last_seq()
        event_id = await restart(portal.world, "web-0")
        for query, headers in ((f"after={known}", {}), ("after=0", {"last_event_id": str(known)})):
            async with looking(portal, query, **headers) as page:
                _, told, number = await page.next("change", "reset")
                assert told["events"] == [event_id]
                assert told["vms"] == [[vm.key, "noticed" if vm.name == "web-0" else "running"] for vm in web(portal)]
                assert number == portal.world.store.last_seq()

    play(portal, story)


def web(portal: Visitor) -> list[Any]:
    return portal.world.store.vms(scope_id=portal.world.vm("web-0").scope_id)


def test_a_page_that_missed_nothing_is_told_nothing(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal, f"after={portal.world.store.last_seq()}") as page:
            assert [kind for kind, _, _ in await page.all_until("counts")] == ["clock", "health", "counts"]

    play(portal, story)


def test_a_vm_that_went_meanwhile_is_told_as_gone(portal: Visitor) -> None:
    async def story() -> None:
        known, key = portal.world.store.last_seq(), portal.world.vm("db").key
        vms = [portal.world.vm("db")]
        await portal.world.control.requests.request_for_vms(RequestedOperation.DELETE, vms, who="ann")
        await portal.world.control.lab_clock.advance(3600)
        async with looking(portal, f"after={known}") as page:
            _, told, _ = await page.next("change")
            assert [key, "gone"] in told["vms"]

    play(portal, story)


@pytest.mark.parametrize("after", ["more than there are", "so few that the gap is too wide"])
def test_a_gap_that_is_too_wide_has_everything_read_again(portal: Visitor, after: str) -> None:
    async def story() -> None:
        await note(portal.world, live_updates.MAX_MISSED_ENTRIES + 1)
        last = portal.world.store.last_seq()
        known = last + 1 if after == "more than there are" else last - live_updates.MAX_MISSED_ENTRIES - 1
        async with looking(portal, f"after={known}") as page:
            assert await page.next("change", "reset") == ("reset", {}, last)

    play(portal, story)


def test_a_gap_that_is_just_not_too_wide_is_told(portal: Visitor) -> None:
    async def story() -> None:
        await note(portal.world, live_updates.MAX_MISSED_ENTRIES)
        async with looking(portal, f"after={portal.world.store.last_seq() - live_updates.MAX_MISSED_ENTRIES}") as page:
            kind, told, _ = await page.next("change", "reset")
            assert (kind, told["what"]) == ("change", ["upkeep"])

    play(portal, story)


def test_what_was_pruned_has_everything_read_again(portal: Visitor) -> None:
    async def story() -> None:
        known = portal.world.store.last_seq()
        await note(portal.world)
        await portal.world.control.lab_clock.advance(3 * 86400)
        await portal.world.store.prune(portal.world.now - 86400)
        await note(portal.world)
        async with looking(portal, f"after={known}") as page:
            kind, _, _ = await page.next("change", "reset")
            assert kind == "reset"

    play(portal, story)


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "٣", "9" * 30, "<b>"])
def test_what_is_no_number_of_the_history_is_refused(portal: Visitor, after: str) -> None:
    page = portal.visit("GET", f"/portal/live?{urlencode({'after': after})}")
    assert (page.status, page.headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert page.html == f"{after!r} is no number of the history: give the last one that you have seen"


def test_whoever_is_not_signed_in_is_told_nothing(portal: Visitor) -> None:
    async def nobody(request: Any) -> CurrentSession:
        raise Unauthenticated("nobody is signed in: sign in")

    page = visited_by(portal, nobody).visit("GET", "/portal/live")
    assert (page.status, page.html) == (401, "nobody is signed in: sign in")


def visited_by(portal: Visitor, welcome: Any) -> Visitor:
    """The same portal, where somebody else says who is looking."""
    other = Visitor(portal.api, portal.principal)
    other.app = build_web_app(portal.api.house, authenticate_session=welcome)
    return other


def test_who_sees_a_part_is_told_of_that_part_only(portal: Visitor) -> None:
    reader = portal.holding("Reader", f"{GROUP}/providers/Microsoft.Compute/virtualMachines/db")

    async def story() -> None:
        async with looking(reader) as page:
            _, counts, _ = await page.next("counts")
            assert sum(counts.values()) == 1
            await restart(portal.world, "web-0")  # on the same host
            await note(portal.world)
            await put_forward(live_updates.BATCH_WINDOW_S)
            event_id = await restart(portal.world, "db")
            _, told, _ = await page.next("change")
            assert told["events"] == [event_id]
            assert told["scopes"] == [portal.world.vm("db").scope_id]
            assert told["vms"] == [[portal.world.vm("db").key, "noticed"]]
            assert told["hosts"] == ["h1"]
            assert "upkeep" not in told["what"]

    play(portal, story)


def test_who_sees_a_part_is_told_of_that_part_of_what_was_missed(portal: Visitor) -> None:
    reader = portal.holding("Reader", f"{GROUP}/providers/Microsoft.Compute/virtualMachines/db")

    async def story() -> None:
        known = portal.world.store.last_seq()
        await restart(portal.world, "web-0")
        event_id = await restart(portal.world, "db")
        async with looking(reader, f"after={known}") as page:
            _, told, _ = await page.next("change")
            assert (told["events"], [key for key, _ in told["vms"]]) == ([event_id], [portal.world.vm("db").key])

    play(portal, story)


def test_pages_that_are_closed_leave_nothing_behind(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
        before, tasks = subscribers(portal.world), asyncio.all_tasks()
        async with looking(portal) as one, looking(portal) as other:
            await one.next("counts")
            await other.next("counts")
            assert subscribers(portal.world) == before + 1
        await asyncio.sleep(0)
        assert subscribers(portal.world) == before
        assert asyncio.all_tasks() == tasks

    play(portal, story)


def test_a_service_that_stops_ends_its_streams(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            portal.api.house.shutting_down.set()
            assert await page.end() == []

    play(portal, story)


def test_a_stream_begun_while_the_service_stops_ends_at_once(portal: Visitor) -> None:
    async def story() -> None:
        portal.api.house.shutting_down.set()
        async with looking(portal) as page:
            await page.end()

    play(portal, story)


def test_a_page_is_told_that_the_stream_is_alive(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            await put_forward(live_stream.KEEP_ALIVE_INTERVAL_S)
            assert await page.next("alive") == ("alive", {}, None)

    play(portal, story)


class Ending:
    """A visit that lasts until a test says so."""

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        self.is_over = False

    async def welcome(self, request: Any) -> CurrentSession:
        if self.is_over:
            raise Unauthenticated("the visit is over: sign in")
        return CurrentSession(principal=self._principal, csrf_token="", ends_at=0)


def test_who_is_signed_out_is_told_so_and_nothing_more(portal: Visitor) -> None:
    visit = Ending(portal.principal)

    async def story() -> None:
        async with looking(visited_by(portal, visit.welcome)) as page:
            await page.next("counts")
            visit.is_over = True
            await put_forward(live_stream.MAX_WAIT_S)
            assert await page.end() == [("over", {"text": "You are signed out."}, None)]

    play(portal, story)


def test_what_happens_after_a_sign_out_is_not_told(portal: Visitor) -> None:
    visit = Ending(portal.principal)

    async def story() -> None:
        async with looking(visited_by(portal, visit.welcome)) as page:
            await page.next("counts")
            visit.is_over = True
            await put_forward(live_stream.REAUTHENTICATE_INTERVAL_S)
            await restart(portal.world, "web-0")
            assert [kind for kind, _, _ in await page.end()] == ["over"]

    play(portal, story)


def test_whose_grants_change_has_everything_read_again(portal: Visitor) -> None:
    who = portal.principal

    async def welcome(request: Any) -> CurrentSession:
        return CurrentSession(principal=who, csrf_token="", ends_at=0)

    async def story() -> None:
        nonlocal who
        async with looking(visited_by(portal, welcome)) as page:
            await page.next("counts")
            who = Principal(id="client:ci", name="client ci", grants=())
            await put_forward(live_stream.MAX_WAIT_S)
            await page.next("reset")
            await restart(portal.world, "web-0")
            _, counts, _ = await page.next("counts", "change")
            assert sum(counts.values()) == 0

    play(portal, story)


def test_a_page_that_reads_too_slowly_reads_everything_again(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            page.reads.clear()
            for _ in range(live_updates.MAX_PENDING_BATCHES + 3):
                await note(portal.world)
                await put_forward(live_updates.BATCH_WINDOW_S)
                await asyncio.sleep(0)
            page.reads.set()
            kinds = [kind for kind, _, _ in await page.all_until("reset")]
            assert kinds.count("change") <= 2  # what was on its way
            await note(portal.world)
            assert (await page.next("change"))[2] == portal.world.store.last_seq()

    play(portal, story)


def test_trouble_with_the_store_is_told_and_so_is_its_end(portal: Visitor) -> None:
    store = portal.world.store
    assert isinstance(store, MemoryStore)

    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            store.fail_next(Unavailable("disk full"))
            await put_forward(store_monitor.CHECK_INTERVAL_S)
            assert await page.next("health") == ("health", {"ok": False, "text": store_monitor.NOT_WRITABLE.text}, None)
            async with looking(portal) as other:
                assert (await other.next("health"))[1]["ok"] is False
            await put_forward(store_monitor.FAILING_CHECK_INTERVAL_S)
            assert (await page.next("health"))[1] == {"ok": True, "text": ""}

    play(portal, story)


def test_a_store_that_commits_is_well_without_being_asked(portal: Visitor) -> None:
    store = portal.world.store
    assert isinstance(store, MemoryStore)

    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            store.fail_next(Unavailable("disk full"))
            await put_forward(store_monitor.CHECK_INTERVAL_S)
            assert (await page.next("health"))[1]["ok"] is False
            await note(portal.world)
            assert (await page.next("health"))[1]["ok"] is True

    play(portal, story)


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        ("MAX_SUBSCRIBERS", "1 pages are open, and that is the most: close some, then reload this one"),
        ("MAX_SUBSCRIBERS_PER_PRINCIPAL", "1 of your pages are open, and that is the most: close some, then reload"),
    ],
)
def test_only_so_many_pages_can_be_open(
    portal: Visitor, monkeypatch: pytest.MonkeyPatch, bound: str, sentence: str
) -> None:
    monkeypatch.setattr(live_updates, bound, 1)

    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            answer = await portal.visiting("GET", "/portal/live", b"", {})
            assert (answer.status, answer.html) == (503, sentence)

    play(portal, story)


def test_the_pages_of_one_visitor_keep_no_other_from_following(
    portal: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_updates, "MAX_SUBSCRIBERS_PER_PRINCIPAL", 1)
    who = portal.principal

    async def welcome(request: Any) -> CurrentSession:
        return CurrentSession(principal=who, csrf_token="", ends_at=0)

    async def story() -> None:
        nonlocal who
        visited = visited_by(portal, welcome)
        async with looking(visited) as page:
            await page.next("counts")
            who = Principal(id="client:ci", name="client ci", grants=())
            async with looking(visited) as other:
                await other.next("counts")

    play(portal, story)


def test_a_change_of_very_many_vms_has_everything_read_again(portal: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "MAX_VMS_PER_CHANGE", 1)

    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            await restart(portal.world, "db")
            await restart(portal.world, "spot")
            assert (await page.next("change", "reset"))[0] == "reset"

    play(portal, story)
