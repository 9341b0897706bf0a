"""Fills in, previews and confirms forms of the portal."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from tests.portal.conftest import Page, PortalUser

Fields = Mapping[str, str | list[str]]
DB = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/db"
FORM_TYPE = "application/x-www-form-urlencoded"
EVIL = "<script>alert(1)"


def form_path(name: str) -> str:
    return f"/portal/forms/{name}"


def confirm(portal: PortalUser, name: str, fields: Fields) -> Page:
    """Submits a form for its confirmation; checks that it changes nothing."""
    before = portal.api.stored()
    page = portal.post(form_path(name), fields)
    assert page.status == 200, page.text
    assert portal.api.stored() == before
    return page


def hidden_fields(page: Page) -> dict[str, list[str]]:
    """The hidden fields of a confirmation."""
    sent: dict[str, list[str]] = {}
    for name, value in re.findall(
        r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page.html.partition("<main")[2]
    ):
        sent.setdefault(html.unescape(name), []).append(html.unescape(value))
    return sent


def submit_form(portal: PortalUser, name: str, fields: Fields) -> Page:
    """Fills in and confirms a form; returns the page that it leads to."""
    page = confirm(portal, name, fields)
    answer = portal.post(form_path(name), hidden_fields(page))
    assert answer.status == 303, answer.text
    return portal.get(answer.headers["location"])


def requested_operations(portal: PortalUser) -> list[RequestedOperation]:
    return [request.operation for request in portal.world.store.requests()]


def start_rollout(portal: PortalUser) -> str:
    rollout = Rollout(impact=RolloutImpact.REBOOT, scope_id="set:sub/lab/web")
    request = portal.world.do(portal.world.control.rollout_requests.start(rollout, who="bob"))
    portal.world.settle()
    return request.id


def request_restart(portal: PortalUser, vm: str = "db") -> str:
    return portal.world.ask(RequestedOperation.RESTART, vm)[0].id
