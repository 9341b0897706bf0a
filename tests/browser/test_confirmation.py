"""A confirmation is safe: nobody confirms by accident what they have not read."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.accessibility import accessibility_violations
from tests.browser.conftest import ARTEFACTS, FLEET, PHONE, BrowserUser
from tests.support.web_service import WebService, open_web_service

pytestmark = pytest.mark.portal
FORM = "/portal/forms/restart?vm=db-0"
HEADING = re.compile(": confirm$")


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebService]:
    """A lab that the tests of this file share."""
    with open_web_service(tmp_path_factory.mktemp("confirmation"), fleet=FLEET) as console:
        yield console


@pytest.fixture
def event(console: WebService) -> str:
    """The id of a scheduled event of db-1 that nobody has approved."""
    answer = console.service.api("POST", "/requests", {"operation": "restart", "vms": ["db-1"]})
    if answer.status < 300:
        return str(answer.json["events"][0]["id"])
    events = console.service.api("GET", "/events").json["events"]
    return next(str(event["id"]) for event in events if event["vms"] == ["db-1"])


def requests(console: WebService) -> int:
    """How many requests the service has accepted."""
    history = console.service.api("GET", "/history?limit=10000").json["entries"]
    return sum(entry["kind"] == "requested" for entry in history)


def approved_at(console: WebService, event: str) -> Any:
    return console.service.api("GET", f"/events/{event}").json["approved_at"]


def heading(page: Page) -> Locator:
    return page.get_by_role("heading", name=HEADING)


@contextmanager
def slow_answers(page: Page) -> Iterator[Callable[[], None]]:
    """Holds the answers of submitted forms back until the test releases them."""
    released = threading.Event()
    held: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.method == "POST" and not released.is_set():
            held.append(route)
        else:
            route.continue_()

    def release() -> None:
        released.set()
        for route in held:
            route.continue_()

    page.route("**/portal/forms/**", hold)
    yield release
    page.unroute("**/portal/forms/**")


def open_form(console: WebService, admin: Callable[..., BrowserUser], *, in_dialog: bool, **options: Any) -> Page:
    """The restart form of a VM, as a dialog of the VM's page or as a page of its own."""
    page = admin(console, to="/portal/vms/db-0" if in_dialog else FORM, **options).page
    if in_dialog:
        page.get_by_role("link", name="Restart", exact=True).click()
    expect(page.get_by_role("button", name="Preview")).to_be_visible()
    return page


in_both = pytest.mark.parametrize("in_dialog", [True, False], ids=["dialog", "page"])


@in_both
def test_enter_held_or_pressed_again_confirms_nothing(
    console: WebService, admin: Callable[..., BrowserUser], in_dialog: bool
) -> None:
    before = requests(console)
    page = open_form(console, admin, in_dialog=in_dialog)
    page.get_by_label("Notice", exact=True).focus()
    for _ in range(5):  # without a release in between, the browser reports repeated keys
        page.keyboard.down("Enter")
    expect(heading(page)).to_be_focused()
    for _ in range(5):
        page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    expect(heading(page)).to_be_focused()
    assert requests(console) == before


@in_both
def test_keys_pressed_during_a_slow_answer_confirm_nothing(
    console: WebService, admin: Callable[..., BrowserUser], in_dialog: bool
) -> None:
    before = requests(console)
    page = open_form(console, admin, in_dialog=in_dialog)
    with slow_answers(page) as release:
        page.get_by_label("Notice", exact=True).focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        page.keyboard.down("Enter")
        release()
        expect(heading(page)).to_be_focused()
        page.keyboard.down("Enter")
        page.keyboard.up("Enter")
        page.keyboard.press("Enter")
    expect(heading(page)).to_be_focused()
    assert requests(console) == before


def test_enter_held_on_a_link_confirms_nothing(
    console: WebService, admin: Callable[..., BrowserUser], event: str
) -> None:
    page = admin(console, to=f"/portal/events/{event}").page
    page.get_by_role("link", name="Approve").focus()
    for _ in range(5):
        page.keyboard.down("Enter")
    expect(heading(page)).to_be_focused()
    for _ in range(5):
        page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    assert approved_at(console, event) is None


# The confirm button is where the pointer is, the worst place for a second click. It takes no clicks for longer than
# usual, so that the test does not depend on the speed of the machine.
BUTTON_AT_POINTER = """
.confirm-bar .confirm-button.confirm-button {{
  position: fixed; left: {left}px; top: {top}px; width: 90px; height: 50px; animation-duration: 60s !important;
}}
"""


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_double_click_confirms_nothing(console: WebService, admin: Callable[..., BrowserUser], scripts: bool) -> None:
    before = requests(console)
    user = admin(console, to=f"/portal/forms/restart?vm=web-{int(scripts)}", java_script_enabled=scripts)
    page = user.page
    box = page.get_by_role("button", name="Preview").bounding_box()
    assert box is not None
    x, y = box["x"] + 5, box["y"] + 5
    style = page.request.get(f"{user.base}/portal/static/form.css").text()
    style += BUTTON_AT_POINTER.format(left=x - 10, top=y - 10)
    page.route("**/static/form.css", lambda route: route.fulfill(body=style, content_type="text/css"))
    page.mouse.move(x, y)
    page.mouse.down(click_count=1)
    page.mouse.up(click_count=1)
    heading(page).wait_for()
    page.wait_for_load_state()
    assert contains(page.get_by_role("button", name="Restart", exact=True), x, y)
    page.mouse.down(click_count=2)
    page.mouse.up(click_count=2)
    expect(heading(page)).to_be_visible()
    assert requests(console) == before


def contains(element: Locator, x: float, y: float) -> bool:
    box = element.bounding_box()
    assert box is not None
    return bool(box["x"] < x < box["x"] + box["width"] and box["y"] < y < box["y"] + box["height"])


def test_a_double_click_on_a_link_opens_one_confirmation(
    console: WebService, admin: Callable[..., BrowserUser], event: str
) -> None:
    page = admin(console, to=f"/portal/events/{event}").page
    page.get_by_role("link", name="Approve").dblclick()
    expect(heading(page)).to_be_focused()
    assert approved_at(console, event) is None


def test_a_double_click_on_the_confirm_button_makes_one_request(
    console: WebService, admin: Callable[..., BrowserUser]
) -> None:
    before = requests(console)
    page = admin(console, to="/portal/vms/web-2").page
    page.get_by_role("link", name="Power off").click()
    page.get_by_role("button", name="Power off").dblclick()
    page.wait_for_url(re.compile(r"/portal/requests/"))
    assert requests(console) == before + 1


@pytest.mark.parametrize(("device", "in_dialog"), [("desktop", False), ("phone", True)])
def test_a_confirmation_opens_at_its_top_and_keeps_its_buttons_in_view(
    shared: WebService, admin: Callable[..., BrowserUser], device: str, in_dialog: bool
) -> None:
    viewport = PHONE if device == "phone" else {"width": 1000, "height": 500}
    to = "/portal/rollouts" if in_dialog else "/portal/forms/rollout"
    page = admin(shared, to=to, viewport=viewport).page
    if in_dialog:
        page.get_by_role("link", name="Start a rollout").first.click()
    page.get_by_label("All hosts of the fleet").check()
    page.get_by_role("button", name="Preview").click()
    expect(heading(page)).to_be_focused()
    confirm = page.get_by_role("button", name="Start", exact=True)
    for position in ("top", "bottom"):
        if position == "bottom":
            scroll_to_end(page)
        else:
            expect(heading(page)).to_be_in_viewport()
            expect(page.get_by_role("list", name="Warnings")).to_be_in_viewport()
        expect(confirm).to_be_in_viewport(ratio=1)
        expect(page.locator(".confirm-bar .summary")).to_contain_text(re.compile("VMs in . batches"))
        expect(page.locator(".confirm-bar .summary")).to_be_in_viewport()
    page.screenshot(path=ARTEFACTS / f"confirmation-{'dialog' if in_dialog else 'page'}-{device}.png")
    assert accessibility_violations(page) == []


def scroll_to_end(page: Page) -> None:
    page.evaluate(
        "() => { const d = document.querySelector('dialog[open]'); (d ?? document.scrollingElement).scrollTop = 1e6; }"
    )


def test_warnings_come_before_everything_else(
    console: WebService, admin: Callable[..., BrowserUser], event: str
) -> None:
    page = admin(console, to="/portal/forms/redeploy?vm=db-1&notice=1m").page
    page.get_by_label("Allow a shorter notice").check()
    page.get_by_role("button", name="Preview").click()
    warnings = page.get_by_role("list", name="Warnings")
    expect(warnings.get_by_role("listitem")).to_contain_text(
        [
            "loses its temporary disk",
            f"It replaces 1 pending event, which would be withdrawn: {event}",
            "No handler is polling in db-1",
            "1 Redeploy has 1 min of notice, less than the minimum of 10 min that Azure gives.",
        ]
    )
    assert page.evaluate("document.querySelector('.confirm h1').nextElementSibling.id") == "warnings"
    expect(page.get_by_role("link", name="4 warnings")).to_be_visible()
