"""What axe-core, an accessibility checker, finds on a page."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

BAD = ("serious", "critical")


def accessibility_violations(page: Page) -> list[str]:
    """The serious violations that axe-core finds."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {[node['target'] for node in one['nodes']][:5]}"
        for one in found
        if one["impact"] in BAD
    ]
