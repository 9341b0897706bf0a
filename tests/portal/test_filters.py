"""A filter with a value that does not exist is answered on its page, with the values that do."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import pytest

from forewarn.core.resource_ids import vm_resource_id
from tests.portal.conftest import Page, PortalUser
from tests.support.world import LAB_POLICY, a_host, a_vm


def problem(page: Page) -> str:
    """The text of the answer, without tags."""
    found = re.search(r'<div class="message error filter-problem" role="alert">(.*?)</div>', page.html, re.S)
    assert found is not None, page.text
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", found[1]))).strip()


def suggestion(page: Page) -> str:
    """The address behind `Did you mean`."""
    found = re.search(r'Did you mean <a href="([^"]*)"', page.html)
    assert found is not None, problem(page)
    return html.unescape(found[1])


@pytest.mark.parametrize(
    ("target", "status", "sentence", "nearest"),
    [
        ("/fleet?state=runing", 400, "'runing' is not a state of a VM", "state=running"),
        ("/fleet?state=event+scheduled", 400, "'event scheduled' is not a state of a VM", "state=noticed"),
        ("/fleet?page=7", 400, "Page 7 does not exist: the last one is 1", "page=1"),
        ("/hosts?health=helthy", 400, "'helthy' is not a state of a host", "health=healthy"),
        ("/clients?only=without-handle", 400, "'without-handle' is not a filter of this page", "only=without-handler"),
        ("/timeline?kind=rebot", 400, "'rebot' is not a kind of event", "kind=Reboot"),
        ("/timeline?state=liv", 400, "'liv' is not a state to filter by", "state=live"),
        ("/timeline?vm=wbe-0", 404, "VM 'wbe-0' does not exist", "vm=web-0"),
        ("/timeline?scope=wob", 404, "Scope 'wob' does not exist", "scope=web"),
        ("/timeline?span=99d", 400, "A timeline cannot span '99d'", ""),
        ("/timeline?rollout=zzz", 404, "Rollout 'zzz' does not exist", ""),
        ("/history?vm=wbe-0", 404, "VM 'wbe-0' does not exist", "vm=web-0"),
        ("/history?event=ABCDEF", 404, "Event 'ABCDEF' does not exist", ""),
    ],
)
def test_an_unknown_filter_is_answered_in_place(
    portal: PortalUser, target: str, status: int, sentence: str, nearest: str
) -> None:
    page = portal.request("GET", f"/portal{target}")
    assert page.status == status
    assert problem(page).startswith(sentence)
    assert "Show all" in problem(page)
    assert re.search('<form class="row (search|filters)"', page.html)
    assert "<h1>Not" not in page.html, "it is not an error page"
    assert "did you mean" not in problem(page)
    if nearest:
        assert nearest in suggestion(page)
        assert portal.request("GET", suggestion(page)).status == 200


def test_the_form_keeps_what_was_typed_and_the_other_filters_stay(portal: PortalUser) -> None:
    page = portal.request("GET", "/portal/timeline?vm=wbe-0&kind=Reboot&span=6h")
    assert 'name="vm" size="12" value="wbe-0"' in page.html
    assert suggestion(page) == "/portal/timeline?vm=web-0&kind=Reboot&span=6h"


def test_two_unknown_filters_are_both_answered(portal: PortalUser) -> None:
    page = portal.request("GET", "/portal/timeline?vm=wbe-0&kind=rebot")
    assert page.html.count('class="message error filter-problem"') == 2


def test_no_results_are_shown_beside_an_unknown_filter(portal: PortalUser) -> None:
    portal.api.restart_of("db")
    assert "Reboot of db" not in portal.request("GET", "/portal/timeline?kind=rebot").text
    assert 'class="cell ' not in portal.request("GET", "/portal/fleet?state=runing").html


def test_an_export_with_an_unknown_filter_fails(portal: PortalUser) -> None:
    answer = portal.request("GET", "/portal/timeline?vm=wbe-0&as=json")
    assert answer.status == 404
    assert "content-disposition" not in answer.headers
    assert portal.request("GET", "/portal/fleet?state=runing&as=csv").status == 400


def test_nothing_is_suggested_that_the_user_may_not_see(portal: PortalUser) -> None:
    reader = portal.with_role("Reader", vm_resource_id(portal.world.vm("db")))
    page = reader.request("GET", "/portal/timeline?vm=web-9")
    assert page.status == 404
    assert "web-0" not in page.html
    assert "web" not in problem(reader.request("GET", "/portal/timeline?scope=wob")).replace("'wob'", "")


def test_names_that_contain_the_text_are_offered(portal_of: Callable[..., PortalUser]) -> None:
    vms = [a_vm(f"shop-web-{n}") for n in range(20)]
    portal = portal_of(LAB_POLICY, vms=vms, hosts=[a_host("h1")])
    page = portal.request("GET", "/portal/history?vm=web-1")
    assert "shop-web-1 shop-web-10" in problem(page)
    assert problem(page).count("shop-web-") <= 9


def test_a_page_with_an_unknown_filter_has_live_sections_and_an_error_page_has_none(portal: PortalUser) -> None:
    """refresh.js tells them apart by that: it shows the first, and ignores the second."""
    (event,) = portal.api.restart_of("db")
    for target in ("/timeline?vm=wbe-0", "/clients?only=without-handle", f"/events/{event['id']}?page=99"):
        page = portal.request("GET", f"/portal{target}")
        assert page.status in (400, 404)
        assert "data-live=" in page.html
    for target in ("/events/E0E0E0E0", "/vms/none", "/nothing", "/timeline?unknown=1"):
        page = portal.request("GET", f"/portal{target}")
        assert page.status in (400, 404)
        assert "data-live=" not in page.html
