"""Every page is free of errors, accessible, and runs no foreign script.

Screenshots in light and dark, on a desktop and on a phone, are stored in tests/browser/artefacts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.accessibility import accessibility_violations
from tests.browser.conftest import ARTEFACTS, DESKTOP, FLEET, PHONE, BrowserUser, plain_base, record_errors
from tests.support.web_service import WebService, open_web_service

pytestmark = pytest.mark.portal
# Each page once; `populate` fills in the placeholders.
PAGES = {
    "overview": "/portal/",
    "fleet": "/portal/fleet",
    "fleet-filtered": "/portal/fleet?state=noticed",
    "fleet-nothing-found": "/portal/fleet?q=nobody",
    "scope": "/portal/scopes/{scope}",
    "vm": "/portal/vms/{vm}",
    "hosts": "/portal/hosts",
    "host": "/portal/hosts/host-0",
    "timeline": "/portal/timeline",
    "timeline-week": "/portal/timeline?span=7d",
    "event": "/portal/events/{event}",
    "event-over": "/portal/events/{over}",
    "history": "/portal/history",
    "rollouts": "/portal/rollouts",
    "rollout": "/portal/rollouts/{rollout}",
    "budgets": "/portal/budgets",
    "standing-order": "/portal/standing-order",
    "request": "/portal/requests/{request}",
    "clients": "/portal/clients",
    "lab": "/portal/lab",
    "form-restart": "/portal/forms/restart?vm=db-0",
    "form-rollout": "/portal/forms/rollout",
    "form-fault": "/portal/forms/fault",
    "nowhere": "/portal/nowhere",
}


@dataclass(frozen=True)
class PopulatedLab:
    """A lab with events, a rollout and a fault, and the cookies of a signed-in administrator."""

    base: str
    state: Any
    names: dict[str, str]

    def url(self, name: str) -> str:
        return self.base + PAGES[name].format(**self.names)


@pytest.fixture(scope="module")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PopulatedLab]:
    with open_web_service(tmp_path_factory.mktemp("pages"), fleet=FLEET) as console:
        names = populate(console)
        context = browser.new_context()
        BrowserUser(context.new_page(), plain_base(console)).sign_in(*console.admin_credentials)
        state = context.storage_state()
        context.close()
        yield PopulatedLab(plain_base(console), state, names)


def populate(console: WebService) -> dict[str, str]:
    """Makes a past and a pending event, a rollout, a budget, a standing order and a fault; returns ids."""
    service = console.service

    def post(path: str, body: dict[str, Any]) -> Any:
        answer = service.api("POST", path, body)
        assert answer.status < 300, answer.body
        return answer.json

    for vm in ("db-0", "db-1", "web-0"):
        service.poll(vm)
    over = post("/requests", {"operation": "restart", "vms": ["db-1"]})["events"][0]["id"]
    service.approve("db-1", over)
    service.advance(900)
    pending = post("/requests", {"operation": "redeploy", "vms": ["db-0"]})
    post("/budgets", {"name": "scopes", "max_vms": 1, "per": "scope"})
    rollout = post("/rollouts", {"impact": "reboot", "scope": "web"})
    post("/rollouts/standing-order", {"within_s": 30 * 86_400})
    post("/faults", {"kind": "slow-body", "vm": "web-1", "duration_s": 86400})
    vms = {vm["name"]: vm for vm in service.api("GET", "/fleet").json["vms"]}
    return {
        "over": over,
        "event": pending["events"][0]["id"],
        "request": pending["request"]["id"],
        "rollout": rollout["id"],
        "scope": vms["web-0"]["scope"],
        "vm": vms["db-0"]["key"],
    }


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_accessible_and_free_of_errors(
    browser: Browser, lab: PopulatedLab, name: str, colours: Any
) -> None:
    errors: list[str] = []
    viewport: Any
    for device, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
        context = browser.new_context(storage_state=lab.state, viewport=viewport, color_scheme=colours)
        page = context.new_page()
        record_errors(page, errors)
        shown = page.goto(lab.url(name))
        assert shown is not None
        assert shown.status == (404 if name == "nowhere" else 200)
        page.wait_for_function("document.fonts.status === 'loaded'")
        page.screenshot(path=ARTEFACTS / f"{name}-{colours}-{device}.png", full_page=True)
        if (colours, device) != ("dark", "phone"):  # the other combinations cover these two
            assert accessibility_violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{device}: wider than the window"
        assert page.evaluate("window.pwned") is None
        context.close()
    if name == "nowhere":
        errors = [error for error in errors if "404" not in error]
    assert errors == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_sign_in_page_is_accessible(shared: WebService, new_user: Callable[..., BrowserUser], colours: str) -> None:
    user = new_user(shared, color_scheme=colours)
    page = user.go("/portal/sign-in")
    page.screenshot(path=ARTEFACTS / f"sign-in-{colours}-desktop.png", full_page=True)
    assert accessibility_violations(page) == []
    page.get_by_label("Secret").fill("not this one")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.screenshot(path=ARTEFACTS / f"sign-in-refused-{colours}-desktop.png", full_page=True)
    assert accessibility_violations(page) == []
    user.clear_errors()  # browsers log a 401 as an error


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_form_in_a_dialog_is_accessible(shared: WebService, admin: Callable[..., BrowserUser], colours: str) -> None:
    page = admin(shared, to="/portal/vms/db-1", color_scheme=colours).page
    page.get_by_role("link", name="Delete", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert accessibility_violations(page) == []
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="confirm")).to_be_visible()
    page.screenshot(path=ARTEFACTS / f"dialog-{colours}-desktop.png")
    assert accessibility_violations(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("link", name="Delete", exact=True)).to_be_focused()


@pytest.mark.parametrize("name", [name for name in PAGES if name != "nowhere"])
def test_every_page_works_without_scripts(browser: Browser, lab: PopulatedLab, name: str) -> None:
    context = browser.new_context(storage_state=lab.state, java_script_enabled=False)
    page = context.new_page()
    page.goto(lab.url(name))
    expect(page.locator("main h1")).to_have_count(1)
    expect(page.locator("main h1")).to_be_visible()
    assert page.locator("nav a").count() >= 5
    context.close()


def test_a_list_and_a_form_work_without_scripts(console: WebService, admin: Callable[..., BrowserUser]) -> None:
    user = admin(console, java_script_enabled=False)
    page = user.page
    page.get_by_role("searchbox").fill("db-1")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("a.cell")).to_have_count(1)
    page.locator("a.cell").click()
    page.get_by_role("link", name="Restart", exact=True).click()
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Restart", exact=True).click()
    page.wait_for_url(re.compile(r"/portal/(requests|events)/"))
    assert [event["vms"] for event in console.service.api("GET", "/events").json["events"]] == [["db-1"]]


def test_foreign_scripts_do_not_run(shared: WebService, admin: Callable[..., BrowserUser]) -> None:
    user = admin(shared)
    page = user.page
    page.evaluate(
        """() => {
          const inline = document.createElement("script");
          inline.textContent = "window.pwned = 'inline'";
          document.body.append(inline);
          document.body.insertAdjacentHTML("beforeend", "<img src=x onerror=\\"window.pwned = 'handler'\\">");
          const foreign = document.createElement("script");
          foreign.src = "data:text/javascript,window.pwned='data'";
          document.body.append(foreign);
        }"""
    )
    page.wait_for_timeout(300)
    assert page.evaluate("window.pwned") is None
    assert any("Content Security Policy" in error for error in user.errors)
    user.clear_errors()


def test_pages_have_security_headers(shared: WebService, admin: Callable[..., BrowserUser]) -> None:
    user = admin(shared)
    for path in ("/portal/", "/portal/sign-in", "/portal/static/portal.js", "/portal/nowhere"):
        headers = user.page.request.get(f"{user.base}{path}").headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] in ("same-origin", "no-referrer")
        assert headers["cross-origin-opener-policy"] == "same-origin"
    (cookie,) = user.page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")


@pytest.mark.parametrize("token", [{}, {"token": ""}, {"token": "x" * 43}], ids=["none", "empty", "wrong"])
def test_a_form_without_its_token_is_rejected(
    shared: WebService, admin: Callable[..., BrowserUser], token: dict[str, str]
) -> None:
    user = admin(shared)
    before = shared.service.api("GET", "/history").json["seq"]
    for path, fields in (
        ("/portal/forms/restart", {"vm": "db-1", "confirmed": "yes"}),
        ("/portal/sign-out", {}),
    ):
        answer = user.page.request.post(f"{user.base}{path}", form={**fields, **token}, max_redirects=0)
        assert answer.status == 403, path
    assert shared.service.api("GET", "/history").json["seq"] == before
    user.page.reload()
    expect(user.page.get_by_role("button", name="Sign out")).to_be_visible()


def test_another_site_can_neither_write_nor_read(
    shared: WebService, admin: Callable[..., BrowserUser], new_user: Callable[..., BrowserUser]
) -> None:
    """From 127.0.0.1 the portal at localhost is another site."""
    user = admin(shared)
    other = user.page.context.new_page()
    other.goto(f"{user.base.replace('localhost', '127.0.0.1')}/portal/sign-in")
    other.evaluate(
        """(target) => {
          const form = document.createElement("form");
          form.method = "post"; form.action = target; document.body.append(form); form.submit();
        }""",
        f"{user.base}/portal/sign-out",
    )
    user.page.reload()
    expect(user.page.get_by_role("button", name="Sign out")).to_be_visible()
    read = other.evaluate("(url) => fetch(url).then(() => 'read', () => 'refused')", f"{user.base}/portal/")
    assert read == "refused"
