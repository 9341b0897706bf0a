"""A caller who may read some VMs sees nothing of the others (spec §7.2)."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields

from forewarn.core.access import Grant, Principal, Role
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry

COMPUTE = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute"
DB = f"{COMPUTE}/virtualMachines/db"
WEB_1 = f"{COMPUTE}/virtualMachines/web-1"
POOL = f"{COMPUTE}/virtualMachineScaleSets/pool"
OTHER_GROUP = "/subscriptions/sub/resourceGroups/other"


def texts(page: Any) -> list[str]:
    return [entry["text"] for entry in page["entries"]]


def response_text(api: Any, target: str) -> str:
    """The text of a response, to search for what must not be in it."""
    answer = api.call("GET", target)
    assert answer.status == 200, answer.content
    text: str = answer.content.decode()
    return text


def test_the_fleet_shows_readable_vms_and_their_hosts(api: Any) -> None:
    shown = api.holding("Reader", DB).get("/fleet")
    assert [vm["name"] for vm in shown["vms"]] == ["db"]
    assert [(host["name"], host["vms"]) for host in shown["hosts"]] == [("h1", ["db"])]
    assert [scope["id"] for scope in shown["scopes"]] == ["vm:sub/lab/db"]
    assert len(api.get("/fleet")["vms"]) == 7


def test_a_reader_of_a_scale_set_sees_its_instances(api: Any) -> None:
    shown = api.holding("Operator", POOL).get("/fleet")
    assert [vm["name"] for vm in shown["vms"]] == ["pool_0", "pool_1"]


INVISIBLE_TARGETS = [
    "/vms/web-0",
    "/fleet?host=h2",
    "/fleet?scope=web",
    "/fleet?scope=set:sub/lab/web",
    "/events?vm=web-0",
    "/events?host=h2",
    "/events?scope=web",
    "/history?vm=web-0",
    "/history?scope=web",
    "/explain/web-0",
    "/explain/web",
    "/explain/h2",
    "/explain/h1",
]


@pytest.mark.parametrize("target", INVISIBLE_TARGETS)
def test_an_invisible_thing_is_refused_like_one_that_does_not_exist(api: Any, target: str) -> None:
    name = target.rpartition("/")[2] if "=" not in target else target.rpartition("=")[2].rpartition("/")[2]
    roleless = target.replace(name, "nothing")
    of_other, of_nothing = (api.holding("Reader", DB).refused("GET", one) for one in (target, roleless))
    assert of_other[:2] == (404, "NotFound")
    assert of_other[2].replace(name, "nothing") == of_nothing[2]


def test_an_event_or_request_of_another_owner_is_not_found(api: Any) -> None:
    (event,) = api.restart_of("web-0")
    reader = api.holding("Reader", DB)
    for path in ("/events/{}", "/explain/{}", "/history?event={}", "/events/{}/approve"):
        method = "POST" if path.endswith("approve") else "GET"
        for known in (event["id"], event["id"].lower()):
            assert reader.refused(method, path.format(known))[:2] == (404, "NotFound")
    for path in ("/requests/{}", "/explain/{}", "/history?request={}"):
        assert reader.refused("GET", path.format(event["request_id"]))[:2] == (404, "NotFound")


def test_an_id_prefix_is_matched_among_visible_ids_only(api: Any) -> None:
    (own,) = api.restart_of("db")
    api.restart_of("web-0")
    assert api.refused("GET", f"/events/{own['id'][:8]}")[1] == "Refused"
    assert api.holding("Reader", DB).get(f"/events/{own['id'][:8]}")["id"] == own["id"]


def test_a_reader_of_one_vm_sees_all_events_of_its_scope_but_may_not_approve_for_others(api: Any) -> None:
    """Spec §7.2."""
    (event,) = api.restart_of("web-0")
    api.restart_of("db")
    member = api.holding("ScheduledEventContributor", WEB_1)
    assert [e["id"] for e in member.get("/events")["events"]] == [event["id"]]
    assert member.get(f"/events/{event['id']}")["vms"] == ["web-0"]
    assert member.refused("POST", f"/events/{event['id']}/approve")[:2] == (403, "Forbidden")


def test_a_name_is_not_ambiguous_if_only_one_such_vm_is_visible(api: Any) -> None:
    api.post("/fleet/vms", {"name": "db", "resource_group": "other"})
    assert api.refused("GET", "/vms/db")[1] == "Refused"
    assert api.holding("Reader", DB).get("/vms/db")["resource_group"] == "lab"


def test_the_name_of_an_invisible_vm_is_not_suggested(api: Any) -> None:
    assert "did you mean 'web-0'" in api.refused("GET", "/vms/webb-0")[2]
    assert "did you mean" not in api.holding("Reader", DB).refused("GET", "/vms/webb-0")[2]


def test_a_request_is_visible_to_a_reader_of_all_its_vms(api: Any) -> None:
    both = api.restart_of("db", "web-1")[0]["request_id"]
    assert api.holding("Reader", DB).refused("GET", f"/requests/{both}")[:2] == (404, "NotFound")
    assert api.holding("Reader", DB, WEB_1).get(f"/requests/{both}")["state"] == "in progress"


def test_a_request_is_visible_to_the_client_that_made_it(api: Any) -> None:
    asked = api.holding("Operator", DB, WEB_1).restart_of("db", "web-1")[0]["request_id"]
    assert api.holding("Reader", DB).get(f"/requests/{asked}")["state"] == "in progress"
    assert api.holding("Reader", DB, name="client other").refused("GET", f"/requests/{asked}")[0] == 404


def test_a_rollout_is_visible_only_to_readers_of_everything(api: Any) -> None:
    rollout = api.post("/rollouts", {"impact": "reboot", "hosts": ["h1"]})["id"]
    reader = api.holding("Reader", DB, WEB_1, POOL)
    for target in (f"/explain/{rollout}", f"/requests/{rollout}", f"/events?rollout={rollout}"):
        assert reader.refused("GET", target)[:2] == (404, "NotFound")


def test_a_wait_for_a_gate_does_not_name_invisible_scopes(api: Any) -> None:
    """Spec §6.2 and §7.2."""
    rollout = api.post("/rollouts", {"impact": "reboot", "hosts": ["h1"]})["id"]
    (event,) = api.get("/events?vm=db")["events"]
    api.post(f"/events/{event['id']}/approve")
    reader = api.holding("Reader", DB)
    shown = reader.get(f"/events/{event['id']}")
    assert shown["waits_for"]["text"] == "another scope on the same host, which is not ready yet"
    for target in ("/vms/db", "/events", "/explain/db", f"/explain/{event['id']}", "/history", "/fleet"):
        found = response_text(reader, target)
        assert not any(name in found for name in ("web-0", "pool_0", "local user ann requested rollout"))
    found = reader.get(f"/explain/{event['id']}")
    assert "as part of a rollout;" in found["lines"][0]["text"]
    assert rollout not in str(found)
    reader_of_all = api.holding("Reader", DB, f"{COMPUTE}/virtualMachines/web-0", POOL)
    assert "web-0, pool_0, pool_1 on host h1" in reader_of_all.get(f"/events/{event['id']}")["waits_for"]["text"]


def test_the_history_shows_entries_of_visible_vms_only(api: Any) -> None:
    api.restart_of("db")
    api.restart_of("web-0")
    api.restart_of("spot", "web-1")
    api.post("/fleet/vms", {"name": "cache"})
    api.post("/access/clients", {"id": "bot"})
    clock_entry = HistoryEntry(at=api.world.now, kind=EntryKind.SERVICE, text="service started")
    api.world.do(api.world.store.commit(Commit(entries=(clock_entry,))))
    about_db = [
        "scheduled events enabled by the service",
        "local user ann requested restart of db",
        "Reboot of db scheduled",
    ]
    reader = api.holding("Reader", DB)
    assert texts(reader.get("/history")) == about_db
    assert texts(reader.get("/history?vm=db")) == about_db[1:]
    assert texts(reader.get("/history?limit=1")) == about_db[-1:]
    assert "service started" in texts(api.get("/history"))


def test_an_entry_with_only_a_name_is_visible_to_readers_of_every_vm_of_that_name(api: Any) -> None:
    api.post("/fleet/vms", {"name": "cache", "resource_group": "lab"})
    reader = api.holding("Reader", f"{COMPUTE}/virtualMachines/cache")
    assert "VM cache added" in texts(reader.get("/history"))
    api.post("/fleet/vms", {"name": "cache", "resource_group": "other"})
    assert "VM cache added" not in texts(reader.get("/history"))
    api.delete("/fleet/vms/other%2Fcache")
    assert "VM cache removed" not in texts(reader.get("/history"))


def test_invisible_entries_do_not_count_among_the_newest_of_a_filtered_history(api: Any) -> None:
    """Only a caller who sees everything is shown the entries about faults."""
    entry = HistoryEntry(at=api.world.now, kind=EntryKind.UPKEEP, text="visible", scope_id="vm:sub/lab/db")
    faults = (replace_fields(entry, kind=EntryKind.FAULT, text="a fault"),) * 5
    api.world.do(api.world.store.commit(Commit(entries=(entry, *faults))))
    assert texts(api.holding("Reader", DB).get("/history?scope=db&limit=1")) == ["visible"]
    assert texts(api.get("/history?scope=db&limit=1")) == ["a fault"]


def test_a_follower_with_limited_rights_misses_no_visible_entry(api: Any) -> None:
    reader = api.holding("Reader", DB)
    seq = reader.get("/history")["seq"]
    for _ in range(3):
        for name in ("web-0", "db"):
            (event,) = api.restart_of(name)
            api.post(f"/events/{event['id']}/withdraw", {"reason": "enough"})
    followed: list[str] = []
    for _ in range(10):
        page = reader.get(f"/history?after={seq}&limit=1")
        followed += texts(page)
        seq = page["seq"]
    about_db = ["local user ann requested restart of db", "Reboot of db scheduled", "Reboot of db withdrawn: enough"]
    assert followed == about_db * 3
    assert seq == api.world.store.last_seq()


def test_a_visible_entry_is_found_behind_many_invisible_ones(api: Any) -> None:
    reader = api.holding("Reader", DB)
    seq = api.world.store.last_seq()
    clock_entry = HistoryEntry(at=api.world.now, kind=EntryKind.CLOCK, text="tick")
    api.world.do(api.world.store.commit(Commit(entries=(clock_entry,) * 45_000)))
    api.restart_of("db")
    page = reader.get(f"/history?after={seq}")
    assert (page["entries"], page["seq"] - seq) == ([], 20_000)
    page = reader.get(f"/history?after={seq}&wait_s=60")
    assert texts(page) == ["local user ann requested restart of db", "Reboot of db scheduled"]
    assert page["seq"] == api.world.store.last_seq()


def test_a_long_poll_is_not_answered_by_an_invisible_entry(api: Any) -> None:
    """Spec §12: how long a request is held is real time; no test waits that long."""
    reader = api.holding("Reader", DB)

    async def scenario() -> Any:
        seq = api.world.store.last_seq()
        held = asyncio.create_task(reader.calling("GET", f"/history?after={seq}&wait_s=60"))
        await asyncio.sleep(0)
        await api.calling("POST", "/requests", {"operation": "restart", "vms": ["web-0"]})
        for _ in range(20):
            await asyncio.sleep(0)
        assert not held.done()
        await api.calling("POST", "/requests", {"operation": "restart", "vms": ["db"]})
        return (await held).json

    assert "local user ann requested restart of db" in texts(api.world.do(scenario()))


def test_a_long_poll_is_answered_by_an_entry_of_a_vm_added_meanwhile(api: Any) -> None:
    reader = api.holding("Reader", DB, OTHER_GROUP)

    async def scenario() -> Any:
        seq = api.world.store.last_seq()
        held = asyncio.create_task(reader.calling("GET", f"/history?after={seq}&wait_s=60"))
        await asyncio.sleep(0)
        await api.calling("POST", "/fleet/vms", {"name": "new", "resource_group": "other"})
        return (await held).json

    assert "VM new added" in texts(api.world.do(scenario()))


def test_a_long_poll_shows_nothing_after_its_grant_was_revoked(api: Any) -> None:
    """A revocation takes effect at once, also for a long poll that began before."""
    grants = [Grant(id="g", role=Role.READER, principal="client:ci", resource=DB)]
    reader = api.admitting(lambda: Principal(id="client:ci", name="client ci", grants=tuple(grants)))

    async def scenario() -> Any:
        seq = api.world.store.last_seq()
        held = asyncio.create_task(reader.calling("GET", f"/history?after={seq}&wait_s=60"))
        await asyncio.sleep(0)
        grants.clear()
        await api.calling("POST", "/requests", {"operation": "restart", "vms": ["db"]})
        for _ in range(20):
            await asyncio.sleep(0)
        assert not held.done()
        api.dependencies.shutting_down.set()
        return (await held).json

    assert texts(api.world.do(scenario())) == []


def test_supervisors_are_listed_for_visible_vms_only(api: Any) -> None:
    supervisor = SimpleNamespace(pid=7, state="running", boot_id="b", program=("sleep",))
    api.dependencies = replace(
        api.dependencies, vm_supervisors=lambda: {api.world.vm(name).key: supervisor for name in ("db", "web-0")}
    )
    assert [one["vm"] for one in api.holding("Reader", DB).get("/vm-supervisors")["supervisors"]] == ["db"]


def test_a_caller_with_limited_rights_learns_no_addresses_of_the_service(api: Any) -> None:
    assert api.holding("Reader", DB).get("/service") == {"version": "0.1.0", "lab": True}
    assert api.get("/service")["pid"] == 1


ALL, OF_DB = {"all": True}, {"vm": "db"}


@pytest.mark.parametrize("target", [ALL, OF_DB], ids=["every VM", "one VM"])
def test_a_vm_is_explained_without_faults_to_callers_who_may_not_list_them(api: Any, target: dict[str, Any]) -> None:
    api.post("/faults", {"kind": "gone", **target})
    api.post("/faults", {"kind": "reset", **target})
    api.post("/faults/clear", {"kind": "reset"})
    api.post("/faults/storm", {"seed": 7, "duration_s": 60})
    reader = api.holding("Reader", DB)
    assert reader.refused("GET", "/faults")[0] == 403
    for path in ("/explain/db", "/vms/db", "/history", "/history?vm=db", "/history?scope=vm:sub/lab/db"):
        found = response_text(reader, path)
        assert not re.search(r"\bf\d\b|[Ff]ault f|storm|gone|reset", found), path
    explanation = str(api.get("/explain/db"))
    assert "Fault f1 (gone) is on for" in explanation
    assert "fault f2 (reset) of" in explanation


FAULTS_OF_EVENTS = ["no-notice", "short-notice", "withdrawn-after-approval", "several-at-once", "incarnation-reset"]


@pytest.mark.parametrize("kind", FAULTS_OF_EVENTS)
def test_an_event_that_a_fault_changed_is_shown_without_the_fault(api: Any, kind: str) -> None:
    api.post("/faults", {"kind": kind, **ALL})
    operator = api.holding("Operator", DB)
    previewed = operator.call("POST", "/requests/preview", {"operation": "restart", "vms": ["db"]}).content.decode()
    receipt = operator.post("/requests", {"operation": "restart", "vms": ["db"]})
    (event,) = receipt["events"]
    api.post(f"/events/{event['id']}/approve")
    own = api.get("/events?vm=db&all=true")["events"]
    targets = ["/explain/db", "/history", "/history?vm=db", "/events?all=true", f"/requests/{receipt['request']['id']}"]
    targets += [f"/{page}{one['id']}" for one in own for page in ("explain/", "events/", "history?event=")]
    texts_shown = [previewed, str(receipt), *(response_text(operator, target) for target in targets)]
    assert not [text for text in texts_shown if re.search(rf"fault f1|\({kind}\)|set by", text)]
    if kind != "incarnation-reset":
        assert any("a fault" in text for text in texts_shown)
        assert f"fault f1 ({kind})" in response_text(api, "/history")


def test_a_caller_without_a_role_learns_that_and_their_identity(api: Any) -> None:
    roleless = api.holding("Reader")
    status, code, message = roleless.refused("GET", "/fleet")
    assert (status, code) == (403, "Forbidden")
    assert message.startswith("client ci has no role anywhere: ask an administrator")
    assert roleless.get("/access/me") == {"id": "client:ci", "name": "client ci", "grants": []}
