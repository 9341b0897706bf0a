"""The command palette and the keyboard shortcuts, with the keyboard and as a screen reader sees them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.accessibility import accessibility_violations
from tests.browser.conftest import ARTEFACTS, PHONE, BrowserUser
from tests.support.web_service import WebService

pytestmark = pytest.mark.portal


def test_a_vm_is_a_few_keys_away(shared: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(shared, to="/portal/lab").page
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox")
    expect(field).to_be_focused()
    page.keyboard.type("db-1")
    page.keyboard.press("Enter")  # at once: it waits for the results of what was typed
    page.wait_for_url("**/portal/vms/**/db-1")
    expect(page.get_by_role("heading", name="db-1", level=1)).to_be_visible()


def test_the_palette_is_a_combobox_with_a_list_of_options(
    shared: WebService, admin: Callable[..., BrowserUser]
) -> None:
    page = admin(shared, to="/portal/lab").page
    button = page.get_by_role("button", name="Find")
    button.click()
    field = page.get_by_role("combobox")
    expect(page.get_by_role("dialog", name="Command palette")).to_be_visible()
    expect(page.get_by_role("option").first).to_have_attribute("aria-selected", "true")
    page.screenshot(path=ARTEFACTS / "palette-light-desktop.png")
    assert accessibility_violations(page) == []
    field.fill("web-")
    expect(page.get_by_role("option", selected=True)).to_contain_text("web-0")
    chosen = field.get_attribute("aria-activedescendant")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("option", selected=True)).to_contain_text("web-1")
    assert field.get_attribute("aria-activedescendant") != chosen
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # from the first to the last
    expect(page.get_by_role("option").last).to_have_attribute("aria-selected", "true")
    field.fill("zzz")
    expect(page.get_by_role("status").filter(has_text="No results")).to_have_text('No results for "zzz"')
    expect(field).to_be_focused()
    for _ in range(3):  # the focus stays in the dialog
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main, header') === null")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()


def test_the_palette_fills_in_a_form(shared: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(shared, to="/portal/lab").page
    page.keyboard.press("Control+k")
    page.keyboard.type("restart db-0")
    expect(page.get_by_role("option", name=re.compile("Restart db-0"))).to_be_visible()
    page.keyboard.press("Enter")
    page.wait_for_url("**/portal/forms/restart?vm=*")
    expect(page.get_by_role("checkbox", name=re.compile("^db-0"))).to_be_checked()


def test_two_keys_open_a_page_but_never_in_a_field(shared: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(shared, to="/portal/clients").page
    page.keyboard.press("/")
    search = page.get_by_role("searchbox")
    expect(search).to_be_focused()
    page.keyboard.type("gt?/")
    expect(search).to_have_value("gt?/")
    assert page.url.endswith("/portal/clients")
    search.blur()
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/portal/timeline")


def test_shortcuts_are_listed_and_can_be_turned_off(shared: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(shared, to="/portal/lab").page
    page.keyboard.press("?")
    help_dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(help_dialog).to_contain_text("Open Timeline")
    page.screenshot(path=ARTEFACTS / "shortcuts-light-desktop.png")
    assert accessibility_violations(page) == []
    help_dialog.get_by_role("checkbox").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    page.keyboard.press("?")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.keyboard.press("Control+k")  # stays
    expect(page.get_by_role("dialog", name="Command palette")).to_be_visible()
    expect(help_dialog).to_have_count(0)
    assert page.url.endswith("/portal/lab")


def test_the_palette_fits_on_a_phone_in_the_dark(shared: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(shared, to="/portal/lab", viewport=PHONE, color_scheme="dark").page
    page.get_by_role("button", name="Find").click()
    page.get_by_role("combobox").fill("db")
    expect(page.get_by_role("option", name=re.compile("db-0")).first).to_be_visible()
    page.screenshot(path=ARTEFACTS / "palette-dark-phone.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert accessibility_violations(page) == []
