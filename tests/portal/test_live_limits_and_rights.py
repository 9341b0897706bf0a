"""Who may open a live stream, what they receive of it, when it ends, and how many may be open."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

import pytest

from forewarn.core.access import Principal
from forewarn.errors import Unauthenticated
from forewarn.portal import live_stream, live_updates
from forewarn.portal.context import CurrentSession
from tests.portal.conftest import Visitor
from tests.portal.live_stream_client import (
    GROUP,
    looking,
    note,
    play,
    put_forward,
    restart,
    subscribers,
    visited_by,
)


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "٣", "9" * 30, "<b>"])
def test_an_invalid_sequence_number_is_rejected(portal: Visitor, after: str) -> None:
    page = portal.visit("GET", f"/portal/live?{urlencode({'after': after})}")
    assert (page.status, page.headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert page.html == f"{after!r} is not a sequence number of the history: give the last one that you received"


def test_a_stream_needs_a_session(portal: Visitor) -> None:
    async def nobody(request: Any) -> CurrentSession:
        raise Unauthenticated("nobody is signed in: sign in")

    page = visited_by(portal, nobody).visit("GET", "/portal/live")
    assert (page.status, page.html) == (401, "nobody is signed in: sign in")


def test_a_change_holds_only_what_the_user_may_see(portal: Visitor) -> None:
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


def test_missed_changes_hold_only_what_the_user_may_see(portal: Visitor) -> None:
    reader = portal.holding("Reader", f"{GROUP}/providers/Microsoft.Compute/virtualMachines/db")

    async def story() -> None:
        known = portal.world.store.last_seq()
        await restart(portal.world, "web-0")
        event_id = await restart(portal.world, "db")
        async with looking(reader, f"after={known}") as page:
            _, told, _ = await page.next("change")
            assert (told["events"], [key for key, _ in told["vms"]]) == ([event_id], [portal.world.vm("db").key])

    play(portal, story)


def test_closed_streams_leave_no_task_or_subscription(portal: Visitor) -> None:
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


def test_a_stopping_service_ends_its_streams(portal: Visitor) -> None:
    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            portal.api.house.shutting_down.set()
            assert await page.end() == []

    play(portal, story)


def test_a_stream_opened_while_the_service_stops_ends_at_once(portal: Visitor) -> None:
    async def story() -> None:
        portal.api.house.shutting_down.set()
        async with looking(portal) as page:
            await page.end()

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


def test_a_stream_ends_after_a_sign_out(portal: Visitor) -> None:
    visit = Ending(portal.principal)

    async def story() -> None:
        async with looking(visited_by(portal, visit.welcome)) as page:
            await page.next("counts")
            visit.is_over = True
            await put_forward(live_stream.MAX_WAIT_S)
            assert await page.end() == [("over", {"text": "You are signed out."}, None)]

    play(portal, story)


def test_nothing_is_sent_after_a_sign_out(portal: Visitor) -> None:
    visit = Ending(portal.principal)

    async def story() -> None:
        async with looking(visited_by(portal, visit.welcome)) as page:
            await page.next("counts")
            visit.is_over = True
            await put_forward(live_stream.REAUTHENTICATE_INTERVAL_S)
            await restart(portal.world, "web-0")
            assert [kind for kind, _, _ in await page.end()] == ["over"]

    play(portal, story)


def test_a_change_of_grants_resets_the_page(portal: Visitor) -> None:
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


def test_a_page_that_reads_too_slowly_is_reset(portal: Visitor) -> None:
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


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        ("MAX_SUBSCRIBERS", "1 live pages are open, which is the limit: close some, then reload"),
        ("MAX_SUBSCRIBERS_PER_PRINCIPAL", "1 of your live pages are open, which is the limit: close some, then reload"),
    ],
)
def test_the_number_of_open_streams_is_limited(
    portal: Visitor, monkeypatch: pytest.MonkeyPatch, bound: str, sentence: str
) -> None:
    monkeypatch.setattr(live_updates, bound, 1)

    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            answer = await portal.visiting("GET", "/portal/live", b"", {})
            assert (answer.status, answer.html) == (503, sentence)

    play(portal, story)


def test_the_limit_of_one_user_does_not_affect_others(portal: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_change_of_too_many_vms_resets_the_page(portal: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "MAX_VMS_PER_CHANGE", 1)

    async def story() -> None:
        async with looking(portal) as page:
            await page.next("counts")
            await restart(portal.world, "db")
            await restart(portal.world, "spot")
            assert (await page.next("change", "reset"))[0] == "reset"

    play(portal, story)
