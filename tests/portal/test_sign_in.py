"""Signing in with a client's secret: who is accepted, who is rejected, and where it redirects."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from tests.portal.http_browser import Browser, PortalService
from tests.support.operator_api import Api


@pytest.fixture
def service(api_of: Callable[..., Api]) -> PortalService:
    return PortalService(api_of())


@pytest.fixture
def browser(service: PortalService) -> Browser:
    return Browser(service)


def test_a_user_without_a_session_is_redirected_to_sign_in_and_back(service: PortalService, browser: Browser) -> None:
    secret = service.add_client()
    sent = browser.get("/portal/events/abc?as=json")
    assert (sent.status, sent.headers["location"]) == (303, "/portal/sign-in?to=%2Fportal%2Fevents%2Fabc%3Fas%3Djson")
    form = browser.get(sent.headers["location"])
    assert 'name="to" value="/portal/events/abc?as=json"' in form.html
    to = {"to": "/portal/events/abc?as=json"}
    page = browser.post("/portal/sign-in", {"client_id": "ann", "secret": secret, **to})
    assert (page.status, page.headers["location"]) == (303, "/portal/events/abc?as=json")
    assert browser.user_name() == "client ann"


def test_the_sign_in_page_proposes_the_administrator_and_never_shows_a_secret(browser: Browser) -> None:
    assert 'name="client_id" value="admin"' in browser.get("/portal/sign-in").html
    assert "typed-by-hand" not in browser.post("/portal/sign-in", {"client_id": "a", "secret": "typed-by-hand"}).html


@pytest.mark.parametrize("client_id", ["ann", "nobody", "<script>"])
def test_a_wrong_secret_is_rejected_in_the_words_of_the_token_endpoint(
    service: PortalService, browser: Browser, client_id: str
) -> None:
    service.add_client()
    page = browser.post("/portal/sign-in", {"client_id": client_id, "secret": "wrong"})
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": "wrong"}
    token = Browser(service, "https://localhost:8443").post("/adfs/oauth2/token", form)
    message, _, _ = token.json["error_description"].removeprefix("AADSTS7000215: ").rpartition(": ")
    assert (page.status, token.status) == (401, 401)
    assert f"client {client_id!r} does not exist, or this is not its secret" in message
    assert f"{message}: ask an administrator which clients exist" in page.text
    assert "<script>" not in page.html
    assert browser.cookie_jar == {}


def test_a_client_id_may_be_in_any_case_and_surrounded_by_spaces(service: PortalService, browser: Browser) -> None:
    secret = service.add_client()
    browser.signed_in(" Ann ", f" {secret}\n")
    assert browser.user_name() == "client ann"


def test_the_sign_in_page_redirects_a_signed_in_user(service: PortalService, browser: Browser) -> None:
    browser.signed_in("ann", service.add_client())
    page = browser.get("/portal/sign-in?to=/portal/timeline")
    assert (page.status, page.headers["location"]) == (303, "/portal/timeline")


ELSEWHERE = [
    "//evil.example",
    "https://evil.example/portal/",
    "https:evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/portal/\\..\\..\\\\evil.example",
    "/portalevil",
    "/forewarn/v1/clock",
    "/portal/\r\nSet-Cookie: a=b",
    "/portal/\t/evil.example",
    "javascript:alert(1)",
    "/portal/sign-out",
    "/portal/sign-in/once/abc",
    " /portal/",
    "",
]


@pytest.mark.parametrize("to", ELSEWHERE)
def test_a_sign_in_redirects_to_portal_pages_only(service: PortalService, browser: Browser, to: str) -> None:
    secret = service.add_client()
    assert 'name="to" value="/portal/"' in browser.get(f"/portal/sign-in?to={quote(to)}").html
    page = browser.post("/portal/sign-in", {"client_id": "ann", "secret": secret, "to": to})
    assert (page.status, page.headers["location"]) == (303, "/portal/")


@pytest.mark.parametrize("to", ["/portal", "/portal/", "/portal?a=b", "/portal/vms/lab/web-0?as=csv", "/portal/hosts"])
def test_a_sign_in_redirects_to_any_portal_page(service: PortalService, browser: Browser, to: str) -> None:
    page = browser.post("/portal/sign-in", {"client_id": "ann", "secret": service.add_client(), "to": to})
    assert page.headers["location"] == to


FOREIGN = [
    pytest.param({"origin": "https://evil.example"}, id="another site"),
    pytest.param({"origin": "http://localhost:3000"}, id="another port"),
    pytest.param({"origin": "null"}, id="no origin"),
    pytest.param({"sec-fetch-site": "cross-site"}, id="announced as another site"),
    pytest.param({"sec-fetch-site": "same-site"}, id="announced as another port"),
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_another_site_cannot_sign_a_user_in(service: PortalService, browser: Browser, headers: dict[str, str]) -> None:
    """Else a site could make users work under its own account without noticing."""
    page = browser.post("/portal/sign-in", {"client_id": "ann", "secret": service.add_client()}, headers)
    assert (page.status, browser.cookie_jar) == (403, {})
    assert "another site sent this request" in page.text


def test_a_sign_in_form_that_is_too_large_or_no_form_is_rejected(browser: Browser) -> None:
    assert browser.post("/portal/sign-in", {"secret": "x" * 70_000}).status == 400
    page = browser.send("POST", "/portal/sign-in", b'{"client_id": "ann"}', {"content-type": "application/json"})
    assert (page.status, "the request is not a form" in page.text) == (400, True)


def test_client_secrets_are_rejected_with_an_external_issuer(api_of: Callable[..., Api]) -> None:
    service = PortalService(api_of(), issuer_url="https://login.example")
    secret = service.add_client()
    browser = Browser(service)
    page = browser.post("/portal/sign-in", {"client_id": "ann", "secret": secret})
    assert (page.status, browser.cookie_jar) == (401, {})
    assert "client secrets do not sign in here: sign in at 'https://login.example'" in page.text
    shown = browser.get("/portal/sign-in")
    assert 'name="secret"' not in shown.html
    assert "to set oidc_client_id" in shown.text
