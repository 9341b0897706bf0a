"""Interaction with the fleet page: search while typing, filters, added and removed VMs."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE, BrowserUser
from tests.support.web_service import WebService

pytestmark = pytest.mark.portal


def cells(page: Page) -> list[str]:
    """The labels of the cells in order, as a screen reader says them."""
    return [label or "" for label in page.locator(".cell").evaluate_all("all => all.map(one => one.ariaLabel)")]


def test_a_search_narrows_the_fleet_while_the_user_types(shared: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(shared).page
    page.evaluate("window.unchanged = true")
    page.get_by_role("searchbox").press_sequentially("db-")
    expect(page.get_by_text("2 of 13 VMs match")).to_be_visible()
    assert cells(page) == ["db-0, running", "db-1, running"]
    assert page.url.endswith("/portal/fleet?q=db-"), "the address holds the search"
    page.get_by_role("searchbox").press_sequentially("nothing")
    expect(page.get_by_text('No results for "db-nothing"')).to_be_visible()
    page.get_by_role("searchbox").fill("")
    expect(page.get_by_text("Showing 13 of 13 VMs.")).to_be_visible()
    assert page.url.endswith("/portal/fleet")
    assert page.evaluate("window.unchanged")
    assert page.evaluate("document.activeElement.id") == "q", "the search field keeps the focus"


def test_a_filter_by_state_is_live(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(console).page
    page.get_by_role("link", name=re.compile(r"event scheduled \d")).click()
    expect(page.get_by_text('No VM in the state "event scheduled"')).to_be_visible()
    console.service.api("POST", "/requests", {"operation": "restart", "vms": ["db-0"]})
    expect(page.get_by_role("link", name="db-0, event scheduled")).to_be_visible()
    expect(page.locator("[data-count=noticed]")).to_have_text("1")
    expect(page.locator("[data-count=running]")).to_have_text("12")
    console.service.api("POST", "/clock/advance", {"by_s": 3600})
    expect(page.get_by_text('No VM in the state "event scheduled"')).to_be_visible()


def test_added_and_removed_vms_are_shown_without_a_reload(
    console: WebService, admin: Callable[..., BrowserUser]
) -> None:
    page = admin(console).page
    page.evaluate("window.unchanged = true")
    console.service.api("POST", "/fleet/vms", {"name": "late", "resource_group": "shop"})
    expect(page.get_by_role("link", name="late, running")).to_be_visible()
    console.service.api("DELETE", "/fleet/vms/late")
    expect(page.get_by_role("link", name=re.compile("^late,"))).to_have_count(0)
    assert page.evaluate("window.unchanged")


def test_the_update_domain_under_maintenance_is_marked_in_words(
    console: WebService, admin: Callable[..., BrowserUser]
) -> None:
    page = admin(console).page
    console.service.api("POST", "/requests", {"operation": "restart", "vms": ["web-1"]})
    console.service.api("POST", "/clock/advance", {"by_s": 900})
    expect(page.get_by_role("rowheader", name="UD 1 FD 1 , under maintenance")).to_be_visible()
    expect(page.get_by_text("update domain 1 under maintenance")).to_be_visible()


def test_cells_are_large_enough_for_a_finger(shared: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(shared, viewport=PHONE, has_touch=True).page
    sizes = page.locator(".cell, .legend a").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).map(box => Math.min(box.width, box.height))"
    )
    assert min(sizes) >= 24
    page.get_by_role("link", name="web-3, running").tap()
    expect(page.get_by_role("heading", level=1)).to_contain_text("web-3")
