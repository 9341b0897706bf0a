"""The documentation site, opened as files: search and diagrams work, and nothing is loaded from elsewhere.

`make site` builds it; `.ci/run` does so before these tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.portal
SITE = Path(__file__).parents[2] / "site"
DIAGRAM_PAGES = ["explanation/scheduled-events", "contributing/architecture", "reference/lifecycle"]


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A window in light or dark; the test fails if it loads from elsewhere or logs an error."""
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built: run `make site`")
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    problems: list[str] = []
    opened.on("request", lambda sent: None if is_local(sent.url) else problems.append(sent.url))
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    yield opened
    context.close()
    assert problems == []


def is_local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:", "about:"))


def open_page(page: Page, name: str) -> None:
    page.goto((SITE / f"{name}.html").as_uri())


def test_the_search_finds_a_page_without_a_network(page: Page) -> None:
    open_page(page, "index")
    page.keyboard.press("Control+k")
    page.keyboard.type("troubleshooting")
    # Results follow each letter: Enter opens the selected one, which may still be of the letters before.
    expect(page.get_by_role("option", selected=True)).to_contain_text("Troubleshooting")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Troubleshooting")


@pytest.mark.parametrize("name", DIAGRAM_PAGES)
def test_diagrams_are_drawn_without_a_network(page: Page, name: str) -> None:
    open_page(page, name)
    expect(page.locator("div.diagram svg").first).to_be_visible()
    assert page.locator("pre.diagram").count() == 0
    assert "Syntax error" not in page.locator("main").inner_text()


def test_a_phone_shows_the_home_page_without_scrolling_sideways(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_page(page, "index")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert (
        page.evaluate("""[...document.querySelectorAll(".home *")].filter(part => part.scrollWidth > part.clientWidth
        && getComputedStyle(part).display !== "inline").map(part => part.outerHTML)""")
        == []
    )
