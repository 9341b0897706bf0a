"""What holds for every page: nothing goes wrong in a browser, everybody can read and reach it, no foreign script runs.

Each is kept as pictures, in light and dark, on a desktop and on a phone: tests/portal/artefacts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import ARTEFACTS, DESKTOP, FLEET, PHONE, Looker, plain_base, watch
from tests.support.web_service import WebService, open_web_service

pytestmark = pytest.mark.portal
BAD = ("serious", "critical")
# Each page once, as somebody meets it; `{}` is filled from what happened in the lab.
PAGES = {
    "fleet": "/portal/",
    "fleet-filtered": "/portal/?state=noticed",
    "fleet-nothing-found": "/portal/?q=nobody",
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
    "request": "/portal/requests/{request}",
    "clients": "/portal/clients",
    "lab": "/portal/lab",
    "form-restart": "/portal/forms/restart?vm=db-0",
    "form-rollout": "/portal/forms/rollout",
    "form-fault": "/portal/forms/fault",
    "nowhere": "/portal/nowhere",
}


@dataclass(frozen=True)
class Place:
    """A lab in which something of everything happened, and the cookies of somebody who may do everything."""

    base: str
    state: Any
    names: dict[str, str]

    def url(self, name: str) -> str:
        return self.base + PAGES[name].format(**self.names)


@pytest.fixture(scope="module")
def place(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with open_web_service(tmp_path_factory.mktemp("pages"), fleet=FLEET) as console:
        names = happened(console)
        context = browser.new_context()
        Looker(context.new_page(), plain_base(console)).sign_in(*console.admin_credentials)
        state = context.storage_state()
        context.close()
        yield Place(plain_base(console), state, names)


def happened(console: WebService) -> dict[str, str]:
    """One event that is over, one that is pending, a rollout under way, a fault."""
    service = console.service

    def asked(path: str, body: dict[str, Any]) -> Any:
        answer = service.api("POST", path, body)
        assert answer.status < 300, answer.body
        return answer.json

    for vm in ("db-0", "db-1", "web-0"):
        service.poll(vm)
    over = asked("/requests", {"ask": "restart", "vms": ["db-1"]})["events"][0]["id"]
    service.approve("db-1", over)
    service.advance(900)
    pending = asked("/requests", {"ask": "redeploy", "vms": ["db-0"]})
    rollout = asked("/rollouts", {"impact": "reboot", "scope": "web"})
    asked("/faults", {"kind": "slow-body", "vm": "web-1", "for_s": 86400})
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
def test_every_page_is_accessible_and_free_of_errors(browser: Browser, place: Place, name: str, colours: Any) -> None:
    complaints: list[str] = []
    for device, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
        context = browser.new_context(storage_state=place.state, viewport=viewport, color_scheme=colours)  # type: ignore[arg-type]
        page = context.new_page()
        watch(page, complaints)
        shown = page.goto(place.url(name))
        assert shown is not None
        assert shown.status == (404 if name == "nowhere" else 200)
        page.wait_for_function("document.fonts.status === 'loaded'")
        page.screenshot(path=ARTEFACTS / f"{name}-{colours}-{device}.png", full_page=True)
        if (colours, device) != ("dark", "phone"):  # what these two have to say, the others have said
            assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{device}: wider than the window"
        assert page.evaluate("window.pwned") is None
        context.close()
    if name == "nowhere":
        complaints = [one for one in complaints if "404" not in one]
    assert complaints == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_sign_in_page_is_accessible(shared: WebService, somebody: Callable[..., Looker], colours: str) -> None:
    looker = somebody(shared, color_scheme=colours)
    page = looker.go("/portal/sign-in")
    page.screenshot(path=ARTEFACTS / f"sign-in-{colours}-desktop.png", full_page=True)
    assert faults(page) == []
    page.get_by_label("Secret").fill("not this one")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.screenshot(path=ARTEFACTS / f"sign-in-refused-{colours}-desktop.png", full_page=True)
    assert faults(page) == []
    looker.forgive()  # a browser holds 401 to be worth a complaint


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_form_in_a_dialog_is_accessible(shared: WebService, admin: Callable[..., Looker], colours: str) -> None:
    page = admin(shared, to="/portal/vms/db-1", color_scheme=colours).page
    page.get_by_role("link", name="Delete", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert faults(page) == []
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="confirm")).to_be_visible()
    page.screenshot(path=ARTEFACTS / f"dialog-{colours}-desktop.png")
    assert faults(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("link", name="Delete", exact=True)).to_be_focused()


def faults(page: Page) -> list[str]:
    """What axe-core holds to be serious."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {[node['target'] for node in one['nodes']][:5]}"
        for one in found
        if one["impact"] in BAD
    ]


@pytest.mark.parametrize("name", [name for name in PAGES if name != "nowhere"])
def test_every_page_works_without_scripts(browser: Browser, place: Place, name: str) -> None:
    context = browser.new_context(storage_state=place.state, java_script_enabled=False)
    page = context.new_page()
    page.goto(place.url(name))
    expect(page.locator("main h1")).to_have_count(1)
    expect(page.locator("main h1")).to_be_visible()
    assert page.locator("nav a").count() >= 5
    context.close()


def test_a_list_and_a_form_work_without_scripts(console: WebService, admin: Callable[..., Looker]) -> None:
    looker = admin(console, java_script_enabled=False)
    page = looker.page
    page.get_by_role("searchbox").fill("db-1")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("a.cell")).to_have_count(1)
    page.locator("a.cell").click()
    page.get_by_role("link", name="Restart", exact=True).click()
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Restart", exact=True).click()
    page.wait_for_url(re.compile(r"/portal/(requests|events)/"))
    assert [event["vms"] for event in console.service.api("GET", "/events").json["events"]] == [["db-1"]]


def test_foreign_scripts_do_not_run(shared: WebService, admin: Callable[..., Looker]) -> None:
    looker = admin(shared)
    page = looker.page
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
    assert any("Content Security Policy" in one for one in looker.complaints)
    looker.forgive()


def test_pages_have_security_headers(shared: WebService, admin: Callable[..., Looker]) -> None:
    looker = admin(shared)
    for path in ("/portal/", "/portal/sign-in", "/portal/static/portal.js", "/portal/nowhere"):
        headers = looker.page.request.get(f"{looker.base}{path}").headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] in ("same-origin", "no-referrer")
        assert headers["cross-origin-opener-policy"] == "same-origin"
    (cookie,) = looker.page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")


@pytest.mark.parametrize("token", [{}, {"token": ""}, {"token": "x" * 43}], ids=["none", "empty", "wrong"])
def test_a_form_without_its_token_is_rejected(
    shared: WebService, admin: Callable[..., Looker], token: dict[str, str]
) -> None:
    looker = admin(shared)
    before = shared.service.api("GET", "/history").json["seq"]
    for path, fields in (
        ("/portal/forms/restart", {"vm": "db-1", "confirmed": "yes"}),
        ("/portal/sign-out", {}),
    ):
        answer = looker.page.request.post(f"{looker.base}{path}", form={**fields, **token}, max_redirects=0)
        assert answer.status == 403, path
    assert shared.service.api("GET", "/history").json["seq"] == before
    looker.page.reload()
    expect(looker.page.get_by_role("button", name="Sign out")).to_be_visible()


def test_another_site_can_neither_write_nor_read(
    shared: WebService, admin: Callable[..., Looker], somebody: Callable[..., Looker]
) -> None:
    """From 127.0.0.1 the portal at localhost is another site."""
    looker = admin(shared)
    other = looker.page.context.new_page()
    other.goto(f"{looker.base.replace('localhost', '127.0.0.1')}/portal/sign-in")
    other.evaluate(
        """(target) => {
          const form = document.createElement("form");
          form.method = "post"; form.action = target; document.body.append(form); form.submit();
        }""",
        f"{looker.base}/portal/sign-out",
    )
    looker.page.reload()
    expect(looker.page.get_by_role("button", name="Sign out")).to_be_visible()
    read = other.evaluate("(url) => fetch(url).then(() => 'read', () => 'refused')", f"{looker.base}/portal/")
    assert read == "refused"
