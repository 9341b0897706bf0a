"""What the tests in a real browser share: a lab with its console, and Debian's chromium that looks at it.

They run in an environment that has what drives a browser (`make test-portal`), and are not even read elsewhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.web_service import WebService, open_web_service

if find_spec("playwright"):
    from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

collect_ignore_glob = [] if find_spec("playwright") else ["test_*.py"]

ARTEFACTS = Path(__file__).parent / "artefacts"
WITHIN_MS = 20_000
# Chromium as root has no sandbox; what it would fetch for itself, it does not.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
FLEET = """
[defaults]
resource_group = "shop"
location = "westeurope"

[[hosts]]
name = "host-{n}"
count = 6

[[availability_sets]]
name = "web"
update_domains = 3
fault_domains = 3

[[vms]]
name = "web-{n}"
count = 6
availability_set = "web"

[[vms]]
name = "db-{n}"
count = 2
tags = { note = "<img src=x onerror=window.pwned=1>" }

[[scale_sets]]
name = "spots"
count = 2
priority = "Spot"

[[vms]]
name = "other"
resource_group = "elsewhere"
"""


@dataclass
class Looker:
    """Somebody at a browser, and what it complained about meanwhile."""

    page: Page
    base: str
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> Page:
        self.page.goto(f"{self.base}{path}")
        return self.page

    def sign_in(self, client_id: str, secret: str, to: str = "/portal/") -> Page:
        self.go(to)
        self.page.get_by_label("Client").fill(client_id)
        self.page.get_by_label("Secret").fill(secret)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{self.base}{to}")
        return self.page

    def forgive(self) -> None:
        """What it complained about until now was meant to go wrong."""
        self.complaints.clear()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: `apt-get install chromium`")
    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebService]:
    """A lab that tests only look at."""
    with open_web_service(tmp_path_factory.mktemp("shared"), fleet=FLEET) as console:
        yield console


@pytest.fixture
def console(tmp_path: Path) -> Iterator[WebService]:
    """A lab of the test's own."""
    with open_web_service(tmp_path, fleet=FLEET) as console:
        yield console


@pytest.fixture
def somebody(browser: Browser) -> Iterator[Callable[..., Looker]]:
    """Opens a browser window at a console, of its own cookies; nothing may be complained about in any of them."""
    with ExitStack() as stack:
        lookers: list[Looker] = []

        def given(console: WebService, **options: Any) -> Looker:
            looker = stack.enter_context(_looking(browser, plain_base(console), options))
            lookers.append(looker)
            return looker

        yield given
        assert [looker.complaints for looker in lookers] == [[] for _ in lookers]


@pytest.fixture
def admin(somebody: Callable[..., Looker]) -> Callable[..., Looker]:
    """Somebody who is signed in and may do everything."""

    def given(console: WebService, to: str = "/portal/", **options: Any) -> Looker:
        looker = somebody(console, **options)
        looker.sign_in(*console.admin_credentials, to=to)
        return looker

    return given


def plain_base(console: WebService) -> str:
    """The console's address for a browser on the same machine, without TLS."""
    return f"http://localhost:{urlsplit(console.base_url).port}"


@contextmanager
def _looking(browser: Browser, base: str, options: dict[str, Any]) -> Iterator[Looker]:
    context: BrowserContext = browser.new_context(**{"viewport": DESKTOP, **options})
    context.set_default_timeout(WITHIN_MS)
    try:
        looker = Looker(context.new_page(), base)
        watch(looker.page, looker.complaints)
        yield looker
    finally:
        context.close()


def watch(page: Page, complaints: list[str]) -> None:
    page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
    page.on("console", lambda said: complaints.append(f"{page.url}: {said.text}") if said.type == "error" else None)


@pytest.fixture(scope="session", autouse=True)
def _artefacts() -> None:
    os.makedirs(ARTEFACTS, exist_ok=True)
