"""Open pages show changes, notice when the service is down, and reconnect."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from forewarn.service.data_directory import DATABASE_FILE
from tests.browser.conftest import BrowserUser
from tests.support.web_service import WebService

pytestmark = pytest.mark.portal


def test_a_scheduled_event_is_shown_without_a_reload(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(console).page
    cell = page.get_by_role("link", name="db-0, running")
    expect(cell).to_be_visible()
    page.evaluate("window.unchanged = true")
    console.service.api("POST", "/requests", {"operation": "restart", "vms": ["db-0"]})
    expect(page.get_by_role("link", name="db-0, event scheduled")).to_be_visible()
    assert page.evaluate("window.unchanged")


@pytest.mark.parametrize("path", ["/portal/fleet", "/portal/rollouts", "/portal/forms/restart"])
def test_a_hold_and_its_end_are_shown_without_a_reload(
    console: WebService, admin: Callable[..., BrowserUser], path: str
) -> None:
    page = admin(console, to=path).page
    banner = page.locator("#hold")
    expect(banner).to_be_hidden()
    page.evaluate("window.unchanged = true")
    console.service.api("POST", "/rollouts/hold", {"reason": "an incident"})
    expect(banner).to_contain_text("All rollouts have been on hold since")
    expect(banner).to_contain_text("an incident")
    expect(banner.get_by_role("link", name="Lift the hold")).to_be_visible()
    expect(page.get_by_role("link", name="Hold all")).to_have_count(0)
    console.service.api("POST", "/rollouts/hold/lift")
    expect(banner).to_be_hidden()
    if path == "/portal/rollouts":
        expect(page.get_by_role("link", name="Hold all")).to_be_visible()
    assert page.evaluate("window.unchanged")


def test_a_delivery_is_shown_without_a_reload(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    response = console.service.api("POST", "/requests", {"operation": "restart", "vms": ["db-0"]}).json
    page = admin(console, to=f"/portal/events/{response['events'][0]['id']}").page
    expect(page.get_by_text("It was not delivered to db-0 yet")).to_be_visible()
    console.service.poll("db-0")
    expect(page.get_by_text("It was not delivered to db-0 yet")).to_have_count(0)


def test_a_page_with_a_wrong_filter_is_kept_up_to_date(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    response = console.service.api("POST", "/requests", {"operation": "restart", "vms": ["db-0"]}).json
    user = admin(console, to=f"/portal/events/{response['events'][0]['id']}?page=99")
    expect(user.page.locator(".filter-problem")).to_contain_text("Page 99 does not exist")
    expect(user.page.get_by_text("It was not delivered to db-0 yet")).to_be_visible()
    console.service.poll("db-0")
    expect(user.page.get_by_text("It was not delivered to db-0 yet")).to_have_count(0)
    user.clear_errors()  # the browser logs every response with an error status


def test_the_start_of_polling_is_shown_without_a_reload(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    console.service.poll("web-2")
    user = admin(console)
    fleet, clients = user.page, user.page.context.new_page()
    clients.goto(f"{user.base}/portal/clients")
    web = fleet.locator(".block", has_text="web")
    expect(web).to_contain_text("1 of 6 polled in the last minute")
    row = clients.get_by_role("row").filter(has_text="web-3")
    expect(row).to_contain_text("never polled")
    for page in (fleet, clients):
        page.evaluate("window.unchanged = true")
    console.service.poll("web-3")
    expect(web).to_contain_text("2 of 6 polled in the last minute")
    expect(row).to_contain_text("polling")
    expect(clients.get_by_role("link", name=re.compile("^never polled"))).to_contain_text("11")
    assert all(page.evaluate("window.unchanged") for page in (fleet, clients))


def test_a_lost_connection_is_shown_and_restored(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    user = admin(console)
    page, banner = user.page, user.page.locator("#banner")
    expect(page.get_by_role("link", name="db-0, running")).to_be_visible()
    expect(banner).to_be_hidden()
    console.service.kill()
    expect(banner).to_have_text("Connection lost. Reconnecting … This page may be out of date.")
    console.service.start()
    console.service.api("POST", "/requests", {"operation": "restart", "vms": ["db-0"]})
    expect(banner).to_be_hidden()
    expect(page.get_by_role("link", name="db-0, event scheduled")).to_be_visible()
    user.clear_errors()


def test_the_clock_runs_and_follows_the_lab(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(console).page
    clock = page.locator("#clock time")
    before = clock.text_content() or ""
    expect(clock).not_to_have_text(before)
    console.service.api("POST", "/clock/speed", {"speed": 0})
    expect(page.locator("#clock .tag.speed")).to_have_text("paused")
    console.service.advance(12 * 3600)
    hour = (int(before.split()[1][:2]) + 12) % 24  # of a date and a time
    expect(clock).to_have_text(re.compile(rf" ({hour:02}|{(hour + 1) % 24:02}):"))


def test_a_user_signed_out_elsewhere_is_told_and_can_sign_in(
    console: WebService, admin: Callable[..., BrowserUser]
) -> None:
    user = admin(console)
    page = user.page
    other = page.context.new_page()
    other.goto(f"{user.base}/portal/fleet")
    other.get_by_role("button", name="Sign out").click()
    other.wait_for_url("**/portal/sign-in")
    banner = page.locator("#banner")
    expect(banner).to_contain_text("You are signed out.")
    banner.get_by_role("link", name="Sign in").click()
    expect(page.get_by_label("Secret")).to_be_visible()


def test_a_session_that_ended_while_the_service_was_down_is_reported(
    console: WebService, admin: Callable[..., BrowserUser]
) -> None:
    user = admin(console)
    page, banner = user.page, user.page.locator("#banner")
    expect(page.get_by_role("link", name="db-0, running")).to_be_visible()
    console.service.kill()
    expect(banner).to_contain_text("Connection lost")
    page.context.clear_cookies()
    console.service.start()
    expect(banner).to_contain_text("You are signed out.")
    user.clear_errors()


def test_pages_are_live_over_tls_too(console: WebService, new_user: Callable[..., BrowserUser]) -> None:
    user = replace(new_user(console, ignore_https_errors=True), base=console.base_url)
    page = user.sign_in(*console.admin_credentials, to="/portal/fleet")
    expect(page.get_by_role("link", name="db-0, running")).to_be_visible()
    console.service.api("POST", "/requests", {"operation": "restart", "vms": ["db-0"]})
    expect(page.get_by_role("link", name="db-0, event scheduled")).to_be_visible()
    (cookie,) = page.context.cookies()
    assert cookie["name"].startswith("__Host-")
    assert cookie["secure"]


def test_a_store_that_rejects_writes_is_reported_and_so_is_its_recovery(
    console: WebService, admin: Callable[..., BrowserUser]
) -> None:
    user = admin(console)
    page, overview = user.page, user.page.context.new_page()
    overview.goto(f"{user.base}/portal/")
    banner = page.locator("#banner")
    expect(page.get_by_role("link", name="db-0, running")).to_be_visible()
    with closing(sqlite3.connect(console.service.data / DATABASE_FILE, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")  # blocks other writers
        expect(banner).to_contain_text("The service cannot write to its store", timeout=30_000)
        assert page.get_by_role("link", name="db-0, running").is_visible()
        expect(overview.locator("#attention")).to_contain_text("The service cannot write to its store")
    expect(banner).to_be_hidden()
    expect(overview.locator("#attention")).to_contain_text("Nothing needs attention")


def test_a_hidden_page_holds_no_connection_and_catches_up(
    console: WebService, admin: Callable[..., BrowserUser]
) -> None:
    page = admin(console).page
    expect(page.get_by_role("link", name="db-0, running")).to_be_visible()
    with page.expect_event("requestfailed", lambda request: "/portal/live" in request.url):
        page.evaluate(SET_VISIBILITY, "hidden")
    console.service.api("POST", "/requests", {"operation": "restart", "vms": ["db-0"]})
    with page.expect_request(lambda request: "/portal/live?after=" in request.url):
        page.evaluate(SET_VISIBILITY, "visible")
    expect(page.get_by_role("link", name="db-0, event scheduled")).to_be_visible()


def test_windows_beyond_the_stream_slots_wait_for_one(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    user = admin(console)
    pages = [user.page, *(user.page.context.new_page() for _ in range(6))]
    for page in pages[1:]:
        page.goto(f"{user.base}/portal/fleet")
    crowded = pages[-1]
    expect(crowded.locator("#banner")).to_contain_text("Too many windows of this browser show live pages")
    for page in pages[:4]:
        page.close()
    expect(crowded.locator("#banner")).to_be_hidden()
    console.service.api("POST", "/requests", {"operation": "restart", "vms": ["db-0"]})
    expect(crowded.get_by_role("link", name="db-0, event scheduled")).to_be_visible()


SET_VISIBILITY = """(state) => {
  Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
