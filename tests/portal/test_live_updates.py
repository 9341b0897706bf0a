"""The messages of the live stream: changes, counts, the clock, the health of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forewarn.base.times import time_text
from forewarn.core.commit import Commit
from forewarn.core.history import EventDelivery
from forewarn.core.request import RequestedOperation
from forewarn.errors import Unavailable
from forewarn.metadata import GuestObservations
from forewarn.service.web_server import build_web_app
from forewarn.store.memory import MemoryStore
from forewarn.web.portal import live_stream, live_updates, store_monitor
from tests.portal.conftest import PortalUser
from tests.portal.live_stream_client import (
    GROUP,
    advance_loop_time,
    commit_entry,
    open_stream,
    restart,
    run_scenario,
    session_for,
)
from tests.support.reporting_hypervisor import ReportingHypervisor


def test_a_stream_starts_with_clock_health_hold_and_counts(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal) as page:
            data = await page.all_until("counts")
            assert page.status == 200
            assert page.headers["content-type"].startswith("text/event-stream")
            assert "no-store" in page.headers["cache-control"]
            assert data[0] == ("clock", {"now": time_text(portal.world.now), "speed": 0.0, "lab": True}, None)
            assert data[1] == ("health", {"ok": True, "text": ""}, None)
            assert data[-1][1]["running"] == 7
            assert [kind for kind, _, _ in data] == ["clock", "health", "hold", "counts"]

    run_scenario(portal, scenario)


def test_a_hold_is_sent_to_every_page_with_a_link_for_those_who_may_lift_it(portal: PortalUser) -> None:
    reader = portal.with_role("Reader", GROUP)

    async def scenario() -> None:
        holds = portal.world.control.rollouts.holds
        async with open_stream(portal) as page, open_stream(reader) as other:
            for stream in (page, other):
                assert "hidden" in (await stream.next("hold"))[1]["html"]
            await holds.set_hold("an <incident>", who="ann")
            for stream, may_lift in ((page, True), (other, False)):
                html = (await stream.next("hold"))[1]["html"]
                assert "All rollouts have been on hold since" in html
                assert "by ann: an &lt;incident&gt;" in html
                assert "hidden" not in html
                assert ("rollout-lift-hold" in html) is may_lift
            await holds.lift_hold(who="ann")
            for stream in (page, other):
                assert "hidden" in (await stream.next("hold"))[1]["html"]
        async with open_stream(portal) as page:
            assert "on hold" not in (await page.next("hold"))[1]["html"]

    run_scenario(portal, scenario)


def test_a_change_names_everything_that_changed(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            event_id = await restart(portal.world, "web-0")
            _, data, seq = await page.next("change")
            vm = portal.world.vm("web-0")
            event = portal.world.store.event(event_id)
            assert event is not None
            assert data["events"] == [event_id]
            assert data["scopes"] == [vm.scope_id]
            assert data["requests"] == [event.request_id]
            assert data["hosts"] == [vm.host]
            assert data["vms"] == [[vm.key, "noticed"]]
            assert {"requested", "published"} <= set(data["kinds"])
            assert data["now"] == time_text(portal.world.now)
            assert data["seq"] == seq == portal.world.store.last_seq()

    run_scenario(portal, scenario)


def test_counts_follow_changes(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            await restart(portal.world, "web-0")
            _, counts, _ = await page.next("counts")
            assert (counts["running"], counts["noticed"]) == (6, 1)

    run_scenario(portal, scenario)


def test_a_page_opened_later_receives_current_counts(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
        await restart(portal.world, "web-0")
        async with open_stream(portal) as page, open_stream(portal.with_role("Reader", GROUP)) as other:
            for one in (page, other):
                _, counts, _ = await one.next("counts")
                assert (counts["running"], counts["noticed"]) == (6, 1)

    run_scenario(portal, scenario)


def test_commits_close_to_each_other_are_one_change(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            ids = [await restart(portal.world, name) for name in ("web-0", "db", "spot")]
            _, data, _ = await page.next("change")
            assert sorted(data["events"]) == sorted(ids)
            assert len(data["vms"]) == 3

    run_scenario(portal, scenario)


def test_the_delivery_of_an_event_is_a_change(portal: PortalUser) -> None:
    observations = GuestObservations()
    dependencies = replace(portal.api.dependencies, subscribe_deliveries=observations.subscribe_deliveries)
    other = PortalUser(portal.api, portal.principal)
    other.app = build_web_app(dependencies, authenticate_session=session_for(portal.principal))

    async def scenario() -> None:
        event_id = await restart(portal.world, "web-0")
        scope_id = portal.world.vm("web-0").scope_id
        async with open_stream(other) as page:
            await page.next("counts")
            delivery = EventDelivery(
                event_id=event_id, scope_id=scope_id, vm="web-0", status="scheduled", version="", incarnation=1, at=0
            )
            observations.notify_written([delivery])
            _, data, seq = await page.next("change")
            assert (data["events"], data["scopes"]) == ([event_id], [scope_id])
            assert seq == portal.world.store.last_seq()
        await asyncio.sleep(0)
        assert observations._delivery_subscribers == []

    run_scenario(portal, scenario)


def test_commits_that_concern_no_page_are_not_sent(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            await portal.world.store.commit(Commit(unplanned=("none",)))
            await advance_loop_time(live_updates.BATCH_WINDOW_S)
            await commit_entry(portal.world)
            _, data, _ = await page.next("change")
            assert data["kinds"] == ["upkeep"]

    run_scenario(portal, scenario)


def test_a_change_of_the_clock_is_sent(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            before = portal.world.now
            await portal.world.control.lab_clock.advance(600)
            _, data, _ = await page.next("clock")
            assert data == {"now": time_text(before + 600), "speed": 0.0, "lab": True}

    run_scenario(portal, scenario)


def test_a_page_that_reconnects_receives_what_it_missed(portal: PortalUser) -> None:
    async def scenario() -> None:
        known = portal.world.store.last_seq()
        event_id = await restart(portal.world, "web-0")
        for query, headers in ((f"after={known}", {}), ("after=0", {"last_event_id": str(known)})):
            async with open_stream(portal, query, **headers) as page:
                _, data, seq = await page.next("change", "reset")
                assert data["events"] == [event_id]
                assert data["vms"] == [
                    [vm.key, "noticed" if vm.name == "web-0" else "running"] for vm in web_vms(portal)
                ]
                assert seq == portal.world.store.last_seq()

    run_scenario(portal, scenario)


def web_vms(portal: PortalUser) -> list[Any]:
    return portal.world.store.vms(scope_id=portal.world.vm("web-0").scope_id)


def test_a_page_that_missed_nothing_receives_no_change(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal, f"after={portal.world.store.last_seq()}") as page:
            assert [kind for kind, _, _ in await page.all_until("counts")] == ["clock", "health", "hold", "counts"]

    run_scenario(portal, scenario)


def test_a_vm_removed_during_a_gap_is_sent_as_gone(portal: PortalUser) -> None:
    async def scenario() -> None:
        known, key = portal.world.store.last_seq(), portal.world.vm("db").key
        vms = [portal.world.vm("db")]
        await portal.world.control.requests.request_for_vms(RequestedOperation.DELETE, vms, who="ann")
        await portal.world.control.lab_clock.advance(3600)
        async with open_stream(portal, f"after={known}") as page:
            _, data, _ = await page.next("change")
            assert [key, "gone"] in data["vms"]

    run_scenario(portal, scenario)


@pytest.mark.parametrize("after", ["more than there are", "so few that the gap is too wide"])
def test_a_gap_that_is_too_wide_resets_the_page(portal: PortalUser, after: str) -> None:
    async def scenario() -> None:
        await commit_entry(portal.world, live_updates.MAX_MISSED_ENTRIES + 1)
        last = portal.world.store.last_seq()
        known = last + 1 if after == "more than there are" else last - live_updates.MAX_MISSED_ENTRIES - 1
        async with open_stream(portal, f"after={known}") as page:
            assert await page.next("change", "reset") == ("reset", {}, last)

    run_scenario(portal, scenario)


def test_the_widest_allowed_gap_is_sent_as_a_change(portal: PortalUser) -> None:
    async def scenario() -> None:
        await commit_entry(portal.world, live_updates.MAX_MISSED_ENTRIES)
        async with open_stream(
            portal, f"after={portal.world.store.last_seq() - live_updates.MAX_MISSED_ENTRIES}"
        ) as page:
            kind, data, _ = await page.next("change", "reset")
            assert (kind, data["kinds"]) == ("change", ["upkeep"])

    run_scenario(portal, scenario)


def test_a_gap_with_pruned_entries_resets_the_page(portal: PortalUser) -> None:
    async def scenario() -> None:
        known = portal.world.store.last_seq()
        await commit_entry(portal.world)
        await portal.world.control.lab_clock.advance(3 * 86400)
        await portal.world.store.prune(portal.world.now - 86400)
        await commit_entry(portal.world)
        async with open_stream(portal, f"after={known}") as page:
            kind, _, _ = await page.next("change", "reset")
            assert kind == "reset"

    run_scenario(portal, scenario)


def test_an_idle_stream_sends_keep_alive_messages(portal: PortalUser) -> None:
    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            await advance_loop_time(live_stream.KEEP_ALIVE_INTERVAL_S)
            assert await page.next("alive") == ("alive", {}, None)

    run_scenario(portal, scenario)


def test_a_failing_store_is_reported_and_so_is_its_recovery(portal: PortalUser) -> None:
    store = portal.world.store
    assert isinstance(store, MemoryStore)

    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            store.fail_next(Unavailable("disk full"))
            await advance_loop_time(store_monitor.CHECK_INTERVAL_S)
            assert await page.next("health") == ("health", {"ok": False, "text": store_monitor.NOT_WRITABLE.text}, None)
            async with open_stream(portal) as other:
                assert (await other.next("health"))[1]["ok"] is False
            await advance_loop_time(store_monitor.FAILING_CHECK_INTERVAL_S)
            assert (await page.next("health"))[1] == {"ok": True, "text": ""}

    run_scenario(portal, scenario)


def test_a_commit_shows_that_the_store_has_recovered(portal: PortalUser) -> None:
    store = portal.world.store
    assert isinstance(store, MemoryStore)

    async def scenario() -> None:
        async with open_stream(portal) as page:
            await page.next("counts")
            store.fail_next(Unavailable("disk full"))
            await advance_loop_time(store_monitor.CHECK_INTERVAL_S)
            assert (await page.next("health"))[1]["ok"] is False
            await commit_entry(portal.world)
            assert (await page.next("health"))[1]["ok"] is True

    run_scenario(portal, scenario)


def test_a_report_of_the_hypervisor_about_an_act_is_a_change_of_its_event(
    portal_of: Callable[..., PortalUser],
) -> None:
    hypervisor = ReportingHypervisor(note="10 %")
    portal = portal_of(hypervisor=hypervisor)

    async def scenario() -> None:
        event_id = await restart(portal.world, "web-0")
        await portal.world.control.requests.approve(event_id, who="ann")
        await portal.world.control.reconciler.run_until_settled()
        async with open_stream(portal) as page:
            await page.next("counts")
            hypervisor.note = "20 %"
            await portal.world.control.lab_clock.advance(1)
            _, data, _ = await page.next("change")
            assert data["events"] == [event_id]
            assert "h1" in data["hosts"]

    run_scenario(portal, scenario)
