"""Open pages are told who begins to ask and who falls silent, and nothing of the polls in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from forewarn.core.access import owner_principal
from forewarn.explain.polling import SILENCE_LIMIT_S, PollingPace
from forewarn.portal import live_updates, polling_monitor
from forewarn.web.dependencies import PollingListener
from tests.portal.conftest import Visitor
from tests.portal.live_stream_client import GROUP, looking, note, play, put_forward
from tests.support.operator_api import Api

DB = f"{GROUP}/providers/Microsoft.Compute/virtualMachines/db"


class Fleet:
    """A world whose VMs ask as a test says."""

    def __init__(self, api: Api) -> None:
        self.paces: dict[str, PollingPace] = {}
        self.looked_at: list[str] = []
        self.ears: list[PollingListener] = []
        api.house = replace(api.house, pace_of=self._pace, subscribe_polling=self._follow)
        self.portal = Visitor(api, owner_principal("local user ann"))

    def _pace(self, key: str) -> PollingPace | None:
        self.looked_at.append(key)
        return self.paces.get(key)

    def _follow(self, ear: PollingListener) -> Any:
        self.ears.append(ear)
        return lambda: self.ears.remove(ear)

    def key(self, name: str) -> str:
        return self.portal.world.vm(name).key

    def scope(self, name: str) -> str:
        return self.portal.world.vm(name).scope_id

    def begins(self, *names: str) -> None:
        self.ask(*names)
        self.tell([self.key(name) for name in names])

    def tell(self, keys: Sequence[str]) -> None:
        for ear in self.ears:
            ear(keys)

    def ask(self, *names: str, silent_s: float = 0.0) -> None:
        self.paces.update({self.key(name): PollingPace(silent_s) for name in names})


@pytest.fixture
def fleet(api: Api) -> Fleet:
    return Fleet(api)


def test_a_page_receives_the_scopes_in_which_a_vm_starts_polling(fleet: Fleet) -> None:
    async def story() -> None:
        async with looking(fleet.portal) as page:
            await page.next("counts")
            fleet.begins("web-0", "web-1", "db")
            _, told, number = await page.next("asking")
            assert told == {"now": fleet.portal.world.now, "scopes": sorted([fleet.scope("web-0"), fleet.scope("db")])}
            assert number is None

    play(fleet.portal, story)


def test_a_page_receives_the_scopes_in_which_a_vm_stops_polling(fleet: Fleet) -> None:
    fleet.ask("db", "web-0")

    async def story() -> None:
        async with looking(fleet.portal) as page:
            await page.next("counts")
            await asyncio.sleep(0)
            fleet.ask("db", silent_s=SILENCE_LIMIT_S + 1)
            await put_forward(SILENCE_LIMIT_S + polling_monitor.CHECK_INTERVAL_S)
            _, told, _ = await page.next("asking")
            assert told["scopes"] == [fleet.scope("db")]

    play(fleet.portal, story)


def test_a_vm_that_is_almost_silent_is_checked_in_time(fleet: Fleet) -> None:
    fleet.ask("db", silent_s=SILENCE_LIMIT_S - 10)

    async def story() -> None:
        async with looking(fleet.portal) as page:
            await page.next("counts")
            await asyncio.sleep(0)
            fleet.ask("db", silent_s=SILENCE_LIMIT_S + 1)
            await put_forward(10 + 2 * polling_monitor.CHECK_INTERVAL_S)
            _, told, _ = await page.next("asking")
            assert told["scopes"] == [fleet.scope("db")]

    play(fleet.portal, story)


def test_a_vm_that_keeps_polling_is_checked_rarely_and_sends_no_message(fleet: Fleet) -> None:
    fleet.ask("db")

    async def story() -> None:
        async with looking(fleet.portal) as page:
            await page.next("counts")
            await asyncio.sleep(0)
            fleet.looked_at.clear()
            for _ in range(12):
                await put_forward(SILENCE_LIMIT_S / 4)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert set(fleet.looked_at) == {fleet.key("db")}
            assert 1 <= len(fleet.looked_at) <= 4
            await note(fleet.portal.world)
            await put_forward(live_updates.POLLING_INTERVAL_S)
            assert (await page.next("asking", "change"))[0] == "change"

    play(fleet.portal, story)


def test_polling_changes_are_sent_together_at_intervals(fleet: Fleet) -> None:
    async def story() -> None:
        async with looking(fleet.portal) as page:
            await page.next("counts")
            fleet.begins("db")
            await page.next("asking")
            fleet.begins("web-0")
            await note(fleet.portal.world)
            await put_forward(live_updates.POLLING_INTERVAL_S / 2)
            assert (await page.next("asking", "change"))[0] == "change"
            fleet.begins("spot")
            await put_forward(live_updates.POLLING_INTERVAL_S / 2)
            _, told, _ = await page.next("asking")
            assert told["scopes"] == sorted([fleet.scope("web-0"), fleet.scope("spot")])

    play(fleet.portal, story)


def test_a_page_receives_polling_changes_of_visible_scopes_only(fleet: Fleet) -> None:
    reader = fleet.portal.holding("Reader", DB)

    async def story() -> None:
        async with looking(reader) as page:
            await page.next("counts")
            fleet.begins("web-0")
            await put_forward(live_updates.POLLING_INTERVAL_S)
            fleet.begins("web-0", "db")
            _, told, _ = await page.next("asking")
            assert told["scopes"] == [fleet.scope("db")]

    play(fleet.portal, story)


def test_a_page_reloads_polling_of_all_scopes_after_too_many_changes(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling_monitor, "MAX_CHANGED_SCOPES", 1)

    async def story() -> None:
        async with looking(fleet.portal) as page:
            await page.next("counts")
            fleet.begins("db", "web-0", "spot")
            assert (await page.next("asking"))[1]["scopes"] is None
            await put_forward(2 * polling_monitor.PAGE_LAG_S)
            fleet.begins("db")
            assert (await page.next("asking"))[1]["scopes"] == [fleet.scope("db")]
        async with looking(fleet.portal, "age=7") as page:  # of which some is forgotten
            assert (await page.next("asking", "counts"))[0] == "asking"

    play(fleet.portal, story)


def test_a_page_older_than_the_monitor_reloads_polling_of_all_scopes(fleet: Fleet) -> None:
    async def story() -> None:
        async with looking(fleet.portal, "age=1") as page:
            assert (await page.next("asking", "counts"))[1]["scopes"] is None

    play(fleet.portal, story)


def test_a_user_who_goes_to_another_page_receives_changes_in_between(fleet: Fleet) -> None:
    async def story() -> None:
        async with looking(fleet.portal) as page:
            await page.next("counts")
            await put_forward(2 * polling_monitor.PAGE_LAG_S)
        fleet.begins("db")
        await put_forward(polling_monitor.IDLE_GRACE_S / 2)
        async with looking(fleet.portal, f"age={polling_monitor.IDLE_GRACE_S // 2:.0f}") as page:
            assert (await page.next("asking", "counts"))[1]["scopes"] == [fleet.scope("db")]
        async with looking(fleet.portal, "age=1") as page:
            assert (await page.next("asking", "counts"))[0] == "counts"

    play(fleet.portal, story)


def test_a_vm_that_fell_silent_between_two_pages_is_reported(fleet: Fleet) -> None:
    fleet.ask("db")

    async def story() -> None:
        async with looking(fleet.portal) as page:
            await page.next("counts")
            await asyncio.sleep(0)
            await put_forward(polling_monitor.IDLE_GRACE_S - 1)
        fleet.ask("db", silent_s=SILENCE_LIMIT_S + 1)
        await put_forward(3 * polling_monitor.CHECK_INTERVAL_S)
        async with looking(fleet.portal, "age=3") as page:
            assert (await page.next("asking"))[1]["scopes"] == [fleet.scope("db")]

    play(fleet.portal, story)


def test_the_monitor_unsubscribes_when_no_page_is_open(fleet: Fleet) -> None:
    async def story() -> None:
        tasks = asyncio.all_tasks()
        async with looking(fleet.portal) as page:
            await page.next("counts")
            assert len(fleet.ears) == 1
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == tasks
        await put_forward(polling_monitor.IDLE_GRACE_S)
        await asyncio.sleep(0)
        assert fleet.ears == []

    play(fleet.portal, story)


@pytest.mark.parametrize("age", ["x", "-1", "1.5", "9" * 12])
def test_an_invalid_page_age_is_rejected(fleet: Fleet, age: str) -> None:
    page = fleet.portal.visit("GET", f"/portal/live?age={age}")
    assert (page.status, page.html) == (400, f"{age!r} is not the age of a page: give whole seconds")


def test_sections_that_show_polling_are_live(fleet: Fleet) -> None:
    assert 'data-live="all asking"' in fleet.portal.get("/portal/clients").html
    for path in ("/portal/", f"/portal/scopes/{fleet.scope('db')}", "/portal/vms/db"):
        assert f"scope:{fleet.scope('db')}" in fleet.portal.get(path).html
