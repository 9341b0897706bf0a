"""The pages of rollouts, of one request, and of the lab."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.core.cause import Cause
from forewarn.core.event import Event
from forewarn.core.faults import FaultKind
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.core.waves import make_waves
from forewarn.web.portal.rollout_pages import _events_by_batch
from tests.portal.conftest import PortalUser
from tests.support.world import a_host, a_vm

DB = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/db"


def start(portal: PortalUser, **facts: object) -> str:
    rollout = Rollout(**{"impact": RolloutImpact.REBOOT, "scope_id": "set:sub/lab/web", **facts})  # type: ignore[arg-type]
    request = portal.world.do(portal.world.control.rollout_requests.start(rollout, who="bob"))
    portal.world.settle()
    return request.id


def domains(portal: PortalUser, rollout: str) -> list[str]:
    """The state of each update domain of its scope, in order."""
    return re.findall(r'<li class="domain (\w+)">', portal.get(f"/portal/rollouts/{rollout}").html)


def test_the_empty_list_of_rollouts_says_how_to_start_one(portal: PortalUser) -> None:
    page = portal.get("/portal/rollouts")
    assert "There are no rollouts." in page.text
    assert 'href="/portal/forms/rollout"' in page.html


def test_the_list_of_rollouts_shows_their_progress(portal: PortalUser) -> None:
    rollout = start(portal)
    portal.world.advance(905)
    page = portal.get("/portal/rollouts")
    assert "web in progress 0 of 3 done, 1 started, 2 waiting 1 12:46:30 12:00:00" in page.text
    assert f'href="/portal/rollouts/{rollout}"' in page.html
    rows = list(csv.DictReader(io.StringIO(portal.get("/portal/rollouts?as=csv").content.decode())))
    assert [(row["rollout"], row["started"], row["waiting"]) for row in rows] == [(rollout, "1", "2")]
    assert portal.get("/portal/rollouts?as=json").json["rollouts"][0]["rollout"]["id"] == rollout


def test_the_progress_bar_shows_what_is_done_and_under_way(portal: PortalUser) -> None:
    start(portal)
    assert _bar_parts(portal) == []
    portal.world.advance(905)
    assert _bar_parts(portal) == [("started", "0", "1")]
    portal.world.advance(60)
    assert _bar_parts(portal) == [("done", "0", "1")]
    page = portal.get("/portal/rollouts")
    assert 'viewBox="0 0 3 1"' in page.html
    assert 'role="progressbar" aria-valuemin="0" aria-valuemax="3" aria-valuenow="1"' in page.html


def _bar_parts(portal: PortalUser) -> list[tuple[str, str, str]]:
    return re.findall(r'class="part-(\w+)" x="(\d)" y="0" width="(\d)"', portal.get("/portal/rollouts").html)


def test_events_that_are_published_within_moments_of_each_other_are_one_wave() -> None:
    """On a running clock, no two events are published at exactly the same time."""
    first = Event(
        id="1",
        scope_id="s",
        request_id="r",
        cause=Cause.HOST_UPDATE,
        requested_by="ann",
        vms=("a",),
        published_at=0.0,
        not_before=9.0,
    )
    times = (0.0, 0.004, 0.9, 1800.0, 1800.1)
    events = [replace(first, id=str(number), published_at=at) for number, at in enumerate(times)]
    assert [[event.id for event in wave] for wave in _events_by_batch(events)] == [["0", "1", "2"], ["3", "4"]]


def test_the_rollout_page_shows_one_update_domain_after_the_other(portal: PortalUser) -> None:
    """Spec §6.2."""
    rollout = start(portal)
    assert domains(portal, rollout) == ["now", "next", "waiting"]
    portal.world.advance(1000)
    assert domains(portal, rollout) == ["done", "now", "next"]
    portal.world.advance(1000)
    assert domains(portal, rollout) == ["done", "done", "now"]
    portal.world.advance(1000)
    assert domains(portal, rollout) == ["done", "done", "done"]
    assert "completed" in portal.get(f"/portal/rollouts/{rollout}").text


def test_the_rollout_page_offers_pause_resume_and_abort_while_it_is_open(portal: PortalUser) -> None:
    rollout = start(portal)
    assert re.findall(r"/portal/forms/rollout-(\w+)", portal.get(f"/portal/rollouts/{rollout}").html) == [
        "pause",
        "abort",
    ]
    portal.world.do(portal.world.control.rollout_requests.change_state(rollout, RolloutState.PAUSED, who="bob"))
    assert re.findall(r"/portal/forms/rollout-(\w+)", portal.get(f"/portal/rollouts/{rollout}").html) == [
        "resume",
        "abort",
    ]
    portal.world.do(portal.world.control.rollout_requests.change_state(rollout, RolloutState.ABORTED, who="bob"))
    portal.world.settle()
    page = portal.get(f"/portal/rollouts/{rollout}")
    assert "/portal/forms/rollout-" not in page.html
    assert "aborted bob ended it" in page.text
    assert "1 withdrawn, 2 never started" in page.text


def test_a_rollout_is_found_by_a_prefix_of_its_id_and_can_be_exported(portal: PortalUser) -> None:
    rollout = start(portal)
    assert rollout in portal.get(f"/portal/rollouts/{rollout[:20]}").text
    assert portal.get(f"/portal/rollouts/{rollout}?as=svg").html.startswith("<")
    assert "web-0" in portal.get(f"/portal/rollouts/{rollout}?as=csv").html
    assert portal.request("GET", "/portal/rollouts/nothing").status == 404


def test_rollouts_are_hidden_from_users_who_see_only_a_part(portal: PortalUser) -> None:
    rollout = start(portal)
    part = portal.with_role("Reader", DB)
    assert "You need the right to read everything to see rollouts." in part.get("/portal/rollouts").text
    assert part.request("GET", f"/portal/rollouts/{rollout}").status == 404


def test_the_request_page_shows_what_it_waits_for_and_its_progress(portal: PortalUser) -> None:
    (event,) = portal.world.ask(RequestedOperation.RESTART, "db")
    target = f"/portal/requests/{event.request_id}"
    page = portal.get(target)
    assert "in progress Reboot of db Waits for an approval, or the end of its notice." in page.text
    assert "0 of 1 done" in page.text
    assert f'data-live="request:{event.request_id} event:{event.id}"' in page.html
    portal.world.advance(905)
    assert "in progress Reboot of db The reboot of db is in progress." in portal.get(target).text
    portal.world.advance(60)
    page = portal.get(target)
    assert "Restart of db succeeded" in page.text
    assert "1 of 1 done" in page.text
    assert portal.get(f"{target}?as=json").json["standing"]["state"] == "succeeded"
    assert portal.request("GET", "/portal/requests/nothing").status == 404


def test_the_request_page_names_few_of_many_vms_and_counts_equal_waits(portal: PortalUser) -> None:
    names = ["db", "spot", "web-0", "web-1", "web-2"]
    answer = portal.api.post("/requests", {"operation": "restart", "vms": names})
    page = portal.get(f"/portal/requests/{answer['request']['id']}")
    assert "Restart of db, spot, web-0 and 2 more" in page.text
    assert "Waits for 5 events: an approval, or the end of its notice" in page.text
    assert "Waits for Reboot of" not in page.text


@pytest.mark.parametrize(
    ("kind", "parameters", "symptom"),
    [
        (FaultKind.SLOW_BODY, {}, "the document arrives in small pieces, over 10 s"),
        (FaultKind.SLOW_BODY, {"take_s": 90}, "the document arrives in small pieces, over 90 s"),
        (
            FaultKind.THROTTLED,
            {"retry_after_s": 7},
            "429 as text, with Retry-After if retry-after is given (retry-after 7 s)",
        ),
    ],
    ids=["default", "given", "condition"],
)
def test_the_lab_and_vm_pages_say_what_a_fault_does_with_its_values(
    portal: PortalUser, kind: FaultKind, parameters: dict[str, float], symptom: str
) -> None:
    target = FaultTarget(name="db", vm=portal.world.vm("db"))
    spec = FaultSpec(kind=kind, target=target, parameters=parameters)
    portal.world.do(portal.world.control.faults.set(spec, who="ann"))
    assert symptom in portal.get("/portal/lab").text
    assert symptom in portal.get("/portal/vms/db").text


def test_a_page_shows_the_done_message_of_a_form_and_no_other_text(portal: PortalUser) -> None:
    (event,) = portal.world.ask(RequestedOperation.RESTART, "db")
    target = f"/portal/requests/{event.request_id}"
    assert "Restart requested." in portal.get(f"{target}?done=restart").text
    assert "burnt down" not in portal.get(f"{target}?done=burnt+down").text


def test_the_request_page_offers_an_approval_to_users_with_the_right(portal: PortalUser) -> None:
    (event,) = portal.world.ask(RequestedOperation.RESTART, "db")
    target, link = f"/portal/requests/{event.request_id}", f"/portal/forms/approve?event={event.id}"
    assert link in portal.get(target).html
    assert link in portal.with_role("ScheduledEventContributor", DB).get(target).html
    assert link not in portal.with_role("Reader", DB).get(target).html


def test_a_request_for_an_invisible_vm_does_not_exist(portal: PortalUser) -> None:
    (event,) = portal.world.ask(RequestedOperation.RESTART, "web-0")
    assert portal.with_role("Reader", DB).request("GET", f"/portal/requests/{event.request_id}").status == 404


def test_the_lab_page_shows_what_is_due_next(portal: PortalUser) -> None:
    assert "No event is scheduled." in portal.get("/portal/lab").text
    portal.world.ask(RequestedOperation.RESTART, "db")
    assert "12:15:00 in 15 min : the notice of Reboot of db ends" in portal.get("/portal/lab").text


def test_the_lab_page_shows_the_clock_and_offers_to_advance_it(portal: PortalUser) -> None:
    page = portal.get("/portal/lab")
    assert "2026-01-05 12:00:00 UTC paused" in page.text
    assert re.findall(r'name="speed" value="([^"]*)"', page.html) == ["0", "1", "60", "600"]
    assert 'href="/portal/forms/clock-advance?by=15m"' in page.html


def test_the_lab_page_lists_faults_with_the_events_they_affected(portal: PortalUser) -> None:
    vm = portal.world.vm("db")
    spec = FaultSpec(kind=FaultKind.SHORT_NOTICE, target=FaultTarget(name="db", vm=vm), count=2)
    portal.world.do(portal.world.control.faults.set(spec, who="ann"))
    (event,) = portal.world.ask(RequestedOperation.RESTART, "db")
    page = portal.get("/portal/lab")
    assert "short-notice f1 db an event whose NotBefore is only 5 s ahead" in page.text
    assert "1 of 2 1 events" in page.text
    assert f'href="/portal/events/{event.id}"' in page.html
    assert 'href="/portal/forms/fault-clear?fault=f1"' in page.html
    rows = list(csv.DictReader(io.StringIO(portal.get("/portal/lab?as=csv").content.decode())))
    assert [(row["fault"], row["applied"]) for row in rows] == [("f1", "1")]


def test_the_lab_page_hides_faults_from_users_who_see_only_a_part(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "web-0")
    page = portal.with_role("Reader", DB).get("/portal/lab")
    assert "Clock" in page.text
    assert "Faults" not in page.text
    assert "web-0" not in page.text


def test_the_rollout_page_shows_scopes_with_live_events_first(portal_of: Callable[..., PortalUser]) -> None:
    vms = [a_vm(f"v{n}", host=f"h{n % 3}") for n in range(70)]
    portal = portal_of(vms=vms, hosts=[a_host(f"h{n}") for n in range(3)])
    rollout = start(portal, scope_id="", hosts=("h0",))
    page = portal.get(f"/portal/rollouts/{rollout}")
    assert page.html.count('class="domain now"') == 24
    rollout = start(portal, scope_id="", hosts=("h1", "h2", "h0"))
    assert "And 10 more scopes." in portal.get(f"/portal/rollouts/{rollout}").text


def test_a_rollout_in_waves_shows_its_plan_as_a_diagram_and_a_calendar(portal: PortalUser) -> None:
    """Spec §13.1: the canary settles, and the rest waits."""
    rollout = start(portal, scope_id="", everything=True, waves=make_waves("1", ()), settle_s=600)
    portal.world.advance(15 * 60 + 30)
    page = portal.get(f"/portal/rollouts/{rollout}")
    assert re.findall(r'<tr class="wave-(\w+)">', page.html) == ["settling", "waiting"]
    assert re.findall(r'<rect class="part (\w+)"', page.html)[:3] == ["notice", "performing", "settling"]
    assert "Waits until 12:25 UTC: wave 1 of 2 (canary) settles." in page.text
    assert "Mon 2026-01-05" in page.text
    portal.world.advance(3 * 3600)
    page = portal.get(f"/portal/rollouts/{rollout}")
    assert re.findall(r'<tr class="wave-(\w+)">', page.html) == ["done", "done"]


def test_the_waves_of_a_running_rollout_have_their_planned_sizes_and_expected_times(
    portal_of: Callable[..., PortalUser],
) -> None:
    """Spec §13.6: five update domains follow one another in each wave, so the wave is not published at once."""
    vms = [a_vm(f"web-{n:02}", host=f"h{n}", availability_set="web", update_domain=n % 5) for n in range(30)]
    portal = portal_of(vms=vms, hosts=[a_host(f"h{n}") for n in range(30)])
    rollout = start(portal, waves=make_waves("2", (50,)), settle_s=600)
    portal.world.advance(3000)
    waves = portal.get(f"/portal/rollouts/{rollout}?as=json").json["diagram"]["waves"]
    assert [(wave["name"], wave["state"], wave["vms"]) for wave in waves] == [
        ("canary", "done", 2),
        ("50 %", "now", 15),
        ("rest", "waiting", 13),
    ]
    page = portal.get(f"/portal/rollouts/{rollout}").text
    portal.world.advance(24 * 3600)
    ended = portal.get(f"/portal/rollouts/{rollout}?as=json").json["diagram"]["waves"]
    times = ("begins_at", "over_at", "settled_at")
    assert [[wave[key] for key in times] for wave in waves] == [[wave[key] for key in times] for wave in ended]
    assert "Ends about" in page


def test_the_page_of_a_rollout_names_the_budget_that_it_waits_for(portal: PortalUser) -> None:
    portal.api.post("/budgets", {"name": "all", "max_vms": 1})
    portal.api.post("/requests", {"operation": "power-off", "vms": ["db"]})
    portal.world.settle()
    page = portal.get(f"/portal/rollouts/{start(portal)}")
    assert re.search(r'Waits: the budget "all" allows 1 of \d VMs out of service at once, and db is\.', page.text)


def test_a_rollout_with_one_wave_shows_no_plan(portal: PortalUser) -> None:
    assert "wave-diagram" not in portal.get(f"/portal/rollouts/{start(portal)}").html


def test_a_rollout_whose_wave_settles_is_not_stalled_and_ends_after_settling(portal: PortalUser) -> None:
    rollout = start(portal, scope_id="", everything=True, waves=make_waves("1", ()), settle_s=7200)
    portal.world.advance(15 * 60 + 30 + 3600)
    text = portal.get("/portal/").text
    assert "stalled" not in text
    assert portal.world.rollout(rollout).wave_over_at == portal.world.now - 3600
