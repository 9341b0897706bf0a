"""Fixtures of the tests in a real browser: a lab with its portal, and Debian's Chromium.

They run in an environment with Playwright (`make test-portal`), and are not collected elsewhere.
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
# Chromium has no sandbox as root. It must not fetch anything for itself.
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
count = 4
priority = "Spot"

[[vms]]
name = "other"
resource_group = "elsewhere"
"""


@dataclass
class BrowserUser:
    """A user with a browser window, and the errors of its console."""

    page: Page
    base: str
    errors: list[str] = field(default_factory=list)

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

    def clear_errors(self) -> None:
        """Drops the errors so far, which the test expects."""
        self.errors.clear()


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
    """A lab that tests only read."""
    with open_web_service(tmp_path_factory.mktemp("shared"), fleet=FLEET) as console:
        yield console


@pytest.fixture
def console(tmp_path: Path) -> Iterator[WebService]:
    """A lab that only this test uses."""
    with open_web_service(tmp_path, fleet=FLEET) as console:
        yield console


@pytest.fixture
def new_user(browser: Browser) -> Iterator[Callable[..., BrowserUser]]:
    """Opens a browser window with its own cookies. The test fails if any of them logs an error."""
    with ExitStack() as stack:
        users: list[BrowserUser] = []

        def make(console: WebService, **options: Any) -> BrowserUser:
            user = stack.enter_context(_open_browser(browser, plain_base(console), options))
            users.append(user)
            return user

        yield make
        assert [user.errors for user in users] == [[] for _ in users]


@pytest.fixture
def admin(new_user: Callable[..., BrowserUser]) -> Callable[..., BrowserUser]:
    """Opens a browser window of a signed-in administrator, by default with the fleet page."""

    def make(console: WebService, to: str = "/portal/fleet", **options: Any) -> BrowserUser:
        user = new_user(console, **options)
        user.sign_in(*console.admin_credentials, to=to)
        return user

    return make


def plain_base(console: WebService) -> str:
    """The address of the portal for a browser on the same machine, without TLS."""
    return f"http://localhost:{urlsplit(console.base_url).port}"


@contextmanager
def _open_browser(browser: Browser, base: str, options: dict[str, Any]) -> Iterator[BrowserUser]:
    context: BrowserContext = browser.new_context(**{"viewport": DESKTOP, **options})
    context.set_default_timeout(WITHIN_MS)
    try:
        user = BrowserUser(context.new_page(), base)
        record_errors(user.page, user.errors)
        yield user
    finally:
        context.close()


def record_errors(page: Page, errors: list[str]) -> None:
    page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
    page.on(
        "console", lambda message: errors.append(f"{page.url}: {message.text}") if message.type == "error" else None
    )


@pytest.fixture(scope="session", autouse=True)
def _artefacts() -> None:
    os.makedirs(ARTEFACTS, exist_ok=True)
