"""The pages of one VM, event, scope and rollout: countdowns, copied ids, navigation, and bounded heights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.accessibility import accessibility_violations
from tests.browser.conftest import ARTEFACTS, DESKTOP, PHONE, BrowserUser, plain_base, record_errors
from tests.support.web_service import WebService, open_web_service

pytestmark = pytest.mark.portal
MAX_HEIGHT = 10_000  # pixels of the longest page
LARGE_FLEET = """
[defaults]
resource_group = "shop"
location = "westeurope"

[[hosts]]
name = "host-{n}"
count = 30

[[availability_sets]]
name = "web"
update_domains = 5
fault_domains = 3

[[vms]]
name = "web-{n}"
count = 150
availability_set = "web"

[[scale_sets]]
name = "pool"
count = 850

[[vms]]
name = "db-{n}"
count = 2000
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebService]:
    """A lab of 3,000 VMs with a rollout over all of them, whose first wave is done."""
    with open_web_service(tmp_path_factory.mktemp("large"), fleet=LARGE_FLEET) as console:
        console.service.api("POST", "/clock/speed", {"speed": 0})
        hosts = [f"host-{number}" for number in range(30)]
        answer = console.service.api("POST", "/rollouts", {"impact": "reboot", "hosts": hosts})
        assert answer.status < 300, answer.body
        console.service.advance(1000)
        yield console


def test_no_page_about_3000_vms_is_too_long_and_waves_open_one_by_one(browser: Browser, large: WebService) -> None:
    base, errors = plain_base(large), list[str]()
    vms = {vm["name"]: vm for vm in large.service.api("GET", "/fleet").json["vms"]}
    rollout = large.service.api("GET", "/rollouts").json["rollouts"][0]
    event = next(one for one in large.service.api("GET", "/events").json["events"] if one["vms"][0].startswith("web-"))
    assert rollout["tally"]["total"] == 3000
    pages = {
        "rollout": f"/portal/rollouts/{rollout['id']}",
        "scope": f"/portal/scopes/{vms['web-0']['scope']}",
        "host": f"/portal/hosts/{vms['web-0']['host']}",
        "event": f"/portal/events/{event['id']}",
        "vm": f"/portal/vms/{vms['web-0']['key']}",
    }
    viewport: Any
    state = None
    for device, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
        context = browser.new_context(viewport=viewport, storage_state=state)
        page = context.new_page()
        record_errors(page, errors)
        if state is None:
            BrowserUser(page, base).sign_in(*large.admin_credentials)
            state = context.storage_state()
        for name, path in pages.items():
            page.goto(f"{base}{path}")
            page.screenshot(path=ARTEFACTS / f"large-{name}-{device}.png", full_page=True)
            page.evaluate("document.querySelectorAll('main details').forEach((one) => { one.open = true; })")
            height = page.evaluate("document.documentElement.scrollHeight")
            assert height < MAX_HEIGHT, f"{name} on a {device}: {height}"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} on a {device}"
        page.goto(f"{base}{pages['rollout']}")
        assert accessibility_violations(page) == []
        open_waves(page)
        context.close()
    assert errors == []


def open_waves(page: Page) -> None:
    """Goes from the current wave of a rollout to the second page of its first wave."""
    expect(page.get_by_role("heading", name="Events of batch 2")).to_be_visible()
    page.get_by_role("link", name="Batch 1").click()
    expect(page.get_by_role("heading", name="Events of batch 1")).to_be_visible()
    page.get_by_role("navigation", name="Pages of events").get_by_role("link", name="Next").click()
    expect(page.get_by_text("Page 2 of")).to_be_visible()
    expect(page.locator("main tbody .event-state.finished").first).to_be_visible()


def test_a_countdown_runs_in_lab_time(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    console.service.api("POST", "/clock/speed", {"speed": 0})
    event = console.service.api("POST", "/requests", {"operation": "restart", "vms": ["db-0"]}).json["events"][0]["id"]
    page = admin(console, to=f"/portal/events/{event}").page
    countdown = page.locator(".status-card .countdown")
    expect(countdown).to_have_text(re.compile("^15 min( 1 s)?$"))
    console.service.api("POST", "/clock/speed", {"speed": 1})
    expect(countdown).to_have_text(re.compile("^14 min 5. s$"))
    console.service.api("POST", "/clock/speed", {"speed": 0})
    console.service.advance(300)
    expect(countdown).to_have_text(re.compile("^9 min"))
    console.service.advance(900)
    expect(page.locator(".status-card .event-state")).to_have_text("finished")
    expect(countdown).to_have_count(0)


def test_a_short_id_is_copied_whole(shared: WebService, admin: Callable[..., BrowserUser]) -> None:
    answer = shared.service.api("POST", "/requests", {"operation": "restart", "vms": ["web-5"]})
    event = answer.json["events"][0]["id"]
    user = admin(shared, to=f"/portal/events/{event}")
    page = user.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=user.base)
    code = page.locator("dl.facts code.id").first
    expect(code).to_have_text(event)
    box = code.bounding_box()
    assert box is not None
    assert box["width"] < 100, "it looks short"
    page.get_by_role("button", name="Copy the id of the event").click()
    expect(page.get_by_role("status").filter(has_text="Copied")).to_have_count(1)
    assert page.evaluate("navigator.clipboard.readText()") == event
    code.evaluate("(code) => getSelection().selectAllChildren(code)")
    assert page.evaluate("getSelection().toString()") == event


@pytest.mark.parametrize(
    ("path", "tab", "trail"),
    [
        ("/portal/vms/web-0", "Fleet", ["Fleet", "shop", "web", "web-0"]),
        ("/portal/scopes/web", "Fleet", ["Fleet", "shop", "web"]),
        ("/portal/hosts/host-0", "Hosts", ["Hosts", "host-0"]),
    ],
)
def test_a_detail_page_says_where_it_is(
    shared: WebService, admin: Callable[..., BrowserUser], path: str, tab: str, trail: list[str]
) -> None:
    page = admin(shared, to=path).page
    expect(page.get_by_role("navigation", name="Breadcrumb").get_by_role("listitem")).to_have_text(trail)
    expect(page.locator("header nav [aria-current]")).to_have_text([tab])
