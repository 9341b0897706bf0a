"""What the pages of one VM, event, scope, host and rollout share: status card, waves, pages, ids and red buttons."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from forewarn.core.request import RequestedOperation
from forewarn.web.portal.form_catalog import FORMS
from tests.portal.conftest import Page, PortalUser
from tests.portal.form_helpers import DB, request_restart, start_rollout
from tests.support.world import a_host, a_vm

BUTTON = re.compile(r'class="button large[^"]*" href="/portal/forms/(\w+)')


def large_buttons(page: Page) -> list[str]:
    return BUTTON.findall(page.html)


@pytest.mark.parametrize("path", ["events/{event}", "vms/db", "scopes/db", "hosts/h1", "requests/{request}"])
def test_a_status_card_says_what_the_next_event_waits_for(portal: PortalUser, path: str) -> None:
    (event,) = portal.world.ask(RequestedOperation.RESTART, "db")
    page = portal.get(f"/portal/{path.format(event=event.id, request=event.request_id)}")
    card = page.text[page.text.index("Waits for an approval") :]
    assert card.startswith("Waits for an approval, or the end of its notice. Starts in 15 min without an approval, at")
    assert f'data-countdown="{event.not_before:.3f}"' in page.html
    assert large_buttons(page) == ["approve", "withdraw"]


def test_a_status_card_follows_the_event_to_its_end(portal: PortalUser) -> None:
    event = request_restart(portal)
    portal.world.advance(905)
    page = portal.get(f"/portal/events/{event}")
    assert "started The reboot of db is in progress. Running for 5 s since 12:15:00" in page.text
    assert large_buttons(page) == []
    portal.world.advance(900)
    assert "finished The reboot of db was performed." in portal.get(f"/portal/events/{event}").text
    assert "running db is running on h1." in portal.get("/portal/vms/db").text


def test_a_status_card_shows_the_event_that_starts_first(portal: PortalUser) -> None:
    portal.api.post("/hosts/h1/degrade", {"in_s": 86400})
    request_restart(portal, "web-1")
    for path in ("vms/web-1", "scopes/web"):
        assert "Reboot of web-1" in portal.get(f"/portal/{path}").text
    assert "Reboot of web-1 and 1 more event Waits for" in portal.get("/portal/scopes/web").text


@pytest.mark.parametrize(
    ("role", "buttons"),
    [
        ("Reader", []),
        ("ScheduledEventContributor", ["approve"]),
        ("Operator", []),
        ("Platform", ["withdraw"]),
        ("Administrator", ["approve", "withdraw"]),
    ],
)
def test_large_buttons_are_for_users_with_the_right(portal: PortalUser, role: str, buttons: list[str]) -> None:
    event = request_restart(portal)
    user = portal.with_role(role, "/")
    for path in (f"events/{event}", "vms/db", "scopes/db"):
        assert large_buttons(user.get(f"/portal/{path}")) == buttons


def test_the_events_of_a_vm_are_above_its_facts(portal: PortalUser) -> None:
    request_restart(portal)
    page = portal.get("/portal/vms/db").html
    places = [page.index(f'<section id="{name}"') for name in ("now", "events", "facts", "explanation")]
    assert places == sorted(places)


def test_the_vm_page_does_not_repeat_the_state_of_its_events_with_times_that_stand_still(portal: PortalUser) -> None:
    event = request_restart(portal)
    data = portal.get("/portal/vms/db?as=json").json
    assert any(sentence.startswith(f"Reboot ({event}): It is scheduled") for sentence in data["explanation"]["now"])
    text = portal.get("/portal/vms/db").text
    assert "It is scheduled and waits" not in text
    assert f"Reboot ( {event} ): It was not delivered to db yet." in text


def test_an_id_is_whole_in_the_text_and_in_what_is_copied(portal: PortalUser) -> None:
    event = request_restart(portal)
    page = portal.get(f"/portal/events/{event}").html
    assert f'<code class="id" title="{event}">{event}</code>' in page
    assert f'data-copy="{event}" aria-label="Copy the id of the event"' in page


@pytest.mark.parametrize(
    ("path", "trail"),
    [
        ("vms/web-0", "Fleet lab web web-0"),
        ("vms/db", "Fleet lab db"),
        ("scopes/web", "Fleet lab web"),
        ("hosts/h1", "Hosts h1"),
        ("events/{event}", "Timeline db Reboot of db"),
        ("requests/{request}", "Timeline Restart of db"),
        ("rollouts/{rollout}", "Rollouts Reboot over web"),
    ],
)
def test_a_detail_page_has_breadcrumbs_and_an_active_tab(portal: PortalUser, path: str, trail: str) -> None:
    (event,) = portal.world.ask(RequestedOperation.RESTART, "db")
    names = {"event": event.id, "request": event.request_id, "rollout": start_rollout(portal)}
    page = portal.get(f"/portal/{path.format(**names)}")
    breadcrumbs = re.search(r'<nav class="breadcrumbs".*?</nav>', page.html, re.S)
    assert breadcrumbs is not None
    assert " ".join(re.sub(r"<[^>]*>", " ", breadcrumbs[0]).split()) == trail
    header = page.html[: page.html.index("<main")]
    assert re.findall(r'aria-current="\w+">(\w+)<', header) == [trail.split()[0]]


def test_buttons_of_destructive_forms_are_red_last_and_say_why(portal: PortalUser) -> None:
    page = portal.get("/portal/vms/pool_0").html
    links = re.findall(r'<a class="button second( danger)?" href="/portal/forms/([a-z-]+)\?', page)
    red = [form for danger, form in links if danger]
    assert red == ["redeploy", "deallocate", "reimage", "scale-in", "delete"]
    assert [form for _, form in links][-len(red) :] == red
    assert f'title="{FORMS["delete"].danger}"' in page
    host = portal.get("/portal/hosts/h1").html
    assert re.findall(r'danger" href="/portal/forms/([a-z-]+)\?', host) == ["degrade", "fail"]
    rollout = portal.get(f"/portal/rollouts/{start_rollout(portal)}").html
    assert re.findall(r'danger" href="/portal/forms/([a-z-]+)\?', rollout) == ["rollout-abort"]


def test_a_rollout_is_shown_wave_by_wave(portal: PortalUser) -> None:
    """Spec §6.2."""
    rollout = start_rollout(portal)
    page = portal.get(f"/portal/rollouts/{rollout}")
    assert "Batch 1 in progress 0 0 of 1 done 12:00:00 in 15 min , at 12:15:00 Later waiting 1, 2 2" in page.text
    portal.world.advance(1000)
    page = portal.get(f"/portal/rollouts/{rollout}")
    assert "Batch 1 done 0 1 of 1 done" in page.text
    assert "Batch 2 in progress 1 0 of 1 done" in page.text
    assert "Events of batch 2" in page.text
    first = portal.get(f"/portal/rollouts/{rollout}?batch=1")
    assert "Events of batch 1" in first.text
    assert [
        lane["vms"] for lane in portal.get(f"/portal/rollouts/{rollout}?batch=1&as=json").json["course"]["lanes"]
    ] == [["web-0"]]
    refused = portal.request("GET", f"/portal/rollouts/{rollout}?batch=9")
    assert refused.status == 400
    assert "batch 9 does not exist: the last one published so far is 2" in refused.text.lower()


def test_the_events_of_a_wave_and_of_a_request_are_paginated(portal_of: Callable[..., PortalUser]) -> None:
    portal = portal_of(vms=[a_vm(f"v{n}") for n in range(45)], hosts=[a_host("h1")])
    receipt = portal.api.post("/requests", {"operation": "restart", "vms": [f"v{n}" for n in range(45)]})
    target = f"/portal/requests/{receipt['request']['id']}"
    seen = [
        lane["vms"][0]
        for number in (1, 2, 3)
        for lane in portal.get(f"{target}?page={number}&as=json").json["course"]["lanes"]
    ]
    assert sorted(seen) == sorted(f"v{n}" for n in range(45))
    assert "Page 1 of 3" in portal.get(target).text
    assert len(portal.get(f"{target}?as=json").json["course"]["lanes"]) == 45
    assert portal.request("GET", f"{target}?page=4").status == 400


def test_long_lists_of_a_host_a_scope_and_an_event_are_paginated(portal_of: Callable[..., PortalUser]) -> None:
    vms = [a_vm(f"v{n}", availability_set="big") for n in range(60)]
    portal = portal_of(vms=vms, hosts=[a_host("h1")])
    portal.api.post("/rollouts", {"impact": "reboot", "scope": "big"})
    event = max(portal.world.events(), key=lambda event: len(event.vms))
    for path, total in (("hosts/h1", 60), ("scopes/big", 60), (f"events/{event.id}", len(event.vms))):
        pages = max(1, -(-total // 15))
        names = [
            vm["name"]
            for number in range(1, pages + 1)
            for vm in portal.get(f"/portal/{path}?page={number}&as=json").json["vms"]
        ]
        assert len(set(names)) == len(names) == total
        assert len(portal.get(f"/portal/{path}?as=json").json["vms"]) == total
        assert portal.request("GET", f"/portal/{path}?page={pages + 1}").status == 400


def test_the_scope_page_lists_the_first_events_and_links_to_all(portal_of: Callable[..., PortalUser]) -> None:
    portal = portal_of(vms=[a_vm(f"v{n}", availability_set="big") for n in range(30)], hosts=[a_host("h1")])
    portal.api.post("/requests", {"operation": "restart", "vms": [f"v{n}" for n in range(30)]})
    page = portal.get("/portal/scopes/big")
    assert page.html.count(">Reboot</a>") == 10
    assert "And 20 more: all events on the timeline" in page.text
    assert len(portal.get("/portal/scopes/big?as=json").json["events"]) == 30


def test_a_reader_of_one_vm_sees_no_buttons_of_others(portal: PortalUser) -> None:
    request_restart(portal)
    page = portal.with_role("Reader", DB).get("/portal/vms/db")
    assert "Waits for an approval" in page.text
    assert "/portal/forms/" not in page.html
