"""Every operation that has a form: its preview, and its effect once it is confirmed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import EventState
from forewarn.core.fleet import HostHealth, PowerState
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.web.portal.form_catalog import FORMS
from tests.portal.conftest import PortalUser
from tests.portal.form_helpers import (
    confirm,
    form_path,
    hidden_fields,
    request_restart,
    requested_operations,
    start_rollout,
    submit_form,
)
from tests.support.world import NOON


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
def test_the_form_of_each_vm_operation_makes_the_request(
    portal: PortalUser, name: str, vm: str, kind: str | None
) -> None:
    page = submit_form(portal, name, {"vm": vm})
    assert requested_operations(portal) == [RequestedOperation(name)]
    (event,) = portal.world.store.events()
    assert (event.vms, event.rules.kind if event.listed else None) == ((vm,), kind)
    assert f"{name.capitalize()} of {vm}" in page.text
    assert FORMS[name].done_message in page.text


def test_a_stopped_vm_can_be_started(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.POWER_OFF, "db")
    portal.world.advance(60)
    assert "db" in portal.get(form_path("start")).text
    submit_form(portal, "start", {"vm": "db"})
    portal.world.advance(60)
    assert portal.world.vm("db").power is PowerState.RUNNING


def test_one_form_requests_an_operation_for_several_vms(portal: PortalUser) -> None:
    page = confirm(portal, "restart", {"vm": "sub/lab/web-0", "vm_more": "web-1, db", "notice": "20m"})
    assert "3 events over 3 VMs, published at once." in page.text
    submit_form(portal, "restart", {"vm": "sub/lab/web-0", "vm_more": "web-1, db", "notice": "20m"})
    events = portal.world.store.events()
    assert sorted(event.vms for event in events) == [("db",), ("web-0",), ("web-1",)]
    assert {event.not_before - event.published_at for event in events} == {1200}


def test_a_form_can_allow_a_shorter_notice(portal: PortalUser) -> None:
    submit_form(portal, "restart", {"vm": "db", "notice": "30", "short_notice": "yes"})
    (event,) = portal.world.store.events()
    assert event.not_before - event.published_at == 30


def test_a_form_approves_an_event(portal: PortalUser) -> None:
    event_id = request_restart(portal)
    shown = portal.get(f"{form_path('approve')}?event={event_id}")
    assert "Reboot of db starts now, 15 min before its notice ends." in shown.text
    answer = portal.post(form_path("approve"), hidden_fields(shown))
    assert (answer.status, answer.headers["location"]) == (303, f"/portal/events/{event_id}")
    assert portal.world.store.events()[0].approved_by == "local user ann"


def test_the_preview_of_an_approval_says_what_the_event_waits_for(portal: PortalUser) -> None:
    """Spec §6.2: everything on a host starts together."""
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=("h1",))
    portal.world.do(portal.world.control.rollout_requests.start(rollout, who="bob"))
    portal.world.settle()
    event = portal.world.store.events()[0]
    page = portal.get(f"{form_path('approve')}?event={event.id}")
    assert "waits for the other VMs on host h1" in page.text


def test_the_preview_of_an_approval_says_that_a_recommendation_never_starts(
    portal_of: Callable[..., PortalUser],
) -> None:
    """Spec §14.4."""
    portal = portal_of(Policy(enablement=EnablementMode.ALWAYS, recommends_rebalancing=True))
    [event] = portal.world.ask(RequestedOperation.RECOMMEND_REBALANCE, "spot")
    page = portal.get(f"{form_path('approve')}?event={event.id}")
    assert "SpotRebalanceRecommendation of spot never starts: an approval changes nothing." in page.text


def test_a_form_withdraws_an_event_with_a_reason(portal: PortalUser) -> None:
    event_id = request_restart(portal)
    page = confirm(portal, "withdraw", {"event": event_id[:36], "reason": "not today"})
    assert "Reboot of db is withdrawn." in page.text
    submit_form(portal, "withdraw", {"event": event_id, "reason": "not today"})
    assert portal.world.store.events()[0].reason == "not today"


def test_a_form_starts_pending_maintenance(portal: PortalUser) -> None:
    start_rollout(portal)
    submit_form(portal, "perform-maintenance", {"vm": "web-0"})
    assert portal.world.store.events()[0].status is EventState.STARTED


def test_a_form_previews_a_rollout_by_wave_and_starts_it(portal: PortalUser) -> None:
    fields = {"impact": "reboot", "all_hosts": "yes", "max_failures": "2"}
    page = confirm(portal, "rollout", fields)
    assert "Reboot of 7 VMs in 1 wave" in page.text
    assert "Reboot of 7 VMs in 3 batches" in page.text
    waves = re.findall(r"Batch (\d) Reboot of (\d) VMs? update domains? ([\d, ]+) published", page.text)
    assert [number for number, _, _ in waves] == ["1", "2", "3"]
    assert re.findall(r"Batch (\d)(?:(?!Batch).)* Reboot web-(\d)", page.text) == [("1", "0"), ("2", "1"), ("3", "2")]
    shown = submit_form(portal, "rollout", fields)
    assert "Rollout started. Reboot over h1, h2, h3" in shown.text
    (request,) = portal.world.store.requests()
    assert request.rollout is not None
    assert (request.rollout.hosts, request.rollout.max_failures) == (("h1", "h2", "h3"), 2)


def test_a_form_starts_a_rollout_with_maintenance_windows(portal: PortalUser) -> None:
    fields = {
        "impact": "update",
        "all_hosts": "on",
        "windows": "sat,sun 02:00 4h Europe/Berlin; wed 22:00 1h UTC",
        "blackouts": "2026-12-24",
        "deadline": "2026-12-31T22:00",
    }
    assert "07 Jan 22:00:00" in confirm(portal, "rollout", fields).text
    shown = submit_form(portal, "rollout", fields)
    text = "sat,sun 02:00 4h Europe/Berlin, wed 22:00 1h UTC; not on 2026-12-24; at the latest Thu 2026-12-31 23:00 CET"
    assert text in shown.text


def test_every_page_shows_the_hold_on_all_rollouts(portal: PortalUser) -> None:
    portal.world.do(portal.world.control.rollouts.holds.set_hold("an <incident>", who="ann"))
    for path in ("/portal/", "/portal/fleet", "/portal/rollouts"):
        assert "All rollouts have been on hold since" in portal.get(path).text
        assert "an <incident>" in portal.get(path).text
    portal.world.do(portal.world.control.rollouts.holds.lift_hold(who="ann"))
    assert "on hold" not in portal.get("/portal/fleet").text


def test_forms_hold_all_rollouts_and_lift_the_hold(portal: PortalUser) -> None:
    start_rollout(portal)
    assert (
        "Their scheduled events: 1. Each starts only" in confirm(portal, "rollout-hold", {"reason": "an incident"}).text
    )
    assert "All rollouts have been on hold since" in submit_form(portal, "rollout-hold", {"reason": "an incident"}).text
    page = portal.get("/portal/rollouts")
    assert 'href="/portal/forms/rollout-lift-hold"' in page.html
    assert 'href="/portal/forms/rollout-hold"' not in page.html
    assert "an incident" in confirm(portal, "rollout-lift-hold", {}).text
    assert "on hold since" not in submit_form(portal, "rollout-lift-hold", {}).text
    assert portal.world.control.rollouts.hold is None


def test_forms_pause_resume_and_abort_a_rollout(portal: PortalUser) -> None:
    rollout = start_rollout(portal)
    for name, progress in (
        ("pause", RolloutState.PAUSED),
        ("resume", RolloutState.RUNNING),
        ("abort", RolloutState.ABORTED),
    ):
        foreseen = confirm(portal, f"rollout-{name}", {"rollout": rollout}).text
        assert "(reboot over web): 0 of 3 VMs done, 0 started, 1 scheduled, 2 waiting." in foreseen
        assert FORMS[f"rollout-{name}"].description in foreseen
        page = submit_form(portal, f"rollout-{name}", {"rollout": rollout})
        assert FORMS[f"rollout-{name}"].done_message in page.text
        assert portal.world.control.rollout_requests.find(rollout).rollout.progress is progress  # type: ignore[union-attr]


def test_forms_degrade_fail_and_repair_a_host(portal: PortalUser) -> None:
    page = confirm(portal, "degrade", {"host": "h1", "in": "7d"})
    assert "4 events over 4 VMs, published at once." in page.text
    assert "at once 12 Jan 12:00:00 in 7 d 12 Jan 12:02:00" in page.text
    page = submit_form(portal, "degrade", {"host": "h1", "in": "7d"})
    assert "12 Jan 12:00:00" in page.text
    assert "the next not before 12 Jan 12:00:00" in portal.get("/portal/fleet").text
    page = confirm(portal, "fail", {"host": "h1"})
    assert "4 events start at once, without notice: " in page.text
    submit_form(portal, "fail", {"host": "h1"})
    portal.world.advance(600)
    submit_form(portal, "repair", {"host": "h1"})
    assert {host.health for host in portal.world.store.hosts()} == {HostHealth.HEALTHY}


def test_forms_set_and_clear_a_fault(portal: PortalUser) -> None:
    page = confirm(portal, "fault", {"kind": "throttled", "vm": "db", "count": "3", "retry_after_s": "5s"})
    assert "Throttled for VM db. Clients see: 429 as text" in page.text
    assert "It lasts for the next 3 requests." in page.text
    submit_form(portal, "fault", {"kind": "throttled", "vm": "db", "count": "3", "retry_after_s": "5s"})
    (fault,) = portal.world.control.faults.active.faults
    assert (fault.count, fault.parameters) == (3, {"retry_after_s": 5})
    submit_form(portal, "fault-clear", {"fault": fault.id})
    assert portal.world.control.faults.active.faults == ()


def test_forms_start_a_storm_and_clear_everything(portal: PortalUser) -> None:
    submit_form(portal, "storm", {"seed": "3", "vm": ["db", "web-0"], "for": "5m"})
    (storm,) = portal.world.control.faults.active.storms
    assert (storm.seed, storm.duration_s) == (3, 300)
    submit_form(portal, "fault-clear", {"all": "yes"})
    assert portal.world.control.faults.active.storms == ()


def test_the_lab_page_shows_a_replay_and_a_form_stops_it(portal: PortalUser) -> None:
    taken = {
        "vm": "x",
        "api_version": "2020-07-01",
        "started_at": "2026-01-05T12:00:00Z",
        "answers": [{"at_s": 0, "status": 500}],
    }
    replay = portal.api.post("/replays", {"vm": "db", "recording": taken})["id"]
    page = portal.get("/portal/lab")
    assert "Replay for db" in page.text
    assert f"/portal/forms/replay-stop?replay={replay}" in page.html
    submit_form(portal, "replay-stop", {"replay": replay})
    assert portal.api.get(f"/replays/{replay}")["outcome"] == "stopped"
    assert "Replay for db" not in portal.get("/portal/lab").text


def test_a_form_advances_the_clock_by_a_duration_or_to_a_time(portal: PortalUser) -> None:
    request_restart(portal)
    page = confirm(portal, "clock-advance", {"by": "20m"})
    assert "The notice of 1 event ends on the way: Reboot of db." in page.text
    submit_form(portal, "clock-advance", {"by": "20m"})
    assert portal.world.now == NOON + 1200
    submit_form(portal, "clock-advance", {"until": "2026-01-05T13:00"})
    assert portal.world.now == NOON + 3600


def test_a_form_sets_the_speed_of_the_clock(portal: PortalUser) -> None:
    assert "runs 60 times as fast" in confirm(portal, "clock-speed", {"speed": "60"}).text
    submit_form(portal, "clock-speed", {"speed": "60"})
    assert portal.world.clock.setting.speed == 60
    assert '<span class="tag speed">×60</span>' in portal.get("/portal/").html
    submit_form(portal, "clock-speed", {"speed": "0"})
    assert '<span class="tag speed">paused</span>' in portal.get("/portal/").html


def test_a_form_previews_a_rollout_in_waves_as_a_diagram_and_starts_it(portal: PortalUser) -> None:
    """Spec §13.1, §13.6."""
    fields = {"impact": "migrate", "everything": "on", "canary": "1", "shares": "50 %", "settle": "10m"}
    page = confirm(portal, "rollout", fields)
    assert re.findall(r'<tr class="wave-planned">\s*<th scope="row">(\d): ([^<]+)<', page.html) == [
        ("1", "canary"),
        ("2", "50 %"),
        ("3", "rest"),
    ]
    assert 'class="part settling"' in page.html
    assert "Calendar of starts (UTC)" in page.text
    submit_form(portal, "rollout", fields)
    (request,) = portal.world.store.requests()
    assert request.rollout is not None
    assert ([wave.name for wave in request.rollout.waves], request.rollout.settle_s) == (
        ["canary", "50 %", "rest"],
        600,
    )


def test_shares_that_are_no_numbers_are_refused_in_the_form(portal: PortalUser) -> None:
    page = portal.post(form_path("rollout"), {"impact": "migrate", "everything": "on", "shares": "half"})
    assert "'half' are not shares: enter percentages such as 10, 50" in page.text
    assert portal.world.store.requests() == []
