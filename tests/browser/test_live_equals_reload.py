"""An open page shows the same as a page loaded now."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import BrowserUser
from tests.support.service_process import eventually
from tests.support.web_service import WebService

pytestmark = pytest.mark.portal
PATHS = (
    "/portal/",
    "/portal/fleet",
    "/portal/fleet?state=noticed",
    "/portal/scopes/{scope}",
    "/portal/vms/db-0",
    "/portal/vms/web-0",
    "/portal/hosts",
    "/portal/hosts/{host}",
    "/portal/timeline",
    "/portal/events/{event}",
    "/portal/history",
    "/portal/rollouts",
    "/portal/rollouts/{rollout}",
    "/portal/requests/{request}",
    "/portal/clients",
    "/portal/lab",
)


def text_of(page: Page) -> str:
    """The visible text, and the labels for screen readers."""
    main = page.locator("main")
    labels = main.locator("[aria-label]").evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))")
    return "\n".join([re.sub(r"[ \t]+", " ", main.inner_text()), *labels])


def post(console: WebService, path: str, body: dict[str, Any]) -> Any:
    answer = console.service.api("POST", path, body)
    assert answer.status < 300, answer.body
    return answer.json


@pytest.mark.parametrize("path", PATHS)
def test_an_open_page_shows_what_a_reloaded_one_does(
    console: WebService, admin: Callable[..., BrowserUser], path: str
) -> None:
    post(console, "/clock/speed", {"speed": 0})
    rollout = post(console, "/rollouts", {"impact": "reboot", "scope": "web"})
    first = post(console, "/requests", {"operation": "restart", "vms": ["db-0"]})
    vms = {vm["name"]: vm for vm in console.service.api("GET", "/fleet").json["vms"]}
    names = {
        "scope": vms["web-0"]["scope"],
        "host": vms["db-0"]["host"],
        "event": first["events"][0]["id"],
        "request": first["request"]["id"],
        "rollout": rollout["id"],
    }
    user = admin(console)
    page = user.go(path.format(**names))
    before = text_of(page)

    for event in console.service.api("GET", "/events").json["events"]:
        post(console, f"/events/{event['id']}/approve", {})
    post(console, "/faults", {"kind": "slow-body", "vm": "db-0", "count": 1000})
    console.service.advance(300)
    post(console, "/requests", {"operation": "redeploy", "vms": ["db-1"]})
    fresh = page.context.new_page()
    fresh.goto(page.url)
    after = text_of(fresh)
    fresh.close()
    assert after != before
    try:
        eventually(lambda: text_of(page) == after, within_s=6)
    except AssertionError:
        assert text_of(page) == after
