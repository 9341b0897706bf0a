"""The overview in a browser: live sections, countdowns, actions, and the heat map."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import BrowserUser
from tests.support.web_service import WebService

pytestmark = pytest.mark.portal


def restart(console: WebService, *vms: str) -> str:
    answer = console.service.api("POST", "/requests", {"operation": "restart", "vms": list(vms)})
    assert answer.status < 300, answer.body
    event: str = answer.json["events"][0]["id"]
    return event


def overview(admin: Callable[..., BrowserUser], console: WebService, **options: Any) -> Page:
    page = admin(console, to="/portal/", **options).page
    page.evaluate("window.unchanged = true")
    return page


def test_an_event_is_followed_from_its_schedule_to_its_end(
    console: WebService, admin: Callable[..., BrowserUser]
) -> None:
    page = overview(admin, console)
    attention, upcoming, current = (page.locator(name) for name in ("#attention", "#next", "#now"))
    expect(attention).to_contain_text("Nothing needs attention")
    restart(console, "db-0")
    expect(attention).to_contain_text("1 VM has an event scheduled, and no handler is polling: db-0.")
    expect(upcoming).to_contain_text("Reboot of db-0")
    expect(upcoming.locator(".countdown")).to_have_text(re.compile(r"^in 14 min \d+ s$"))
    expect(page.locator("[data-count=noticed]")).to_have_text("1")
    console.service.poll("db-0")
    expect(attention).to_contain_text("Nothing needs attention")

    upcoming.get_by_role("link", name="Approve Reboot of db-0").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("window.unchanged")
    page.get_by_role("dialog").get_by_role("button", name="Approve").click()
    page.wait_for_url("**/portal/events/*")
    page.get_by_role("link", name="Overview").click()
    expect(current).to_contain_text("Reboot of db-0")
    expect(current.locator(".countdown")).to_have_text(re.compile(r"^(for \d+ s|just started)$"))
    console.service.advance(600)
    expect(current).to_contain_text("No event is in progress.")
    expect(page.locator("#notice")).to_contain_text("1 event started: 1 after an approval.")


def test_a_countdown_of_seven_days_reads_as_seven_days_and_always_as_a_phrase(
    console: WebService, admin: Callable[..., BrowserUser]
) -> None:
    answer = console.service.api("POST", "/requests", {"operation": "restart", "vms": ["db-0"], "notice_s": 7 * 86_400})
    assert answer.status < 300, answer.body
    restart(console, "db-1")
    page = overview(admin, console)
    countdowns = page.locator("#next .countdown")
    expect(countdowns).to_have_text([re.compile(r"^in 14 min"), "in 7 d"])
    texts = page.evaluate(
        """() => new Promise((resolve) => {
          const texts = new Set();
          new MutationObserver(() => {
            for (const element of document.querySelectorAll("#next .countdown")) texts.add(element.textContent);
            if (texts.size >= 4) resolve([...texts]);
          }).observe(document.getElementById("next"), { subtree: true, childList: true, characterData: true });
        })"""
    )
    assert [text for text in texts if not text.startswith("in ")] == []
    expect(countdowns.last).to_have_text("in 7 d")


def test_an_open_overview_shows_one_changed_section_per_frame(
    console: WebService, admin: Callable[..., BrowserUser]
) -> None:
    page = overview(admin, console)
    page.evaluate(
        """() => {
          window.shown = []; // the frame in which each section was shown
          document.addEventListener("refreshed", () => window.shown.push(document.timeline.currentTime));
        }"""
    )
    restart(console, "db-0")
    expect(page.locator("#attention")).to_contain_text("db-0")
    expect(page.locator("#next")).to_contain_text("Reboot of db-0")
    expect(page.locator("#fleet-map svg a[href$='/db-0'] title")).to_have_text("db-0, event scheduled")
    frames = page.evaluate("window.shown")
    assert len(frames) >= 3
    assert len(set(frames)) == len(frames)


def test_time_alone_brings_up_a_missing_approval(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    event = restart(console, "db-0")
    console.service.poll("db-0")
    console.service.advance(596)
    page = overview(admin, console)
    expect(page.locator("#attention")).to_contain_text("1 event starts soon without an approval: Reboot of db-0.")
    assert page.evaluate("window.unchanged")
    approve = page.locator("#attention").get_by_role("link", name="Approve")
    assert approve.get_attribute("href") == f"/portal/forms/approve?event={event}"


def test_the_heat_map_leads_to_scopes_and_vms(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = overview(admin, console)
    web = page.locator(".heat-map li", has_text="web")
    restart(console, "web-2")
    changed = web.locator("svg a[href$='/web-2']")
    expect(changed.locator("title")).to_have_text("web-2, event scheduled")
    assert page.evaluate("window.unchanged")
    changed.locator("rect").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("web-2")
    page.go_back()
    page.get_by_role("link", name="web: 6 VMs, 5 running, 1 event scheduled").click()
    page.wait_for_url("**/portal/scopes/**")


def test_the_rollout_and_the_clock_are_at_hand(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    console.service.api("POST", "/rollouts", {"impact": "reboot", "scope": "web"})
    page = overview(admin, console)
    expect(page.locator("#rollouts")).to_contain_text("0 of 6 done, 2 scheduled, 4 waiting")
    expect(page.locator("#rollouts")).to_contain_text(re.compile(r"Ends about .*if nobody approves"))
    page.get_by_role("link", name="Advance to the next start").click()
    page.get_by_role("dialog").get_by_role("button", name="Advance").click()
    page.wait_for_url("**/portal/lab**")
    page.get_by_role("link", name="Overview").click()
    expect(page.locator("#rollouts")).to_contain_text("2 started, 4 waiting")
