"""The live stream reports VMs that start or stop polling, and not the polls in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from forewarn.base.times import time_text
from forewarn.control.fleet import FleetChange
from forewarn.core.access import owner_principal
from forewarn.core.explain.polling import SILENCE_LIMIT_S, PollingPace
from forewarn.web.dependencies import PollingListener
from forewarn.web.portal import live_updates, polling_monitor
from tests.portal.conftest import PortalUser
from tests.portal.live_stream_client import GROUP, advance_loop_time, commit_entry, open_stream, run_scenario
from tests.support.operator_api import Api

DB = f"{GROUP}/providers/Microsoft.Compute/virtualMachines/db"


class Fleet:
    """A world whose VMs poll as the test says."""

    def __init__(self, api: Api) -> None:
        self.paces: dict[str, PollingPace] = {}
        self.checked: list[str] = []
        self.listeners: list[PollingListener] = []
        api.dependencies = replace(api.dependencies, pace_of=self._pace, subscribe_polling=self._subscribe)
        self.portal = PortalUser(api, owner_principal("local user ann"))

    def _pace(self, key: str) -> PollingPace | None:
        self.checked.append(key)
        return self.paces.get(key)

    def _subscribe(self, listener: PollingListener) -> Any:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def key(self, name: str) -> str:
        return self.portal.world.vm(name).key

    def scope(self, name: str) -> str:
        return self.portal.world.vm(name).scope_id

    def start_polling(self, *names: str) -> None:
        self.set_polling(*names)
        self.notify([self.key(name) for name in names])

    def notify(self, keys: Sequence[str]) -> None:
        for listener in self.listeners:
            listener(keys)

    def set_polling(self, *names: str, silent_s: float = 0.0) -> None:
        self.paces.update({self.key(name): PollingPace(silent_s) for name in names})


@pytest.fixture
def fleet(api: Api) -> Fleet:
    return Fleet(api)


def test_a_page_receives_the_scopes_in_which_a_vm_starts_polling(fleet: Fleet) -> None:
    async def scenario() -> None:
        async with open_stream(fleet.portal) as page:
            await page.next("counts")
            fleet.start_polling("web-0", "web-1", "db")
            _, data, seq = await page.next("polling")
            assert data == {
                "now": time_text(fleet.portal.world.now),
                "scopes": sorted([fleet.scope("web-0"), fleet.scope("db")]),
            }
            assert seq is None

    run_scenario(fleet.portal, scenario)


def test_a_page_receives_the_scopes_in_which_a_vm_stops_polling(fleet: Fleet) -> None:
    fleet.set_polling("db", "web-0")

    async def scenario() -> None:
        async with open_stream(fleet.portal) as page:
            await page.next("counts")
            await asyncio.sleep(0)
            fleet.set_polling("db", silent_s=SILENCE_LIMIT_S + 1)
            await advance_loop_time(SILENCE_LIMIT_S + polling_monitor.CHECK_INTERVAL_S)
            _, data, _ = await page.next("polling")
            assert data["scopes"] == [fleet.scope("db")]

    run_scenario(fleet.portal, scenario)


def test_a_vm_that_was_removed_is_not_reported_when_it_stops_polling(fleet: Fleet) -> None:
    fleet.set_polling("db", "web-0")

    async def scenario() -> None:
        async with open_stream(fleet.portal) as page:
            await page.next("counts")
            await asyncio.sleep(0)
            fleet.set_polling("db", "web-0", silent_s=SILENCE_LIMIT_S + 1)
            world = fleet.portal.world
            await world.control.fleet.apply_change(FleetChange(removed=(world.vm("db"),)), who="ann")
            await advance_loop_time(SILENCE_LIMIT_S + polling_monitor.CHECK_INTERVAL_S)
            _, data, _ = await page.next("polling")
            assert data["scopes"] == [fleet.scope("web-0")]

    run_scenario(fleet.portal, scenario)


def test_a_vm_that_is_almost_silent_is_checked_in_time(fleet: Fleet) -> None:
    fleet.set_polling("db", silent_s=SILENCE_LIMIT_S - 10)

    async def scenario() -> None:
        async with open_stream(fleet.portal) as page:
            await page.next("counts")
            await asyncio.sleep(0)
            fleet.set_polling("db", silent_s=SILENCE_LIMIT_S + 1)
            await advance_loop_time(10 + 2 * polling_monitor.CHECK_INTERVAL_S)
            _, data, _ = await page.next("polling")
            assert data["scopes"] == [fleet.scope("db")]

    run_scenario(fleet.portal, scenario)


def test_a_vm_that_keeps_polling_is_checked_rarely_and_sends_no_message(fleet: Fleet) -> None:
    fleet.set_polling("db")

    async def scenario() -> None:
        async with open_stream(fleet.portal) as page:
            await page.next("counts")
            await asyncio.sleep(0)
            fleet.checked.clear()
            for _ in range(12):
                await advance_loop_time(SILENCE_LIMIT_S / 4)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert set(fleet.checked) == {fleet.key("db")}
            assert 1 <= len(fleet.checked) <= 4
            await commit_entry(fleet.portal.world)
            await advance_loop_time(live_updates.POLLING_INTERVAL_S)
            assert (await page.next("polling", "change"))[0] == "change"

    run_scenario(fleet.portal, scenario)


def test_polling_changes_are_sent_together_at_intervals(fleet: Fleet) -> None:
    async def scenario() -> None:
        async with open_stream(fleet.portal) as page:
            await page.next("counts")
            fleet.start_polling("db")
            await page.next("polling")
            fleet.start_polling("web-0")
            await commit_entry(fleet.portal.world)
            await advance_loop_time(live_updates.POLLING_INTERVAL_S / 2)
            assert (await page.next("polling", "change"))[0] == "change"
            fleet.start_polling("spot")
            await advance_loop_time(live_updates.POLLING_INTERVAL_S / 2)
            _, data, _ = await page.next("polling")
            assert data["scopes"] == sorted([fleet.scope("web-0"), fleet.scope("spot")])

    run_scenario(fleet.portal, scenario)


def test_a_page_receives_polling_changes_of_visible_scopes_only(fleet: Fleet) -> None:
    reader = fleet.portal.with_role("Reader", DB)

    async def scenario() -> None:
        async with open_stream(reader) as page:
            await page.next("counts")
            fleet.start_polling("web-0")
            await advance_loop_time(live_updates.POLLING_INTERVAL_S)
            fleet.start_polling("web-0", "db")
            _, data, _ = await page.next("polling")
            assert data["scopes"] == [fleet.scope("db")]

    run_scenario(fleet.portal, scenario)


def test_a_page_reloads_polling_of_all_scopes_after_too_many_changes(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling_monitor, "MAX_CHANGED_SCOPES", 1)

    async def scenario() -> None:
        async with open_stream(fleet.portal) as page:
            await page.next("counts")
            fleet.start_polling("db", "web-0", "spot")
            assert (await page.next("polling"))[1]["scopes"] is None
            await advance_loop_time(2 * polling_monitor.PAGE_LAG_S)
            fleet.start_polling("db")
            assert (await page.next("polling"))[1]["scopes"] == [fleet.scope("db")]
        async with open_stream(fleet.portal, "age=7") as page:  # some changes of that time are forgotten
            assert (await page.next("polling", "counts"))[0] == "polling"

    run_scenario(fleet.portal, scenario)


def test_a_page_older_than_the_monitor_reloads_polling_of_all_scopes(fleet: Fleet) -> None:
    async def scenario() -> None:
        async with open_stream(fleet.portal, "age=1") as page:
            assert (await page.next("polling", "counts"))[1]["scopes"] is None

    run_scenario(fleet.portal, scenario)


def test_a_user_who_goes_to_another_page_receives_changes_in_between(fleet: Fleet) -> None:
    async def scenario() -> None:
        async with open_stream(fleet.portal) as page:
            await page.next("counts")
            await advance_loop_time(2 * polling_monitor.PAGE_LAG_S)
        fleet.start_polling("db")
        await advance_loop_time(polling_monitor.IDLE_GRACE_S / 2)
        async with open_stream(fleet.portal, f"age={polling_monitor.IDLE_GRACE_S // 2:.0f}") as page:
            assert (await page.next("polling", "counts"))[1]["scopes"] == [fleet.scope("db")]
        async with open_stream(fleet.portal, "age=1") as page:
            assert (await page.next("polling", "counts"))[0] == "counts"

    run_scenario(fleet.portal, scenario)


def test_a_vm_that_fell_silent_between_two_pages_is_reported(fleet: Fleet) -> None:
    fleet.set_polling("db")

    async def scenario() -> None:
        async with open_stream(fleet.portal) as page:
            await page.next("counts")
            await asyncio.sleep(0)
            await advance_loop_time(polling_monitor.IDLE_GRACE_S - 1)
        fleet.set_polling("db", silent_s=SILENCE_LIMIT_S + 1)
        await advance_loop_time(3 * polling_monitor.CHECK_INTERVAL_S)
        async with open_stream(fleet.portal, "age=3") as page:
            assert (await page.next("polling"))[1]["scopes"] == [fleet.scope("db")]

    run_scenario(fleet.portal, scenario)


def test_the_monitor_unsubscribes_when_no_page_is_open(fleet: Fleet) -> None:
    async def scenario() -> None:
        tasks = asyncio.all_tasks()
        async with open_stream(fleet.portal) as page:
            await page.next("counts")
            assert len(fleet.listeners) == 1
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == tasks
        await advance_loop_time(polling_monitor.IDLE_GRACE_S)
        await asyncio.sleep(0)
        assert fleet.listeners == []

    run_scenario(fleet.portal, scenario)


@pytest.mark.parametrize("age", ["x", "-1", "1.5", "9" * 12])
def test_an_invalid_page_age_is_rejected(fleet: Fleet, age: str) -> None:
    page = fleet.portal.request("GET", f"/portal/live?age={age}")
    assert (page.status, page.html) == (400, f"{age!r} is not the age of a page: give whole seconds")


def test_sections_that_show_polling_are_live(fleet: Fleet) -> None:
    assert 'data-live="all polling"' in fleet.portal.get("/portal/clients").html
    for path in ("/portal/fleet", f"/portal/scopes/{fleet.scope('db')}", "/portal/vms/db"):
        assert f"scope:{fleet.scope('db')}" in fleet.portal.get(path).html
