"""Who may open a live stream, what they receive of it, when it ends, and how many may be open."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest

from forewarn.core.access import Principal
from forewarn.errors import Unauthenticated
from forewarn.web.connection_slots import ConnectionShares
from forewarn.web.portal import live_stream, live_updates
from forewarn.web.portal.context import CurrentSession
from tests.portal.conftest import PortalUser
from tests.portal.live_stream_client import (
    GROUP,
    advance_loop_time,
    commit_entry,
    open_stream,
    restart,
    run_scenario,
    subscriber_count,
    with_authenticator,
)


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "٣", "9" * 30, "<b>"])
def test_an_invalid_sequence_number_is_rejected(portal: PortalUser, after: str) -> None:
    page = portal.request("GET", f"/portal/live?{urlencode({'after': after})}")
    assert (page.status, page.headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert page.html == f"{after!r} is not a sequence number of the history: give the last one that you received"


def test_a_stream_needs_a_session(portal: PortalUser) -> None:
    async def nobody(request: Any) -> CurrentSession:
        raise Unauthenticated("nobody is signed in: sign in")

    page = with_authenticator(portal, nobody).request("GET", "/portal/live")
    assert (page.status, page.html) == (401, "nobody is signed in: sign in")


def test_a_change_holds_only_what_the_user_may_see(portal: PortalUser) -> None:
    reader = portal.with_role("Reader", f"{GROUP}/providers/Microsoft.Compute/virtualMachines/db")

    async def scenario() -> None:
        async with open_stream(reader) as page:
            _, counts, _ = await page.next("counts")
            assert sum(counts.values()) == 1
            await restart(portal.world, "web-0")  # on the same host
            await commit_entry(portal.world)
            await advance_loop_time(live_updates.BATCH_WINDOW_S)
            event_id = await restart(portal.world, "db")
            _, data, _ = await page.next("change")
            assert data["events"] == [event_id]
            assert data["scopes"] == [portal.world.vm("db").scope_id]
            assert data["vms"] == [[portal.world.vm("db").key, "noticed"]]
            assert data["hosts"] == ["h1"]
            assert "upkeep" not in data["kinds"]

    run_scenario(portal, scenario)


def test_missed_changes_hold_only_what_the_user_may_see(portal: PortalUser) -> None:
    reader = portal.with_role("Reader", f"{GROUP}/providers/Microsoft.Compute/virtualMachines/db")

    async def scenario() -> None:
        known = portal.world.store.last_seq()
        await restart(portal.world, "web-0")
        event_id = await restart(portal.world, "db")
        async with open_stream(reader, f"after={known}") as page:
            _, data, _ = await page.next("change")
            assert (data["events"], [key for key, _ in data["vms"]]) == ([event_id], [portal.world.vm("db").key])

    run_scenario(portal, scenario)


def test_closed_streams_leave_no_task_or_subscription(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
        before, tasks = subscriber_count(portal.world), asyncio.all_tasks()
        async with open_stream(portal) as one, open_stream(portal) as other:
            await one.next("counts")
            await other.next("counts")
            assert subscriber_count(portal.world) == before + 1
        await asyncio.sleep(0)
        assert subscriber_count(portal.world) == before
        assert asyncio.all_tasks() == tasks

    run_scenario(portal, scenario)


def test_a_stopping_service_ends_its_streams(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            portal.api.dependencies.shutting_down.set()
            assert await page.end() == []

    run_scenario(portal, scenario)


def test_a_stream_opened_while_the_service_stops_ends_at_once(portal: PortalUser) -> None:
    async def scenario() -> None:
        portal.api.dependencies.shutting_down.set()
        async with open_stream(portal) as page:
            await page.end()

    run_scenario(portal, scenario)


class EndableSession:
    """An authenticator whose session ends when the test sets `is_over`."""

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        self.is_over = False

    async def authenticate(self, request: Any) -> CurrentSession:
        if self.is_over:
            raise Unauthenticated("the visit is over: sign in")
        return CurrentSession(principal=self._principal, csrf_token="", ends_at=0)


def test_a_stream_ends_after_a_sign_out(portal: PortalUser) -> None:
    session = EndableSession(portal.principal)

    async def scenario() -> None:
        async with open_stream(with_authenticator(portal, session.authenticate)) as page:
            await page.next("counts")
            session.is_over = True
            await advance_loop_time(live_stream.MAX_WAIT_S)
            assert await page.end() == [("over", {"text": "You are signed out."}, None)]

    run_scenario(portal, scenario)


def test_nothing_is_sent_after_a_sign_out(portal: PortalUser) -> None:
    session = EndableSession(portal.principal)

    async def scenario() -> None:
        async with open_stream(with_authenticator(portal, session.authenticate)) as page:
            await page.next("counts")
            session.is_over = True
            await advance_loop_time(live_stream.REAUTHENTICATE_INTERVAL_S)
            await restart(portal.world, "web-0")
            assert [kind for kind, _, _ in await page.end()] == ["over"]

    run_scenario(portal, scenario)


def test_a_change_of_grants_resets_the_page(portal: PortalUser) -> None:
    principal = portal.principal

    async def authenticate(request: Any) -> CurrentSession:
        return CurrentSession(principal=principal, csrf_token="", ends_at=0)

    async def scenario() -> None:
        nonlocal principal
        async with open_stream(with_authenticator(portal, authenticate)) as page:
            await page.next("counts")
            principal = Principal(id="client:ci", name="client ci", grants=())
            await advance_loop_time(live_stream.MAX_WAIT_S)
            await page.next("reset")
            await restart(portal.world, "web-0")
            _, counts, _ = await page.next("counts", "change")
            assert sum(counts.values()) == 0

    run_scenario(portal, scenario)


def test_a_page_that_reads_too_slowly_is_reset(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            page.reads.clear()
            for _ in range(live_updates.MAX_PENDING_BATCHES + 3):
                await commit_entry(portal.world)
                await advance_loop_time(live_updates.BATCH_WINDOW_S)
                await asyncio.sleep(0)
            page.reads.set()
            kinds = [kind for kind, _, _ in await page.all_until("reset")]
            assert kinds.count("change") <= 2  # already sent
            await commit_entry(portal.world)
            assert (await page.next("change"))[2] == portal.world.store.last_seq()

    run_scenario(portal, scenario)


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        ("MAX_SUBSCRIBERS", "1 live pages are open, which is the limit: close some, then reload"),
        ("MAX_SUBSCRIBERS_PER_PRINCIPAL", "1 of your live pages are open, which is the limit: close some, then reload"),
    ],
)
def test_the_number_of_open_streams_is_limited(
    portal: PortalUser, monkeypatch: pytest.MonkeyPatch, bound: str, sentence: str
) -> None:
    monkeypatch.setattr(live_updates, bound, 1)

    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            answer = await portal.send_request("GET", "/portal/live", b"", {})
            assert (answer.status, answer.html) == (503, sentence)

    run_scenario(portal, scenario)


@pytest.mark.parametrize(("total", "limit"), [(64, 8), (8, 1)])
def test_the_streams_of_one_user_leave_connections_for_its_pages(portal: PortalUser, total: int, limit: int) -> None:
    shares = ConnectionShares(total)
    assert shares.streams_per_principal == limit

    async def scenario() -> None:
        portal.api.dependencies = replace(portal.api.dependencies, connection_shares=shares)
        limited = PortalUser(portal.api, portal.principal)
        async with AsyncExitStack() as stack:
            for _ in range(limit):
                page = await stack.enter_async_context(open_stream(limited))
                await page.next("counts")
            answer = await limited.send_request("GET", "/portal/live", b"", {})
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert f"{limit} of your live pages are open, which is the limit" in answer.html

    run_scenario(portal, scenario)


def test_the_limit_of_one_user_does_not_affect_others(portal: PortalUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "MAX_SUBSCRIBERS_PER_PRINCIPAL", 1)
    principal = portal.principal

    async def authenticate(request: Any) -> CurrentSession:
        return CurrentSession(principal=principal, csrf_token="", ends_at=0)

    async def scenario() -> None:
        nonlocal principal
        visited = with_authenticator(portal, authenticate)
        async with open_stream(visited) as page:
            await page.next("counts")
            principal = Principal(id="client:ci", name="client ci", grants=())
            async with open_stream(visited) as other:
                await other.next("counts")

    run_scenario(portal, scenario)


def test_a_change_of_too_many_vms_resets_the_page(portal: PortalUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "MAX_VMS_PER_CHANGE", 1)

    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            await restart(portal.world, "db")
            await restart(portal.world, "spot")
            assert (await page.next("change", "reset"))[0] == "reset"

    run_scenario(portal, scenario)
