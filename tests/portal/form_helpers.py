"""Fills in, previews and confirms forms of the portal."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from tests.portal.conftest import Page, Visitor

Fields = Mapping[str, str | list[str]]
DB = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/db"
FORM_TYPE = "application/x-www-form-urlencoded"
EVIL = "<script>alert(1)"


def form(name: str) -> str:
    return f"/portal/forms/{name}"


def confirm(portal: Visitor, name: str, fields: Fields) -> Page:
    """What the form says will happen; nothing has."""
    before = portal.api.stored()
    page = portal.post(form(name), fields)
    assert page.status == 200, page.text
    assert portal.api.stored() == before
    return page


def hidden(page: Page) -> dict[str, list[str]]:
    """What the confirmation would send."""
    sent: dict[str, list[str]] = {}
    for name, value in re.findall(
        r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page.html.partition("<main")[2]
    ):
        sent.setdefault(html.unescape(name), []).append(html.unescape(value))
    return sent


def do(portal: Visitor, name: str, fields: Fields) -> Page:
    """As a person does it: fill in, look, confirm; then the page that it led to."""
    page = confirm(portal, name, fields)
    answer = portal.post(form(name), hidden(page))
    assert answer.status == 303, answer.text
    return portal.get(answer.headers["location"])


def asked(portal: Visitor) -> list[RequestedOperation]:
    return [request.ask for request in portal.world.store.requests()]


def started_rollout(portal: Visitor) -> str:
    rollout = Rollout(impact=RolloutImpact.REBOOT, scope_id="set:sub/lab/web")
    request = portal.world.do(portal.world.control.requests.start_rollout(rollout, who="bob"))
    portal.world.settle()
    return request.id


def a_restart(portal: Visitor, vm: str = "db") -> str:
    return portal.world.ask(RequestedOperation.RESTART, vm)[0].id
