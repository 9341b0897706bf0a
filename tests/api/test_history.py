"""The history: read, filtered, followed and pruned."""

from __future__ import annotations

import asyncio
from typing import Any

from forewarn.machines.simulated import SimulatedBehaviour, UnreachableRule


def texts(page: Any) -> list[str]:
    return [entry["text"] for entry in page["entries"]]


def test_the_history_shows_the_newest_entries_oldest_first(api: Any) -> None:
    api.restart_of("db")
    page = api.get("/history?limit=2")
    assert texts(page) == ["local user ann requested restart of db", "Reboot of db scheduled"]
    assert page["seq"] == api.world.store.last_seq()
    entry = page["entries"][-1]
    assert set(entry) == {
        "seq", "at", "kind", "text", "actor", "scope_id", "event_id", "request_id", "vm", "host",
    }  # fmt: skip
    assert (entry["kind"], entry["vm"]) == ("published", "db")


def test_a_follower_of_the_history_misses_no_entry(api: Any) -> None:
    seq = api.get("/history")["seq"]
    api.restart_of("db")
    api.restart_of("web-0")
    followed: list[str] = []
    for _ in range(4):
        page = api.get(f"/history?after={seq}&limit=1")
        followed += texts(page)
        seq = page["seq"]
    assert followed == [entry.text for entry in api.world.store.history()][-4:]
    assert texts(api.get(f"/history?after={seq}")) == []


def test_the_history_is_filtered_by_vm_event_request_and_scope(api: Any) -> None:
    (event,) = api.restart_of("db")
    api.restart_of("web-0")
    about_db = ["local user ann requested restart of db", "Reboot of db scheduled"]
    assert texts(api.get("/history?vm=DB")) == about_db
    assert texts(api.get(f"/history?event={event['id']}")) == about_db[1:]
    assert texts(api.get(f"/history?request={event['request_id']}")) == about_db
    assert texts(api.get("/history?scope=web"))[-1] == "Reboot of web-0 scheduled"


def test_the_history_of_a_vm_shows_events_that_it_shares_with_others(api: Any) -> None:
    api.post("/rollouts", {"impact": "update", "hosts": ["h1"]})
    assert texts(api.get("/history?vm=pool_1")) == ["Freeze of pool_0, pool_1 scheduled"]
    api.world.advance(3600)
    about = texts(api.get("/history?vm=pool_1"))
    assert about == [
        "Freeze of pool_0, pool_1 scheduled",
        "Freeze of pool_0, pool_1 started: its notice ended",
        "freeze of pool_1 performed: freeze took 9 s",
        "Freeze of pool_0, pool_1 finished",
    ]


def test_a_long_poll_is_answered_when_an_entry_is_written(api: Any) -> None:
    """Spec §12: how long a request is held is real time; no test waits that long."""

    async def scenario() -> Any:
        seq = api.world.store.last_seq()
        held = asyncio.create_task(api.calling("GET", f"/history?after={seq}&wait_s=60&vm=db"))
        await asyncio.sleep(0)
        await api.calling("POST", "/requests", {"operation": "restart", "vms": ["web-0"]})
        for _ in range(20):
            await asyncio.sleep(0)
        assert not held.done()  # the entry was about another VM
        await api.calling("POST", "/requests", {"operation": "restart", "vms": ["db"]})
        return (await held).json

    assert "local user ann requested restart of db" in texts(api.world.do(scenario()))


def test_a_long_poll_is_answered_at_once_if_entries_exist(api: Any) -> None:
    assert len(api.get("/history?wait_s=60")["entries"]) > 0


def test_a_long_poll_is_answered_when_the_service_stops(api: Any) -> None:
    async def scenario() -> Any:
        seq = api.world.store.last_seq()
        held = asyncio.create_task(api.calling("GET", f"/history?after={seq}&wait_s=60"))
        for _ in range(5):
            await asyncio.sleep(0)
        api.dependencies.shutting_down.set()
        return (await held).json

    assert texts(api.world.do(scenario())) == []


def test_a_long_poll_is_answered_empty_when_its_time_is_over(api: Any) -> None:
    seq = api.world.store.last_seq()
    page = api.get(f"/history?after={seq}&wait_s=0.01")
    assert (page["entries"], page["seq"]) == ([], seq)


def test_a_retry_entry_is_found_by_its_request(api: Any) -> None:
    (event,) = api.restart_of("db")
    api.world.hypervisor.set_behaviour(SimulatedBehaviour((UnreachableRule(times=1),)))
    api.world.approve("db", event["id"])
    entries = api.get(f"/history?request={event['request_id']}")["entries"]
    assert [entry["kind"] for entry in entries][-1] == "retried"
    shown = [line["text"] for line in api.get(f"/explain/{event['id']}")["lines"]]
    assert len([text for text in shown if "is tried again" in text]) == 1


def test_the_history_names_added_and_removed_vms_and_hosts(api: Any) -> None:
    api.post("/fleet/vms", {"name": "cache", "host": "h3"})
    api.delete("/fleet/vms/cache")
    entries = api.get("/history?vm=cache")["entries"]
    assert [(e["kind"], e["text"]) for e in entries] == [("fleet", "VM cache added"), ("fleet", "VM cache removed")]
    api.post("/fleet/hosts", {"name": "h9", "location": "westeurope"})
    last = api.get("/history?limit=1")["entries"][0]
    assert (last["vm"], last["host"]) == ("", "h9")


def test_old_history_is_pruned_except_the_last_day(api: Any) -> None:
    """Spec §5.2: past events are kept at least 24 h."""
    for span in (86399, -1, 0):
        status, code, message = api.refused("POST", "/history/prune", {"older_than_s": span})
        assert (status, code) == (400, "Rejected")
        assert "give 86400 s or more" in message
    written = api.world.store.last_seq()
    api.world.advance(2 * 86400)
    assert api.post("/history/prune", {"older_than_s": 86400})["pruned"] == written
