"""The report and the badge of a crash test in a real browser: offline, accessible, readable on a phone, printable.

Screenshots in light and dark, on a desktop and on a phone, are stored in tests/browser/artefacts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from forewarn.crash_test.ci_reports import badge_svg
from forewarn.crash_test.grading import Grade
from forewarn.crash_test.html_report import html_report
from forewarn.crash_test.result import CrashTestResult
from forewarn.crash_test.timeline import Timeline
from forewarn.crash_test.verdict import CaseOutcome, Severity
from tests.browser.accessibility import accessibility_violations
from tests.browser.conftest import ARTEFACTS, DESKTOP, PHONE, record_errors
from tests.crash_test.results import a_case, a_plan, a_result

pytestmark = pytest.mark.portal


def failing_result() -> CrashTestResult:
    """A result with every outcome, long names, hostile text, and everything that limits it."""
    cases = [
        a_case(
            "whom-neighbour",
            CaseOutcome.FAIL,
            severity=Severity.TOUCHES_ANOTHER_VM,
            seen="<img src=https://example.com/x>",
        ),
        a_case("notice-30s", CaseOutcome.FAIL, seen="it was noticed too late, and then it did nothing about it " * 5),
        a_case(
            "survival-a-case-with-a-rather-long-name-that-does-not-fit", CaseOutcome.FAIL, rare=True, seen="x" * 300
        ),
        a_case("cost-at-rest", CaseOutcome.FAIL, severity=Severity.NOISE),
        a_case("reading-unknown", CaseOutcome.UNKNOWN),
        a_case("reading-slow", CaseOutcome.SLOW),
        a_case("reading-pass", CaseOutcome.PASS),
        a_case("reading-other", CaseOutcome.NOT_APPLICABLE),
    ]
    cases = [
        replace(case, demands=(replace(case.demands[0], remedy=f"Change what {case.area} needs."),)) for case in cases
    ]
    plan = replace(a_plan(*cases, prepared="", recovered=""), left_out=80, speed=2.0)
    return a_result(*cases, plan=plan)


RESULTS: dict[str, Callable[[], CrashTestResult]] = {
    "failing": failing_result,
    "passing": lambda: a_result(a_case("notice-30s", CaseOutcome.PASS), a_case("reading-pass", CaseOutcome.PASS)),
    "not-run": lambda: a_result(a_case("notice-30s", CaseOutcome.PASS), timeline=Timeline()),
}


@pytest.fixture(params=RESULTS)
def report(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"{request.param}.html"
    path.write_text(html_report(RESULTS[request.param]()), encoding="utf-8")
    return path


@contextmanager
def opened(browser: Browser, path: Path, **options: Any) -> Iterator[Page]:
    """Open a file in a window; nothing may be logged as an error, and nothing else may be requested."""
    context = browser.new_context(**options)
    page = context.new_page()
    errors: list[str] = []
    requests: list[str] = []
    record_errors(page, errors)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    yield page
    assert errors == []
    assert requests == [path.as_uri()]
    context.close()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize(("device", "viewport"), [("desktop", DESKTOP), ("phone", PHONE)])
def test_the_report_is_accessible_and_fits_the_window(
    browser: Browser, report: Path, colours: str, device: str, viewport: Any
) -> None:
    with opened(browser, report, viewport=viewport, color_scheme=colours) as page:
        page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
        page.screenshot(path=ARTEFACTS / f"crash-test-{report.stem}-{colours}-{device}.png", full_page=True)
        assert accessibility_violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than the window"


def test_the_grade_and_what_to_fix_are_on_the_first_screen(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(html_report(failing_result()), encoding="utf-8")
    with opened(browser, path, viewport=DESKTOP) as page:
        for element in (page.locator("#warnings"), page.locator(".letter"), page.locator(".fixes > li").nth(0)):
            expect(element).to_be_in_viewport()
        expect(page.locator(".letter")).to_have_text("F")
        expect(page.locator("main > .fixes > li")).to_have_count(3)
        expect(page.locator("main > .fixes > li .do").nth(0)).to_have_text("Change what whom needs.")
        for fix in page.locator("main > .fixes > li").all():
            expect(fix.get_by_role("link", name="owner/repository#7")).to_be_visible()


def test_a_case_unfolds_by_keyboard_and_a_link_leads_to_it(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(html_report(failing_result()), encoding="utf-8")
    with opened(browser, path, viewport=DESKTOP) as page:
        case = page.locator("#reading-pass")
        summary = case.locator("> summary")
        expect(case.locator("svg.timeline")).not_to_be_visible()
        summary.focus()
        page.keyboard.press("Enter")
        expect(case.locator("svg.timeline")).to_be_visible()
        page.keyboard.press("Space")
        expect(case.locator("svg.timeline")).not_to_be_visible()
        page.get_by_role("link", name="whom-neighbour: fail").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#whom-neighbour > summary")).to_be_in_viewport()


def test_every_picture_has_a_text_alternative(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        pictures = page.locator("svg:not([aria-hidden=true]), img, canvas").all()
        names = [picture.get_attribute("aria-label") or "" for picture in pictures]
        assert all(len(name) > 40 for name in names)
        assert bool(names) is (report.stem != "not-run")


def test_the_report_can_be_printed(browser: Browser, report: Path) -> None:
    with opened(browser, report, color_scheme="dark") as page:
        pdf = page.pdf(path=ARTEFACTS / f"crash-test-{report.stem}.pdf", format="A4", print_background=True)
        assert pdf.startswith(b"%PDF")
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("grade", Grade)
def test_the_text_of_a_badge_fits_in_it(browser: Browser, tmp_path: Path, grade: Grade) -> None:
    path = tmp_path / "badge.svg"
    path.write_text(badge_svg(grade), encoding="utf-8")
    with opened(browser, path) as page:
        page.screenshot(path=ARTEFACTS / f"crash-test-badge-{grade.name.lower()}.png")
        fits = page.evaluate(
            """() => {
              const [label, grade] = [...document.querySelectorAll("text")].map(text => text.getBBox());
              const edge = document.querySelector("path").getBBox();
              const whole = document.querySelector("rect").getBBox();
              return label.x >= 2 && label.x + label.width <= edge.x - 2
                && grade.x >= edge.x + 2 && grade.x + grade.width <= whole.width - 2;
            }"""
        )
        assert fits
