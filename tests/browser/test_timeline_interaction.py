"""Moving and zooming the timeline by wheel, drag and keys; the address holds the time in view."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import FLEET, PHONE, BrowserUser
from tests.support.web_service import WebService, open_web_service

pytestmark = pytest.mark.portal


@pytest.fixture(scope="module")
def restarting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebService]:
    """A lab with one event: a restart of db-0 is scheduled."""
    with open_web_service(tmp_path_factory.mktemp("noticed"), fleet=FLEET) as console:
        request_restart(console, "db-0")
        yield console


def request_restart(console: WebService, vm: str) -> str:
    response = console.service.api("POST", "/requests", {"operation": "restart", "vms": [vm]}).json
    return str(response["events"][0]["id"])


def query_params(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def span_s(page: Page) -> float:
    return float(page.locator("#timeline").get_attribute("data-span") or 0)


def left_edge(page: Page, mark: str) -> float:
    """The position of a mark in percent."""
    return float((page.locator(f".plot .mark.{mark}").first.get_attribute("x") or "").rstrip("%"))


def test_the_wheel_zooms_around_the_pointer(restarting: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(restarting, to="/portal/timeline?span=6h").page
    page.locator(".axis.wide").hover()
    page.mouse.wheel(0, -200)
    page.wait_for_url(re.compile(r"span=\d+s"))
    expect(page.locator("#timeline")).not_to_have_attribute("data-span", "21600.0")
    assert span_s(page) < 21600


def test_a_drag_moves_the_timeline_and_is_not_a_click(
    restarting: WebService, admin: Callable[..., BrowserUser]
) -> None:
    page = admin(restarting, to="/portal/timeline").page
    before = left_edge(page, "not-before")
    box = page.locator(".plot").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * 0.6, box["y"] + 60  # on the bar, which is a link
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - box["width"] * 0.2, y, steps=6)
    assert left_edge(page, "not-before") == pytest.approx(
        before - 20, abs=1
    )  # immediately, before the page is fetched again
    page.mouse.up()
    page.wait_for_url(re.compile("at=20"))
    expect(page.locator("#timeline")).to_have_attribute("data-follows", "no")
    assert left_edge(page, "not-before") == pytest.approx(before - 20, abs=1)
    address = page.url
    page.reload()
    assert page.url == address
    assert left_edge(page, "not-before") == pytest.approx(before - 20, abs=1)


def test_keys_zoom_move_and_return_to_the_current_time(
    restarting: WebService, admin: Callable[..., BrowserUser]
) -> None:
    page = admin(restarting, to="/portal/timeline").page
    chart = page.locator("#chart")
    chart.focus()
    page.keyboard.press("-")
    expect(page.locator("#timeline")).to_have_attribute("data-span", "7200.0")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile("at=20"))
    page.keyboard.press("Home")
    page.wait_for_url(lambda url: "at=" not in url)
    page.keyboard.press("+")
    page.wait_for_url(re.compile("span=1h"))
    assert query_params(page) == {"span": "1h"}
    expect(chart).to_be_focused()


def test_a_bar_appears_grows_and_ends_without_a_reload(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    page = admin(console, to="/portal/timeline").page
    expect(page.get_by_text("No events yet.")).to_be_visible()
    page.evaluate("window.unchanged = true")
    event_id = request_restart(console, "db-0")
    bar = page.locator(f'[data-event="{event_id}"]')
    expect(bar).to_have_class("bar scheduled")
    line = page.locator(".plot .now")
    console.service.api("POST", "/clock/speed", {"speed": 60})
    before = line.get_attribute("x1") or ""
    expect(line).not_to_have_attribute("x1", before)
    console.service.api("POST", "/clock/speed", {"speed": 0})
    console.approve_all("db-0")
    expect(bar).to_have_class("bar started")
    expect(bar.locator(".mark.approved title")).to_have_text(re.compile("approved by db-0"))
    console.service.advance(120)
    expect(bar).to_have_class("bar finished")
    assert page.evaluate("window.unchanged")


def test_labels_stay_visible_on_a_phone_while_a_finger_moves_the_timeline(
    restarting: WebService, admin: Callable[..., BrowserUser]
) -> None:
    page = admin(restarting, to="/portal/timeline", viewport=PHONE, has_touch=True, is_mobile=True).page
    label = page.locator(".labels").get_by_role("link", name="db-0", exact=True)
    expect(label).to_be_in_viewport()
    box = page.locator(".plot").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * 0.8, box["y"] + 50
    touch = page.context.new_cdp_session(page)
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for step in range(1, 9):
        point = {"x": x - step * box["width"] * 0.05, "y": y}
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_url(re.compile("at=20"))
    expect(label).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_links_move_and_zoom_the_timeline_without_scripts(
    restarting: WebService, admin: Callable[..., BrowserUser]
) -> None:
    page = admin(restarting, to="/portal/timeline", java_script_enabled=False).page
    page.get_by_role("link", name="6h").click()
    assert query_params(page) == {"span": "6h"}
    page.get_by_role("link", name="Earlier").click()
    assert set(query_params(page)) == {"span", "at"}
    page.get_by_role("link", name="Now", exact=True).click()
    page.locator("tbody").get_by_role("link", name="Reboot of db-0").click()
    page.wait_for_url("**/portal/events/*")
    expect(page.get_by_role("heading", name="Reboot of db-0: user restart")).to_be_visible()
