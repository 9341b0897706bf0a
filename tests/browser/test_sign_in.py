"""Signing in with a real browser: from other sites, and without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import BrowserUser
from tests.support.oidc_issuer import OidcIssuer
from tests.support.web_service import WebService, open_web_service

pytestmark = pytest.mark.portal


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    """An issuer at 127.0.0.1, which is another site than localhost."""
    with OidcIssuer() as issuer:
        yield issuer


@pytest.fixture
def outside(tmp_path: Path, issuer: OidcIssuer) -> Iterator[WebService]:
    """A service whose users sign in at the issuer."""
    known: dict[str, Any] = {
        "oidc_issuer": issuer.url,
        "oidc_audience": "api://forewarn",
        "oidc_client_id": issuer.authorization.client_id,
    }
    with open_web_service(tmp_path, **known) as console:
        console.grant("Reader", to="oidc:ann", over="/")
        yield console


@pytest.mark.parametrize("has_scripts", [True, False], ids=["with scripts", "without scripts"])
def test_an_issuer_of_another_site_signs_a_user_in_and_leads_back(
    outside: WebService, issuer: OidcIssuer, new_user: Callable[..., BrowserUser], has_scripts: bool
) -> None:
    user = new_user(outside, java_script_enabled=has_scripts)
    page = user.go("/portal/timeline")
    page.get_by_role("link", name="Sign in with").click()
    page.wait_for_url(f"{user.base}/portal/timeline")
    expect(page.locator(".who")).to_have_text("ann@example.org (oidc)")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(f"{user.base}/portal/sign-in")
    assert page.context.cookies() == []

    issuer.authorization.denial = "access_denied"
    page.get_by_role("link", name="Sign in with").click()
    expect(page.locator(".error")).to_contain_text("did not sign you in")
    user.clear_errors()


def test_a_link_on_another_site_signs_in_once(console: WebService, new_user: Callable[..., BrowserUser]) -> None:
    link = console.service.forewarn("portal").stdout.strip()
    user = new_user(console, java_script_enabled=False)
    page = user.page
    page.set_content(f'<a href="{link}">to the portal</a>')
    page.get_by_role("link").click()
    page.wait_for_url(f"{user.base}/portal/")
    expect(page.locator(".who")).to_have_text("client admin")
    page.goto(link)
    expect(page.locator(".error")).to_contain_text("this sign-in link is not valid")
    user.clear_errors()


def test_a_page_on_another_port_of_this_machine_cannot_write(
    console: WebService, new_user: Callable[..., BrowserUser]
) -> None:
    """Browsers send cookies to all ports of a host: only the origin differs."""
    user = new_user(console)
    page = user.sign_in(*console.admin_credentials)
    token = page.locator("body").get_attribute("data-token")
    with OidcIssuer() as neighbour:
        form = f'<form method="post" action="{user.base}/portal/sign-out"><input name="token" value="{token}"><button>'
        neighbour.answers["/form"] = 200, f"<!doctype html>{form}".encode()
        page.goto(f"{neighbour.url.replace('127.0.0.1', 'localhost')}/form")
        page.get_by_role("button").click()
        expect(page.locator(".error")).to_contain_text("another site sent this request")
    user.clear_errors()
    user.go("/portal/")
    expect(page.locator(".who")).to_have_text("client admin")
