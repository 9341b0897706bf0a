"""What holds for every page: the frame, refusals, and what becomes of paths that lead nowhere."""

from __future__ import annotations

from tests.console.portal.conftest import Visitor


def test_the_root_leads_to_the_portal(portal: Visitor) -> None:
    page = portal.visit("GET", "/")
    assert (page.status, page.headers["location"]) == (307, "/portal/")


def test_a_path_that_is_no_page_is_told_within_the_frame(portal: Visitor) -> None:
    page = portal.visit("GET", "/portal/nowhere")
    assert page.status == 404
    assert "/portal/nowhere is no page here: start at the fleet" in page.text
    assert "local user ann" in page.text
