"""Everything one can ask for: the form, what it says will happen, and that it happens as the API has it."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import forewarn.portal
from forewarn.api.routes import ROUTES
from forewarn.clock import SystemClock
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.core.access import owner_principal
from forewarn.core.decision import Policy
from forewarn.core.event import EventState
from forewarn.core.fleet import HostHealth, PowerState
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.portal.confirmation import IdempotencyKeys
from forewarn.portal.form_catalog import FORMS
from forewarn.store.interface import LastPoll
from forewarn.store.memory import MemoryStore
from tests.portal.conftest import TOKEN, Page, Visitor
from tests.support.operator_api import Api
from tests.support.world import NOON, World, a_host, a_vm

Fields = Mapping[str, str | list[str]]
DB = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/db"
FORM_TYPE = "application/x-www-form-urlencoded"
EVIL = "<script>alert(1)"
BY_NAME = {(line.method, line.path): line for line in ROUTES}


def form(name: str) -> str:
    return f"/portal/forms/{name}"


def confirm(portal: Visitor, name: str, fields: Fields) -> Page:
    """What the form says will happen; nothing has."""
    before = portal.api.stored()
    page = portal.post(form(name), fields)
    assert page.status == 200, page.text
    assert portal.api.stored() == before
    return page


def hidden(page: Page) -> dict[str, list[str]]:
    """What the confirmation would send."""
    sent: dict[str, list[str]] = {}
    for name, value in re.findall(
        r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page.html.partition("<main")[2]
    ):
        sent.setdefault(html.unescape(name), []).append(html.unescape(value))
    return sent


def do(portal: Visitor, name: str, fields: Fields) -> Page:
    """As a person does it: fill in, look, confirm; then the page that it led to."""
    page = confirm(portal, name, fields)
    answer = portal.post(form(name), hidden(page))
    assert answer.status == 303, answer.text
    return portal.get(answer.headers["location"])


def asked(portal: Visitor) -> list[RequestedOperation]:
    return [request.ask for request in portal.world.store.requests()]


def started_rollout(portal: Visitor) -> str:
    rollout = Rollout(impact=RolloutImpact.REBOOT, scope_id="set:sub/lab/web")
    request = portal.world.do(portal.world.control.requests.start_rollout(rollout, who="bob"))
    portal.world.settle()
    return request.id


def a_restart(portal: Visitor, vm: str = "db") -> str:
    return portal.world.ask(RequestedOperation.RESTART, vm)[0].id


@pytest.mark.parametrize(
    ("name", "vm", "kind"),
    [
        ("restart", "web-0", "Reboot"),
        ("redeploy", "web-0", "Redeploy"),
        ("evict", "spot", "Preempt"),
        ("delete", "pool_0", "Terminate"),
        ("scale-in", "pool_0", "Terminate"),
        ("power-off", "db", None),
        ("deallocate", "db", None),
        ("reapply", "db", None),
        ("reimage", "db", None),
    ],
)
def test_what_is_asked_of_a_vm_is_asked(portal: Visitor, name: str, vm: str, kind: str | None) -> None:
    page = do(portal, name, {"vm": vm})
    assert asked(portal) == [RequestedOperation(name)]
    (event,) = portal.world.store.events()
    assert (event.vms, event.rules.kind if event.listed else None) == ((vm,), kind)
    assert f"{name.capitalize()} of {vm}" in page.text
    assert FORMS[name].done_message in page.text


def test_a_vm_that_is_off_can_be_started(portal: Visitor) -> None:
    portal.world.ask(RequestedOperation.POWER_OFF, "db")
    portal.world.advance(60)
    assert "db" in portal.get(form("start")).text
    do(portal, "start", {"vm": "db"})
    portal.world.advance(60)
    assert portal.world.vm("db").power is PowerState.RUNNING


def test_several_vms_are_asked_for_together(portal: Visitor) -> None:
    page = confirm(portal, "restart", {"vm": "sub/lab/web-0", "vm_more": "web-1, db", "notice": "20m"})
    assert "3 events over 3 VMs, published at once." in page.text
    do(portal, "restart", {"vm": "sub/lab/web-0", "vm_more": "web-1, db", "notice": "20m"})
    events = portal.world.store.events()
    assert sorted(event.vms for event in events) == [("db",), ("web-0",), ("web-1",)]
    assert {event.not_before - event.published_at for event in events} == {1200}


def test_less_than_the_minimum_of_notice_can_be_rehearsed(portal: Visitor) -> None:
    do(portal, "restart", {"vm": "db", "notice": "30", "short_notice": "yes"})
    (event,) = portal.world.store.events()
    assert event.not_before - event.published_at == 30


def test_an_event_is_approved(portal: Visitor) -> None:
    event_id = a_restart(portal)
    shown = portal.get(f"{form('approve')}?event={event_id}")
    assert "Reboot of db starts now, 15 min before its notice ends." in shown.text
    answer = portal.post(form("approve"), hidden(shown))
    assert (answer.status, answer.headers["location"]) == (303, f"/portal/events/{event_id}")
    assert portal.world.store.events()[0].approved_by == "local user ann"


def test_an_approval_says_what_the_event_waits_for_then(portal: Visitor) -> None:
    """Spec §6.2: everything on a host starts together."""
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=("h1",))
    portal.world.do(portal.world.control.requests.start_rollout(rollout, who="bob"))
    portal.world.settle()
    event = portal.world.store.events()[0]
    page = portal.get(f"{form('approve')}?event={event.id}")
    assert "waits for the other VMs on host h1" in page.text


def test_an_event_is_withdrawn_with_a_reason(portal: Visitor) -> None:
    event_id = a_restart(portal)
    page = confirm(portal, "withdraw", {"event": event_id[:36], "reason": "not today"})
    assert "Reboot of db does not happen." in page.text
    do(portal, "withdraw", {"event": event_id, "reason": "not today"})
    assert portal.world.store.events()[0].reason == "not today"


def test_pending_maintenance_is_performed_now(portal: Visitor) -> None:
    started_rollout(portal)
    do(portal, "perform-maintenance", {"vm": "web-0"})
    assert portal.world.store.events()[0].status is EventState.STARTED


def test_a_rollout_is_previewed_wave_by_wave_and_started(portal: Visitor) -> None:
    fields = {"impact": "reboot", "all_hosts": "yes", "max_failures": "2"}
    page = confirm(portal, "rollout", fields)
    assert "in 3 waves, one update domain of a scope at a time" in page.text
    assert re.findall(r"(\d) Reboot web-(\d)", page.text) == [("1", "0"), ("2", "1"), ("3", "2")]
    shown = do(portal, "rollout", fields)
    assert "The rollout has begun. Reboot over h1, h2, h3" in shown.text
    (request,) = portal.world.store.requests()
    assert request.rollout is not None
    assert (request.rollout.hosts, request.rollout.max_failures) == (("h1", "h2", "h3"), 2)


def test_a_rollout_is_paused_resumed_and_aborted(portal: Visitor) -> None:
    rollout = started_rollout(portal)
    for name, progress in (
        ("pause", RolloutState.PAUSED),
        ("resume", RolloutState.RUNNING),
        ("abort", RolloutState.ABORTED),
    ):
        foreseen = confirm(portal, f"rollout-{name}", {"rollout": rollout}).text
        assert "(reboot over availability set web): 0 of 3 VMs done, 0 started, 1 scheduled, 2 waiting." in foreseen
        assert FORMS[f"rollout-{name}"].description in foreseen
        page = do(portal, f"rollout-{name}", {"rollout": rollout})
        assert FORMS[f"rollout-{name}"].done_message in page.text
        assert portal.world.control.requests.rollout(rollout).rollout.progress is progress  # type: ignore[union-attr]


def test_a_host_is_predicted_to_fail_fails_and_is_repaired(portal: Visitor) -> None:
    page = confirm(portal, "degrade", {"host": "h1", "in": "7d"})
    assert "4 events over 4 VMs, published at once." in page.text
    assert "at once 12 Jan 12:00:00 in 7 d 12 Jan 12:02:00" in page.text
    page = do(portal, "degrade", {"host": "h1", "in": "7d"})
    assert "12 Jan 12:00:00" in page.text
    assert "the next not before 12 Jan 12:00:00" in portal.get("/portal/").text
    page = confirm(portal, "fail", {"host": "h1"})
    assert "4 of them start at once, without notice." in page.text
    do(portal, "fail", {"host": "h1"})
    portal.world.advance(600)
    do(portal, "repair", {"host": "h1"})
    assert {host.health for host in portal.world.store.hosts()} == {HostHealth.HEALTHY}


def test_a_fault_is_set_and_cleared(portal: Visitor) -> None:
    page = confirm(portal, "fault", {"kind": "throttled", "vm": "db", "count": "3", "retry_after_s": "5s"})
    assert "Throttled for VM db. Clients see: 429 as text" in page.text
    assert "It lasts for the next 3 requests." in page.text
    do(portal, "fault", {"kind": "throttled", "vm": "db", "count": "3", "retry_after_s": "5s"})
    (fault,) = portal.world.control.faults.active.faults
    assert (fault.count, fault.parameters) == (3, {"retry_after_s": 5})
    do(portal, "fault-clear", {"fault": fault.id})
    assert portal.world.control.faults.active.faults == ()


def test_a_storm_is_played_and_all_is_cleared(portal: Visitor) -> None:
    do(portal, "storm", {"seed": "3", "vm": ["db", "web-0"], "for": "5m"})
    (storm,) = portal.world.control.faults.active.storms
    assert (storm.seed, storm.for_s) == (3, 300)
    do(portal, "fault-clear", {"all": "yes"})
    assert portal.world.control.faults.active.storms == ()


def test_a_replay_is_shown_in_the_lab_and_stopped(portal: Visitor) -> None:
    taken = {"vm": "x", "api_version": "2020-07-01", "started_at": 1, "answers": [{"at_s": 0, "status": 500}]}
    replay = portal.api.post("/replays", {"vm": "db", "recording": taken})["id"]
    page = portal.get("/portal/lab")
    assert "Replay for db" in page.text
    assert f"/portal/forms/replay-stop?replay={replay}" in page.html
    do(portal, "replay-stop", {"replay": replay})
    assert portal.api.get(f"/replays/{replay}")["ended"] == "stopped"
    assert "Replay for db" not in portal.get("/portal/lab").text


def test_the_clock_is_advanced_by_a_span_and_to_a_time(portal: Visitor) -> None:
    a_restart(portal)
    page = confirm(portal, "clock-advance", {"by": "20m"})
    assert "The notice of 1 event ends on the way: Reboot of db." in page.text
    do(portal, "clock-advance", {"by": "20m"})
    assert portal.world.now == NOON + 1200
    do(portal, "clock-advance", {"until": "2026-01-05T13:00"})
    assert portal.world.now == NOON + 3600


def test_the_clock_is_set_to_a_speed(portal: Visitor) -> None:
    assert "runs 60 times as fast" in confirm(portal, "clock-speed", {"speed": "60"}).text
    do(portal, "clock-speed", {"speed": "60"})
    assert portal.world.clock.setting.speed == 60
    assert '<span class="tag">×60</span>' in portal.get("/portal/").html
    do(portal, "clock-speed", {"speed": "0"})
    assert '<span class="tag">paused</span>' in portal.get("/portal/").html


REFUSED: list[tuple[str, Fields, str, str, Any]] = [
    ("restart", {"vm": "nobody"}, "POST", "/requests", {"ask": "restart", "vms": ["nobody"]}),
    ("restart", {"vm": "db", "notice": "10s"}, "POST", "/requests", {"ask": "restart", "vms": ["db"], "notice_s": 10}),
    ("restart", {"vm": ["db", "DB"]}, "POST", "/requests", {"ask": "restart", "vms": ["db", "DB"]}),
    ("evict", {"vm": "db"}, "POST", "/requests", {"ask": "evict", "vms": ["db"]}),
    ("start", {"vm": "db"}, "POST", "/requests", {"ask": "start", "vms": ["db"]}),
    ("perform-maintenance", {"vm": "db"}, "POST", "/vms/db/perform-maintenance", None),
    ("approve", {"event": "nothing"}, "POST", "/events/nothing/approve", None),
    ("withdraw", {"event": "nothing"}, "POST", "/events/nothing/withdraw", {}),
    ("rollout", {"impact": "update"}, "POST", "/rollouts", {"impact": "update"}),
    ("rollout", {"impact": "update", "host": "h9"}, "POST", "/rollouts", {"impact": "update", "hosts": ["h9"]}),
    ("rollout-pause", {"rollout": "nothing"}, "POST", "/rollouts/nothing/pause", None),
    ("degrade", {"host": "h1", "in": "1m"}, "POST", "/hosts/h1/degrade", {"in_s": 60}),
    ("fail", {"host": "h9"}, "POST", "/hosts/h9/fail", None),
    ("repair", {"host": "h1"}, "POST", "/hosts/h1/repair", None),
    ("fault", {"kind": "gon", "vm": "db"}, "POST", "/faults", {"kind": "gon", "vm": "db"}),
    ("fault", {"kind": "gone"}, "POST", "/faults", {"kind": "gone"}),
    (
        "fault",
        {"kind": "gone", "vm": "db", "for": "2h"},
        "POST",
        "/faults",
        {"kind": "gone", "vm": "db", "for_s": 7200},
    ),
    ("fault-clear", {}, "POST", "/faults/clear", {}),
    ("fault-clear", {"fault": "f9"}, "POST", "/faults/clear", {"ids": ["f9"]}),
    ("storm", {"seed": "1", "for": "2d"}, "POST", "/faults/storm", {"seed": 1, "for_s": 172800}),
    ("clock-advance", {"by": "400d"}, "POST", "/clock/advance", {"by_s": 400 * 86400}),
    ("clock-speed", {"speed": "-1"}, "POST", "/clock/speed", {"speed": -1}),
]


@pytest.mark.parametrize(("name", "fields", "method", "target", "body"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_refusal_is_the_api_s_own_and_changes_nothing(
    portal: Visitor, name: str, fields: Fields, method: str, target: str, body: Any
) -> None:
    status, _, sentence = portal.api.refused(method, target, body)
    before = portal.api.stored()
    page = portal.post(form(name), {**fields, "confirmed": "yes"})
    assert portal.api.stored() == before
    assert (page.status, sentence in page.text) == (status, True), page.text
    typed = [value for values in fields.values() for value in ([values] if isinstance(values, str) else values)]
    kept = [value for value in typed if re.search(rf'value="(sub/lab/)?{value}"', page.html, re.IGNORECASE)]
    assert kept == typed


def test_most_refusals_come_before_anybody_confirms(portal: Visitor) -> None:
    late = ("rollout-pause", "repair", "clock", "storm", "fault-clear", "fault")  # found out as they are done
    for name, fields, *_ in REFUSED:
        if not name.startswith(late):
            assert portal.post(form(name), fields).status >= 400, name


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("restart", {}, "restart needs at least one VM: name it"),
        ("restart", {"vm": "db", "notice": "soon"}, "'soon' is not a duration: write it like 15m, 7d, 1h30m"),
        ("restart", {"vm": "db", "short_notice": "yes"}, "a short notice needs a length: say how long with --notice"),
        ("approve", {}, "Event is missing: name one"),
        ("rollout", {"max_failures": "many", "host": "h1"}, "'many' is no number: write one such as 1"),
        ("rollout", {"all_hosts": "yes", "scope": "web"}, "goes over hosts or over one scope"),
        ("clock-advance", {}, "the clock goes ahead by a span or to a time: give the one or the other"),
        ("clock-advance", {"until": "noon"}, "'noon' is no time: write it like 2026-01-05T12:30"),
        ("storm", {"seed": "nan"}, "'nan' is no number"),
        ("storm", {"seed": "1.5"}, "the body cannot be taken: seed"),
    ],
)
def test_what_cannot_be_read_is_said_beside_the_form(portal: Visitor, name: str, fields: Fields, sentence: str) -> None:
    before = portal.api.stored()
    page = portal.post(form(name), fields)
    assert portal.api.stored() == before
    assert page.status == 400
    assert sentence in page.text
    assert FORMS[name].title in page.text


def test_a_form_that_does_not_exist_is_told(portal: Visitor) -> None:
    assert portal.visit("GET", form("explode")).status == 404
    assert portal.post(form("explode")).status == 404


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_shown_and_goes_to_a_route_of_the_api(portal: Visitor, name: str) -> None:
    page = portal.get(form(name))
    assert FORMS[name].title in page.text
    assert f'name="token" value="{TOKEN}"' in page.html
    assert FORMS[name].api_route(BY_NAME).method in ("POST", "DELETE")
    preview = FORMS[name].preview_route(BY_NAME)
    assert preview is None or preview.right is FORMS[name].api_route(BY_NAME).right


@pytest.mark.parametrize("name", FORMS)
def test_who_may_only_read_is_refused_by_every_form(portal: Visitor, name: str) -> None:
    reader = portal.holding("Reader", "/")
    event_id = a_restart(portal)
    fields = {"vm": "db", "event": event_id, "rollout": started_rollout(portal), "host": "h1", "in": "7d", "by": "1m"}
    typed = {**fields, "speed": "1", "kind": "gone", "seed": "1", "fault": "f1", "replay": "r1"}
    mine = {name_: value for name_, value in typed.items() if name_ in {field.name for field in FORMS[name].fields}}
    before = portal.api.stored()
    shown = reader.visit("GET", form(name))
    sent = reader.post(form(name), {**mine, "confirmed": "yes"})
    assert portal.api.stored() == before
    assert (shown.status, sent.status) == (403, 403), sent.text
    assert "Not allowed client ci does not have the right to" in shown.text
    assert "client ci does not have the right to" in sent.text


def test_whoever_may_do_something_nowhere_is_told_so_before_they_fill_it_in(portal: Visitor) -> None:
    shown = portal.holding("Reader", DB).visit("GET", f"{form('restart')}?vm=db")
    assert "does not have the right to operate over anything: ask an administrator for the role Operator" in shown.text


def test_a_reader_sees_no_buttons(portal: Visitor) -> None:
    rollout = started_rollout(portal)
    reader = portal.holding("Reader", "/")
    for target in ("/portal/rollouts", f"/portal/rollouts/{rollout}", "/portal/lab"):
        assert "/portal/forms/" not in reader.get(target).html.partition("<main")[2]
        assert "/portal/forms/" in portal.get(target).html.partition("<main")[2]


def test_an_operator_asks_for_their_own_vms_only(portal: Visitor) -> None:
    operator = portal.holding("Operator", DB)
    page = operator.get(form("restart"))
    assert "db" in page.text
    assert "web-0" not in page.text
    assert operator.post(form("restart"), {"vm": "db", "confirmed": "yes"}).status == 303
    refused = operator.post(form("restart"), {"vm": "web-0", "confirmed": "yes"})
    assert (refused.status, "VM 'web-0' does not exist" in refused.text) == (404, True)
    assert operator.visit("GET", form("rollout")).status == 403


def test_nothing_is_done_without_the_token_of_the_visit(portal: Visitor) -> None:
    before = portal.api.stored()
    for token in ("", "another"):
        assert portal.post(form("restart"), {"vm": "db", "confirmed": "yes"}, token=token).status == 403
    headers = {"content-type": FORM_TYPE, "sec-fetch-site": "cross-site"}
    sent = f"token={TOKEN}&vm=db&confirmed=yes".encode()
    assert portal.visit("POST", form("restart"), sent, headers).status == 403
    assert portal.api.stored() == before


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"vm": "db"}', "application/json"),
        (b"vm=%ff\xff", FORM_TYPE),
        (b"vm=db&" * 400_000, FORM_TYPE),
        (b"&".join([b"a=b"] * 30_000), FORM_TYPE),
    ],
)
def test_what_is_no_form_is_refused(portal: Visitor, body: bytes, kind: str) -> None:
    assert portal.visit("POST", form("restart"), body, {"content-type": kind}).status == 400


def test_a_button_pressed_twice_asks_once(portal: Visitor) -> None:
    sent = hidden(confirm(portal, "reapply", {"vm": "db"}))
    first, second = (portal.post(form("reapply"), sent) for _ in range(2))
    assert first.status == second.status == 303
    assert first.headers["location"] == second.headers["location"]
    assert len(portal.world.store.requests()) == 1


def test_a_slip_that_two_use_at_once_is_good_once() -> None:
    async def both() -> tuple[list[str], int]:
        slips, done = IdempotencyKeys(), 0

        async def deed() -> str:
            nonlocal done
            done += 1
            await asyncio.sleep(0)
            return "there"

        slip = slips.issue("ann")
        return await asyncio.gather(*(slips.run_once("ann", slip, deed) for _ in range(5))), done

    assert asyncio.run(both()) == (["there"] * 5, 1)


def test_slips_are_one_s_own_and_not_kept_without_end() -> None:
    slips = IdempotencyKeys()
    first = slips.issue("ann")
    assert slips.is_known("ann", first)
    assert not slips.is_known("bob", first)
    for _ in range(1000):
        slips.issue("ann")
    assert not slips.is_known("ann", first)


def test_what_was_refused_can_be_tried_again_with_the_same_slip() -> None:
    async def twice() -> str:
        slips = IdempotencyKeys()
        slip = slips.issue("ann")

        async def failing() -> str:
            raise ValueError

        with pytest.raises(ValueError):
            await slips.run_once("ann", slip, failing)
        assert not slips.is_known("ann", slip)
        return "told"

    assert asyncio.run(twice()) == "told"


def test_nobody_crowds_out_the_slips_of_others() -> None:
    slips = IdempotencyKeys()
    anns = slips.issue("ann")
    bobs = [slips.issue("bob") for _ in range(2000)]
    assert slips.is_known("ann", anns)
    assert slips.is_known("bob", bobs[-1])
    assert not slips.is_known("bob", bobs[0])
    assert not slips.is_known("ann", bobs[-1])


def test_a_confirmation_that_is_not_known_any_more_is_asked_for_again(portal: Visitor) -> None:
    page = portal.post(form("restart"), {"vm": "db", "confirmed": "yes", "slip": "of-yesterday"})
    assert page.status == 200
    assert "This confirmation is not known any more, and nothing was done" in page.text
    assert asked(portal) == []
    assert portal.post(form("restart"), hidden(page)).status == 303


def test_who_looked_can_change_what_they_typed(portal: Visitor) -> None:
    sent = hidden(confirm(portal, "restart", {"vm": ["db", "web-0"], "notice": "33m"}))
    page = portal.post(form("restart"), {**sent, "again": "yes"})
    assert 'value="33m"' in page.html
    assert re.findall(r'value="([^"]*)" checked', page.html) == ["sub/lab/db", "sub/lab/web-0"]
    assert asked(portal) == []


def test_a_link_fills_the_form_in(portal: Visitor) -> None:
    page = portal.get(f"{form('restart')}?vm=web-1&vm=lab/db&vm=ghost&notice=20m")
    assert re.findall(r'value="([^"]*)" checked', page.html) == ["sub/lab/web-1", "sub/lab/db"]
    assert 'value="ghost"' in page.html
    assert 'value="20m"' in page.html


def test_names_in_plenty_that_nobody_has_are_not_all_looked_for(portal: Visitor) -> None:
    ghosts = [f"ghost-{number}" for number in range(20)]
    page = portal.post(form("restart"), {"vm_more": ", ".join([*ghosts, "db"]), "again": "yes"})
    assert re.findall(r'value="([^"]*)" checked', page.html) == []
    assert "ghost-19, db" in page.html
    page = portal.post(form("restart"), {"vm_more": ", ".join([*ghosts[:19], "db"]), "again": "yes"})
    assert re.findall(r'value="([^"]*)" checked', page.html) == ["sub/lab/db"]


def test_who_may_do_it_nowhere_cannot_have_the_form_shown_by_sending_it(portal: Visitor) -> None:
    reader = portal.holding("Reader", "/")
    for name in FORMS:
        page = reader.post(form(name), {"vm": "db", "again": "yes"})
        assert page.status == 403, name
        assert "<form" not in page.html.partition("<main")[2]


def test_who_is_not_prepared_is_named_before_it_happens(portal: Visitor) -> None:
    assert (
        "Nobody polls VM db (nobody ever did): it will be hit unprepared."
        in confirm(portal, "restart", {"vm": "db"}).text
    )


def test_whoever_polls_is_not_called_unprepared(portal: Visitor) -> None:
    vm = portal.world.vm("db")

    def poll(at: float) -> None:
        polled = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=at, version="2020-07-01")
        portal.world.do(portal.world.store.record_observations([polled], []))

    poll(portal.world.now - 10)
    assert "unprepared" not in confirm(portal, "restart", {"vm": "db"}).text
    portal.world.advance(3600)
    page = confirm(portal, "restart", {"vm": "db"})
    assert "unprepared" not in page.text  # who polled when time was skipped counts as polling throughout
    portal.world.do(portal.world.control.lab_clock.set_speed(0))
    portal.world.clock.apply_setting(portal.world.clock.setting_after_jump(portal.world.now + 7200))
    page = confirm(portal, "restart", {"vm": "db"})
    assert "Nobody polls VM db (the last poll was 2 h ago): it will be hit unprepared." in page.text


def test_what_happens_at_once_is_said_with_its_reason(portal_of: Callable[..., Visitor]) -> None:
    """Spec §8.2."""
    portal = portal_of(Policy())
    page = confirm(portal, "restart", {"vm": "db"})
    assert "Reboot of db at once, without an event: no VM of the scope has asked for scheduled events" in page.text
    assert "unprepared" not in page.text


def test_whose_place_is_taken_is_said(portal: Visitor) -> None:
    event_id = a_restart(portal)
    page = confirm(portal, "redeploy", {"vm": "db"})
    assert f"It replaces 1 pending event, which would be withdrawn: {event_id}." in page.text


def test_who_else_is_on_the_host_is_said(portal: Visitor) -> None:
    page = confirm(portal, "rollout", {"impact": "update", "scope": "web"})
    assert "Also on host h1, and not hit by this: db, pool_0, pool_1." in page.text


def test_a_name_may_hold_blanks(portal_of: Callable[..., Visitor]) -> None:
    portal = portal_of(vms=[a_vm("my own vm"), a_vm("db")], hosts=[a_host("h1")])
    do(portal, "restart", {"vm": "sub/lab/my own vm", "vm_more": "db"})
    assert sorted(event.vms for event in portal.world.store.events()) == [("db",), ("my own vm",)]
    assert 'value="sub/lab/my own vm" checked' in portal.get(f"{form('restart')}?vm=my+own+vm").html


def test_names_are_text_and_nothing_else(portal_of: Callable[..., Visitor]) -> None:
    portal = portal_of(vms=[a_vm(EVIL), a_vm("db")], hosts=[a_host("h1"), a_host("h2")])
    key = f"sub/lab/{EVIL}"
    seen = [portal.get(form("restart")), portal.get(f"{form('restart')}?vm={EVIL}&notice={EVIL}")]
    seen.append(confirm(portal, "redeploy", {"vm": key}))
    seen.append(do(portal, "redeploy", {"vm": key}))
    seen.append(portal.post(form("restart"), {"vm": f'"><img src=x>{EVIL}', "notice": "'\"><b>"}))
    seen.append(do(portal, "fault", {"kind": "gone", "vm": key}))
    for page in seen:
        assert "<script>alert" not in page.html
        assert "<img src=x>" not in page.html
        assert "<b>" not in page.html


def test_more_vms_than_are_offered_can_be_changed_once_they_were_looked_at(portal_of: Callable[..., Visitor]) -> None:
    portal = portal_of(vms=[a_vm(f"v{n}") for n in range(400)], hosts=[a_host("h1")])
    named = [f"v{n}" for n in range(350)]
    page = portal.post(form("restart"), {"vm": named, "again": "yes"})
    assert page.status == 200
    assert len(re.findall(r'value="([^"]*)" checked', page.html)) == 350
    page = portal.post(form("restart"), {"vm": named, "notice": "1m"})
    assert page.status == 400
    assert "less than" in page.text.lower()


def test_a_large_fleet_is_typed_rather_than_ticked(portal_of: Callable[..., Visitor]) -> None:
    portal = portal_of(vms=[a_vm(f"v{n}") for n in range(400)], hosts=[a_host("h1")])
    page = portal.get(f"{form('restart')}?vm=v399")
    assert page.html.count('type="checkbox" name="vm"') == 300
    assert re.findall(r'value="([^"]*)" checked', page.html) == ["sub/lab/v399"]
    assert "Others, by name" in page.text


def test_every_link_to_a_form_leads_to_one() -> None:
    folder = Path(forewarn.portal.__file__).parent
    texts = [path.read_text() for path in (*folder.glob("templates/*.html"), *folder.glob("*.py"))]
    linked = {name for text in texts for name in re.findall(r"/portal/forms/([a-z-]+)", text)}
    assert linked
    assert linked <= set(FORMS)


def test_every_form_that_a_page_links_to_opens(portal: Visitor) -> None:
    rollout = started_rollout(portal)
    event = portal.world.store.events()[0].id
    portal.world.do(portal.world.control.requests.degrade_host("h3", who="bob", notice_s=7 * 86400))
    portal.world.settle()
    pages = (
        "vms/web-0",
        "vms/spot",
        "vms/pool_0",
        "hosts/h1",
        "hosts/h3",
        f"events/{event}",
        f"rollouts/{rollout}",
        "lab",
    )
    links: set[str] = set()
    for page in (*pages, "", "timeline", "rollouts", "scopes/set:sub/lab/web"):
        found = re.findall(r'href="(/portal/forms/[^"]*)"', portal.get(f"/portal/{page}").html)
        links.update(html.unescape(link) for link in found)
    assert len(links) > 20
    for link in sorted(links):
        assert portal.get(link).status == 200, link


@pytest.fixture
def on_real_time() -> Any:
    world = World(vms=[a_vm("db")], hosts=[a_host("h1")])

    async def build() -> ControlPlane:
        outside = ControlInputs(new_id=lambda: next(world.ids), real_time=lambda: 0.0)
        return ControlPlane(store=MemoryStore(), clock=SystemClock(), hypervisor=world.hypervisor, inputs=outside)

    world.do(world.control.close())
    world.control = world.do(build())
    world.store = world.control.store
    yield Visitor(Api(world), owner_principal("local user ann"))
    world.close()


def test_real_time_has_no_forms_that_move_it(on_real_time: Visitor) -> None:
    page = on_real_time.get("/portal/lab")
    assert "This service runs on real time, which cannot be moved." in page.text
    assert "/portal/forms/clock" not in page.html
    refused = on_real_time.post(form("clock-advance"), {"by": "1m"})
    assert "this service runs on real time, which cannot be advanced: use a lab (`forewarn up`)" in refused.text
