"""The labels of the timeline are legible: no text touches another text, or the line of the current time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import ARTEFACTS, DESKTOP, FLEET, PHONE, BrowserUser
from tests.browser.large_fleet import LARGE_FLEET, populate_large_fleet
from tests.support.web_service import WebService, open_web_service

pytestmark = pytest.mark.portal
TABLET = {"width": 800, "height": 1000}
# Boxes of all visible texts of the chart, with what they say; and the box of the line of the current time.
BOXES = """() => {
  const chart = document.getElementById("chart");
  chart.scrollTop = 0;
  const frame = chart.getBoundingClientRect();
  const texts = chart.querySelectorAll(
    ".corner, .labels .band, .event-row a, .event-row time, .event-row .what, .axis text");
  const box = (element) => {
    let rectangle = element.getBoundingClientRect();
    if (!(element instanceof SVGElement)) {
      const range = document.createRange();
      range.selectNodeContents(element);
      const inner = range.getBoundingClientRect();
      rectangle = {
        left: Math.max(rectangle.left, inner.left), right: Math.min(rectangle.right, inner.right),
        top: Math.max(rectangle.top, inner.top), bottom: Math.min(rectangle.bottom, inner.bottom),
      };
    }
    const { left, right, top, bottom } = rectangle;
    return { text: element.textContent, left, right, top, bottom };
  };
  const seen = ({ left, right, top, bottom }) => right > left && bottom > top && top < frame.bottom;
  return { texts: [...texts].map(box).filter(seen), now: box(chart.querySelector(".plot .now")), frame: box(chart) };
}"""


@pytest.fixture(scope="module", params=["13", "3000"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, WebService]]:
    """A lab with past and pending events, of a small and of a large fleet."""
    fleet = FLEET if request.param == "13" else LARGE_FLEET
    with open_web_service(tmp_path_factory.mktemp("labels"), fleet=fleet) as console:
        if request.param == "13":
            populate_small_fleet(console)
        else:
            populate_large_fleet(console)
        yield request.param, console


def populate_small_fleet(console: WebService) -> None:
    service = console.service
    for vm in ("db-0", "web-0"):
        service.poll(vm)
    for _ in range(2):  # two events that differ only in their time
        service.api("POST", "/requests", {"operation": "restart", "vms": ["db-0"]})
        console.approve_all("db-0")
        service.advance(300)
    service.api("POST", "/requests", {"operation": "redeploy", "vms": ["db-1"]})
    service.api("POST", "/rollouts", {"impact": "reboot", "scope": "web"})


def overlaps(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(
        one["left"] < other["right"] - 0.5
        and other["left"] < one["right"] - 0.5
        and one["top"] < other["bottom"] - 0.5
        and other["top"] < one["bottom"] - 0.5
    )


def assert_legible(page: Page) -> None:
    found = page.evaluate(BOXES)
    texts = found["texts"]
    assert len(texts) > 5
    crossing = [
        (one["text"], other["text"])
        for number, one in enumerate(texts)
        for other in texts[number + 1 :]
        if overlaps(one, other)
    ]
    assert crossing == []
    assert [text["text"] for text in texts if overlaps(text, found["now"])] == []
    outside = [text["text"] for text in texts if text["right"] > found["frame"]["right"] + 1]
    assert outside == []


@pytest.mark.parametrize(("device", "viewport"), [("desktop", DESKTOP), ("tablet", TABLET), ("phone", PHONE)])
def test_no_text_of_the_timeline_touches_another_or_the_current_time(
    lab: tuple[str, WebService], admin: Callable[..., BrowserUser], device: str, viewport: dict[str, int]
) -> None:
    size, console = lab
    user = admin(console, to="/portal/timeline?span=1h", viewport=viewport)
    page = user.page
    page.screenshot(path=ARTEFACTS / f"timeline-labels-{size}-{device}.png")
    centre = float(page.locator("#timeline").get_attribute("data-centre") or 0)
    for span in ("5m", "15m", "1h", "6h", "1d", "7d", "14d"):
        assert_legible(user.go(f"/portal/timeline?span={span}"))
    for seconds in (130, 400):  # other ticks are near the edges, where texts are cut off most easily
        assert_legible(user.go(f"/portal/timeline?span=1h&at={centre + seconds}"))


def test_events_of_one_scope_have_different_labels(
    lab: tuple[str, WebService], admin: Callable[..., BrowserUser]
) -> None:
    _, console = lab
    page = admin(console, to="/portal/timeline?span=1h", viewport=PHONE).page
    rows = page.locator(".labels .event-row")
    labels = [" ".join(text.split()) for text in rows.all_inner_texts()]
    assert len(labels) > 3
    assert len(set(labels)) == len(labels)
    cut = rows.locator("a").evaluate_all(
        "all => all.filter((one) => one.scrollHeight > one.clientHeight + 1).map((one) => one.textContent)"
    )
    assert cut == []
