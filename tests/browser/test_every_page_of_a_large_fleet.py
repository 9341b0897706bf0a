"""Screenshots of every page of a fleet of 3,000 VMs, stored in tests/browser/artefacts (`make test-portal-long`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.accessibility import accessibility_violations
from tests.browser.conftest import ARTEFACTS, DESKTOP, PHONE, BrowserUser, plain_base, record_errors
from tests.browser.large_fleet import LARGE_FLEET, populate_large_fleet
from tests.browser.test_every_page import PAGES, PopulatedLab
from tests.support.web_service import open_web_service

pytestmark = [pytest.mark.portal_long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PopulatedLab]:
    with open_web_service(tmp_path_factory.mktemp("large"), fleet=LARGE_FLEET) as console:
        names = populate_large_fleet(console)
        context = browser.new_context()
        BrowserUser(context.new_page(), plain_base(console)).sign_in(*console.admin_credentials)
        state = context.storage_state()
        context.close()
        yield PopulatedLab(plain_base(console), state, names)


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize(("device", "viewport"), [("desktop", DESKTOP), ("phone", PHONE)])
def test_every_page_of_a_large_fleet_fits_its_window(
    browser: Browser, lab: PopulatedLab, colours: Any, device: str, viewport: Any
) -> None:
    errors: list[str] = []
    context = browser.new_context(storage_state=lab.state, viewport=viewport, color_scheme=colours)
    page = context.new_page()
    record_errors(page, errors)
    too_wide, violations = [], {}
    for name in PAGES:
        page.goto(lab.url(name))
        page.screenshot(path=ARTEFACTS / f"3000-{name}-{colours}-{device}.png", full_page=True)
        if not page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
            too_wide.append(name)
        if (colours, device) == ("light", "desktop") and (found := accessibility_violations(page)):
            violations[name] = found
    context.close()
    assert too_wide == []
    assert violations == {}
    assert [error for error in errors if "404" not in error] == []
