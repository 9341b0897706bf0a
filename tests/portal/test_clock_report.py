"""After the lab's clock was advanced, the lab page says what happened in between."""

from __future__ import annotations

import html
import re

from tests.portal.conftest import Page, PortalUser
from tests.portal.form_helpers import submit_form


def report(page: Page) -> str:
    """The text of the report, without tags."""
    found = re.search(r'<section class="card jump".*?</section>', page.html, re.S)
    assert found is not None, page.text
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", found[0]))).strip()


def advance(portal: PortalUser, by: str) -> Page:
    return submit_form(portal, "clock-advance", {"by": by})


def test_an_advance_of_the_clock_reports_what_was_started_performed_and_finished(portal: PortalUser) -> None:
    (event,) = portal.api.restart_of("db")
    page = advance(portal, "1h")
    text = report(page)
    assert "Clock advanced by 1 h by local user ann." in text
    for count in ("started 1", "performed 1", "finished 1"):
        assert count in text
    assert f'href="/portal/events/{event["id"]}"' in page.html
    assert 'href="/portal/vms/sub/lab/db"' in page.html
    assert "published" not in text, "that was before"
    assert re.search(r'href="/portal/history\?after=\d+"', page.html)


def test_an_advance_over_a_rollout_reports_every_wave(portal: PortalUser) -> None:
    portal.api.post("/rollouts", {"impact": "reboot", "scope": "web"})
    text = report(advance(portal, "1d"))
    assert "published 2" in text
    assert "finished 3" in text
    assert "completed 1" in text


def test_an_advance_in_which_nothing_happens_says_so(portal: PortalUser) -> None:
    assert "Nothing became due." in report(advance(portal, "1m"))


def test_a_long_report_is_cut_and_leads_to_the_history(portal: PortalUser) -> None:
    for _ in range(12):
        portal.api.restart_of("db")
        portal.world.advance(3600)
    page = portal.get("/portal/lab?after=0&until=1000&done=clock-advance")
    assert "more. All entries in the history" in report(page)
    assert page.html.count("<li><time") == 50


def test_the_lab_page_has_no_report_without_an_advance(portal: PortalUser) -> None:
    assert 'class="card jump"' not in portal.get("/portal/lab").html
    assert 'class="card jump"' not in portal.get("/portal/lab?done=clock-speed").html
