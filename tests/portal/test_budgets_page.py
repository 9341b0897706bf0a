"""The page of budgets, and the forms that set and remove one (spec §13.2)."""

from __future__ import annotations

import csv
import io

import pytest

from tests.portal.conftest import PortalUser
from tests.portal.form_helpers import confirm, form_path, start_rollout, submit_form

DB = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/db"


def test_the_empty_page_of_budgets_says_how_to_set_one(portal: PortalUser) -> None:
    page = portal.get("/portal/budgets")
    assert "There are no budgets." in page.text
    assert 'href="/portal/forms/budget-set"' in page.html


def test_a_budget_is_set_in_the_portal_and_shown_with_its_use(portal: PortalUser) -> None:
    page = confirm(portal, "budget-set", {"name": "all", "at_most": "1", "per": "everything"})
    assert 'Budget "all": at most 1 VM out of service at once.' in page.text
    shown = submit_form(portal, "budget-set", {"name": "all", "at_most": "1", "per": "everything"})
    assert "The budget is set." in shown.text
    assert "all 1 VM all VMs" in shown.text
    assert "0 of 1" in shown.text


def test_the_page_names_the_rollouts_that_use_a_budget_and_what_they_have_reserved(portal: PortalUser) -> None:
    submit_form(portal, "budget-set", {"name": "web", "at_most": "1", "per": "everything"})
    rollout = start_rollout(portal)
    page = portal.get("/portal/budgets")
    assert "1 of 1 used up 1 " in page.text
    assert f'href="/portal/rollouts/{rollout}"' in page.html
    portal.world.advance(905)  # its event has started
    (row,) = csv.DictReader(io.StringIO(portal.get("/portal/budgets?as=csv").content.decode()))
    assert (row["in_use"], row["reserved"], row["rollouts"]) == ("1", "0", rollout)
    assert row["budget"] == "web"


def test_a_stopped_vm_uses_a_budget_without_a_rollout(portal: PortalUser) -> None:
    submit_form(portal, "budget-set", {"name": "all", "at_most": "50%"})
    portal.api.post("/requests", {"operation": "power-off", "vms": ["db"]})
    portal.world.settle()
    (budget,) = portal.get("/portal/budgets?as=json").json["budgets"]
    (row,) = budget["rows"]
    assert (row["out_text"], row["group"]["reserved"], row["group"]["rollouts"]) == ("db", 0, [])


def test_the_link_to_change_a_budget_fills_in_its_form(portal: PortalUser) -> None:
    portal.api.post("/budgets", {"name": "scopes", "max_percent": 40, "per": "scope"})
    page = portal.get("/portal/budgets")
    assert "/portal/forms/budget-set?name=scopes&amp;at_most=40%25&amp;per=scope" in page.html
    form = portal.get("/portal/forms/budget-set?name=scopes&at_most=40%25&per=scope")
    assert 'value="scopes"' in form.html
    assert '<option value="scope" selected>' in form.html
    replaced = confirm(portal, "budget-set", {"name": "scopes", "at_most": "2", "per": "scope"})
    assert "It replaces the budget of this name, which allows at most 40 % of the VMs of each scope" in replaced.text


def test_a_budget_is_removed_after_a_confirmation(portal: PortalUser) -> None:
    portal.api.post("/budgets", {"name": "all", "max_vms": 1})
    asked = portal.get("/portal/forms/budget-remove?name=all")
    assert 'The budget "all" (at most 1 VM out of service at once) is removed.' in asked.text
    assert portal.get("/portal/budgets?as=json").json["budgets"]
    shown = submit_form(portal, "budget-remove", {"name": "all"})
    assert "The budget is removed." in shown.text
    assert "There are no budgets." in shown.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "all", "at_most": "0"}, "a budget of 0 would keep every rollout waiting forever"),
        ({"name": "all", "at_most": "many"}, "'many' is not a limit"),
        ({"name": "all", "at_most": ""}, "'' is not a limit"),
        ({"name": "all", "at_most": "101%"}, "101 % of the VMs are more than all of them"),
        ({"name": "all", "at_most": "1", "per": "tag"}, "needs the name of that tag"),
        ({"name": "all", "at_most": "1", "location": "mars"}, "no VM is in location 'mars'"),
        ({"at_most": "1"}, "name"),
    ],
)
def test_a_wrong_budget_is_explained_above_the_form_and_changes_nothing(
    portal: PortalUser, fields: dict[str, str], message: str
) -> None:
    before = portal.api.stored()
    page = portal.post(form_path("budget-set"), fields)
    assert page.status == 400
    assert message in page.text
    assert portal.api.stored() == before


def test_users_who_may_not_read_everything_have_no_page_of_budgets(portal: PortalUser) -> None:
    user = portal.with_role("Operator", DB)
    assert user.request("GET", "/portal/budgets").status == 403
    assert user.request("GET", "/portal/standing-order").status == 403
    assert "/portal/budgets" not in user.get("/portal/rollouts").html


def test_readers_see_budgets_and_cannot_set_them(portal: PortalUser) -> None:
    portal.api.post("/budgets", {"name": "all", "max_vms": 1})
    reader = portal.with_role("Reader", "/")
    page = reader.get("/portal/budgets")
    assert "all 1 VM all VMs" in page.text
    assert "budget-set" not in page.html
    assert reader.request("GET", form_path("budget-set")).status == 403
    assert reader.post(form_path("budget-remove"), {"name": "all", "confirmed": "yes"}).status == 403
