"""The page of the standing order, and the forms that give and remove it (spec §13.6)."""

from __future__ import annotations

import csv
import io

import pytest

from tests.portal.conftest import PortalUser
from tests.portal.form_helpers import confirm, form_path, submit_form

DAY = 86_400


def test_the_empty_page_says_how_to_give_a_standing_order(portal: PortalUser) -> None:
    page = portal.get("/portal/standing-order")
    assert "There is no standing order." in page.text
    assert 'href="/portal/forms/standing-order"' in page.html


def test_a_standing_order_is_given_in_the_portal_and_its_progress_shown(portal: PortalUser) -> None:
    fields = {"within": "10d", "impact": "update", "at_once": "1"}
    asked = confirm(portal, "standing-order", fields)
    assert "is visited within 10 d, 1 at a time" in asked.text
    assert "A host is due 8 d after its last visit" in asked.text
    shown = submit_form(portal, "standing-order", fields)
    assert "The standing order is set." in shown.text
    hosts = len(portal.world.store.hosts())
    assert f"0 of {hosts} hosts visited in time, 1 visit in progress" in shown.text
    portal.world.advance(5 * DAY)
    page = portal.get("/portal/standing-order")
    assert f"{hosts} of {hosts} hosts visited in time" in page.text
    assert f'aria-valuenow="{hosts}"' in page.html
    rows = list(csv.DictReader(io.StringIO(portal.get("/portal/standing-order?as=csv").content.decode())))
    assert [row["state"] for row in rows] == ["visited"] * hosts


def test_the_page_says_which_hosts_lag_and_why_their_visit_did_not_succeed(portal: PortalUser) -> None:
    portal.api.post("/budgets", {"name": "all", "max_vms": 1})  # several VMs of a host go together
    submit_form(portal, "standing-order", {"within": "1h", "impact": "update", "at_once": "1"})
    portal.world.advance(2 * 3600)
    page = portal.get("/portal/standing-order")
    assert "late" in page.text
    assert 'the budget "all" allows 1 of ' in page.text
    assert "visited again later, after the others" in page.text


def test_a_host_whose_only_visit_failed_is_not_shown_as_visited(portal: PortalUser) -> None:
    submit_form(portal, "standing-order", {"within": "10d", "impact": "update", "at_once": "1"})
    first = portal.api.get("/rollouts/standing-order")["hosts"][0]
    portal.api.post(f"/rollouts/{first['rollout']}/abort", {})
    shown = {host["host"]: host for host in portal.api.get("/rollouts/standing-order")["hosts"]}
    failed = shown[first["host"]]
    assert (failed["state"], failed["visited_at"], failed["rollout"]) == ("failed", None, "")
    assert "failed" in portal.get("/portal/standing-order").text


def test_the_link_to_change_the_order_fills_in_its_form(portal: PortalUser) -> None:
    window = "sat,sun 02:00 4h Europe/Berlin"
    portal.api.post("/rollouts/standing-order", {"within_s": 30 * DAY, "windows": [window]})
    page = portal.get("/portal/standing-order")
    assert "/portal/forms/standing-order?within=30d&amp;impact=update&amp;at_once=1&amp;windows=sat%2Csun" in page.html
    assert f"Maintenance windows {window}" in page.text


def test_the_standing_order_is_removed_after_a_confirmation(portal: PortalUser) -> None:
    portal.api.post("/rollouts/standing-order", {"within_s": 30 * DAY})
    asked = confirm(portal, "standing-order-remove", {})
    assert "No more hosts are visited" in asked.text
    shown = submit_form(portal, "standing-order-remove", {})
    assert "The standing order is removed." in shown.text
    assert portal.post(form_path("standing-order-remove")).status == 409


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"within": "5m"}, "hosts cannot be visited within 5 min"),
        ({"within": "30d", "at_once": "0"}, "0 hosts cannot be visited at once"),
        ({"within": "30d", "windows": "someday"}, "'someday' is not a maintenance window"),
        ({"within": "30d", "notice": "1m"}, "notice"),
    ],
)
def test_a_wrong_order_is_explained_above_the_form_and_changes_nothing(
    portal: PortalUser, fields: dict[str, str], message: str
) -> None:
    before = portal.api.stored()
    page = portal.post(form_path("standing-order"), fields)
    assert page.status == 400
    assert message in page.text
    assert portal.api.stored() == before
    assert not portal.get("/portal/standing-order?as=json").json["order"]["is_set"]
