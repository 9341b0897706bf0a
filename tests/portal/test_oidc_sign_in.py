"""Signing in at an external issuer: the redirects, and every response that must be rejected."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from forewarn.auth.code_flow import AuthorizationCodeFlow, PendingSignIn
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.base.clock import read_real_time
from forewarn.errors import Unauthenticated, Unavailable
from tests.portal.conftest import Page
from tests.portal.http_browser import ORIGIN, Browser, PortalService
from tests.support.oidc_issuer import (
    AUTHORIZE_PATH,
    DISCOVERY_PATH,
    LOOPBACK_CLIENT,
    TOKEN_PATH,
    AuthorizationCodes,
    OidcIssuer,
)
from tests.support.operator_api import Api

BEGIN = "/portal/sign-in/issuer?to=/portal/timeline"
BACK = "/portal/sign-in/callback"
AGAIN = "this sign-in was started in another browser, or more than ten minutes ago: sign in again"


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    with OidcIssuer() as issuer:
        yield issuer


@pytest.fixture
def service(api_of: Callable[..., Api], issuer: OidcIssuer) -> PortalService:
    return PortalService(api_of(), issuer_url=issuer.url, client_id=issuer.authorization.client_id)


@pytest.fixture
def browser(service: PortalService) -> Browser:
    return Browser(service)


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given: Any) -> None:
        return None


def sign_in_at_issuer(page: Page) -> str:
    """Signs in at the issuer; returns the path to which it redirects the browser."""
    try:
        urllib.request.build_opener(_Stay).open(page.headers["location"], timeout=10)
    except HTTPError as answer:
        with answer:
            return answer.headers["Location"].removeprefix(ORIGIN)
    raise AssertionError("the issuer kept the browser")


def come_back(browser: Browser, target: str) -> Page:
    """Returns from another site as a browser does: first without cookies, then by the refresh of our page."""
    cookie_jar, browser.cookie_jar = browser.cookie_jar, {}
    page = browser.get(target)
    assert (page.status, browser.cookie_jar) == (200, {}), page.text
    browser.cookie_jar = cookie_jar
    found = page.html.partition("0; url=")[2].partition('"')[0].replace("&amp;", "&")
    return browser.get(found)


def assert_rejected(browser: Browser, page: Page, sentence: str) -> None:
    assert page.status in (400, 401), page.text
    assert sentence in page.text
    assert browser.user_name() == ""


def test_a_user_signs_in_at_the_issuer_and_returns_to_their_page(
    service: PortalService, browser: Browser, issuer: OidcIssuer
) -> None:
    shown = browser.get("/portal/sign-in?to=/portal/timeline")
    assert f"Sign in with {issuer.url}" in shown.text
    assert "/portal/sign-in/issuer?to=%2Fportal%2Ftimeline" in shown.html
    left = browser.get(BEGIN)
    assert left.status == 303
    page = come_back(browser, sign_in_at_issuer(left))
    assert (page.status, page.headers["location"]) == (303, "/portal/timeline")
    assert browser.user_name() == "ann@example.org (oidc)"
    assert list(browser.cookie_jar) == ["forewarn-c0ffee00"]
    service.restart()
    assert browser.user_name() == "ann@example.org (oidc)"


def test_the_authorization_request_follows_the_standard(browser: Browser, issuer: OidcIssuer) -> None:
    address = urlsplit(browser.get(BEGIN).headers["location"])
    query = {name: text for name, (text,) in parse_qs(address.query).items()}
    assert f"{address.scheme}://{address.netloc}{address.path}" == issuer.url + AUTHORIZE_PATH
    assert query.pop("redirect_uri") == ORIGIN + BACK
    assert len({query.pop(name) for name in ("state", "nonce", "code_challenge")}) == 3
    assert query == {
        "response_type": "code",
        "client_id": "forewarn-portal",
        "scope": "openid profile email",
        "code_challenge_method": "S256",
    }


@pytest.mark.parametrize(
    ("person", "principal"),
    [
        ({"sub": "ann"}, "oidc:ann"),
        ({"sub": "pairwise", "oid": "object", "tid": "t", "preferred_username": "ann@example.org"}, "oidc:object"),
        ({"sub": "object", "oid": "object", "tid": "t", "azp": "forewarn-portal"}, "oidc:object"),
    ],
    ids=["sub", "oid", "like an app"],
)
def test_a_grant_counts_in_the_portal_as_in_the_api(
    service: PortalService, browser: Browser, issuer: OidcIssuer, person: dict[str, Any], principal: str
) -> None:
    issuer.authorization.claims = person
    come_back(browser, sign_in_at_issuer(browser.get(BEGIN)))
    page = browser.get("/portal/")
    asking = f"ask an administrator for one (`forewarn access grant ROLE --to-external {principal[5:]}`)"
    assert (page.status, asking in page.text) == (403, True)
    granted = service.api.post("/access/grants", {"role": "Reader", "principal": principal, "resource": "/"})
    assert browser.get("/portal/").status == 200
    claims = {"aud": "api://forewarn", "exp": read_real_time() + 60, **person}
    headers = {"authorization": f"Bearer {issuer.token(claims)}"}
    over_tls = Browser(service, "https://localhost:8443")
    assert over_tls.get("/forewarn/v1/clock", headers).status == 200
    service.api.delete(f"/access/grants/{granted['id']}")
    assert browser.get("/portal/").status == 403


def test_a_denial_at_the_issuer_is_shown(browser: Browser, issuer: OidcIssuer) -> None:
    issuer.authorization.denial = "access_denied"
    page = come_back(browser, sign_in_at_issuer(browser.get(BEGIN)))
    assert_rejected(browser, page, f"issuer {issuer.url!r} did not sign you in ('the person said no'): try again")


def test_the_state_of_another_browser_is_rejected(service: PortalService, browser: Browser) -> None:
    """A sign-in of another browser must not finish here: the user would work under another name."""
    theirs = sign_in_at_issuer(Browser(service).get(BEGIN))
    browser.get(BEGIN)
    assert_rejected(browser, come_back(browser, theirs), AGAIN)


@pytest.mark.parametrize("state", ["", "x", "é"])
def test_a_changed_state_is_rejected(browser: Browser, state: str) -> None:
    data = dict(parse_qsl(urlsplit(sign_in_at_issuer(browser.get(BEGIN))).query))
    assert_rejected(browser, come_back(browser, f"{BACK}?{urlencode({**data, 'state': state})}"), AGAIN)


def test_a_sign_in_cannot_finish_in_a_browser_that_did_not_start_it(service: PortalService, browser: Browser) -> None:
    assert_rejected(Browser(service), come_back(Browser(service), sign_in_at_issuer(browser.get(BEGIN))), AGAIN)


def test_a_code_works_once_even_with_copied_cookies(service: PortalService, browser: Browser) -> None:
    back = sign_in_at_issuer(browser.get(BEGIN))
    thief = Browser(service)
    thief.cookie_jar = dict(browser.cookie_jar)
    assert come_back(browser, back).status == 303
    assert_rejected(Browser(service), come_back(browser, back), AGAIN)
    assert_rejected(thief, come_back(thief, back), "did not confirm your identity ('invalid_grant'): sign in again")


def test_a_code_of_another_sign_in_is_rejected(service: PortalService, browser: Browser) -> None:
    """It was issued for another verifier."""
    code = dict(parse_qsl(urlsplit(sign_in_at_issuer(Browser(service).get(BEGIN))).query))["code"]
    data = dict(parse_qsl(urlsplit(sign_in_at_issuer(browser.get(BEGIN))).query))
    assert_rejected(browser, come_back(browser, f"{BACK}?{urlencode({**data, 'code': code})}"), "'invalid_grant'")


WRONG = [
    pytest.param({"nonce": "another"}, "the issuer belongs to another sign-in", id="nonce"),
    pytest.param({"nonce": None}, "the issuer belongs to another sign-in", id="no nonce"),
    pytest.param({"aud": "another-client"}, "not for this service", id="audience"),
    pytest.param({"aud": ["forewarn-portal", "x"], "azp": "x"}, "the sign-in was for 'x'", id="authorized party"),
    pytest.param({"iss": "https://evil.example"}, "the token was issued by 'https://evil.example'", id="issuer"),
    pytest.param({"exp": 1000}, "the token expired", id="expired"),
    pytest.param({"sub": None}, "names no owner", id="nobody's"),
]


@pytest.mark.parametrize(("overrides", "sentence"), WRONG)
def test_a_token_for_another_sign_in_is_rejected(
    browser: Browser, issuer: OidcIssuer, overrides: dict[str, Any], sentence: str
) -> None:
    issuer.authorization.claim_overrides = overrides
    assert_rejected(browser, come_back(browser, sign_in_at_issuer(browser.get(BEGIN))), sentence)


def test_a_token_with_an_unknown_signature_is_rejected(browser: Browser, issuer: OidcIssuer) -> None:
    issuer.keys["first"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)  # not what is published
    assert_rejected(browser, come_back(browser, sign_in_at_issuer(browser.get(BEGIN))), "signature is not valid")


def test_an_unreachable_issuer_is_reported_and_retried_after_a_pause(
    service: PortalService, browser: Browser, issuer: OidcIssuer
) -> None:
    issuer.is_down = True
    page = browser.get(BEGIN)
    assert (page.status, f"sign-in at issuer {issuer.url!r} does not work now" in page.text) == (503, True)
    issuer.is_down = False
    assert browser.get(BEGIN).status == 503  # repeated clicks do not flood the issuer
    assert issuer.requested_paths == [DISCOVERY_PATH]
    service.clock_offset_s += 6
    assert browser.get(BEGIN).status == 303


def test_a_failing_token_endpoint_is_reported(browser: Browser, issuer: OidcIssuer) -> None:
    left = browser.get(BEGIN)
    issuer.answers[TOKEN_PATH] = 500, b"oops"
    page = come_back(browser, sign_in_at_issuer(left))
    assert (page.status, "answered 500, so the sign-in failed: try again" in page.text) == (503, True)


@pytest.mark.parametrize("endpoint", ["http://evil.example/authorize", "javascript:alert(1)", ""])
def test_an_authorization_endpoint_without_https_is_rejected(
    browser: Browser, issuer: OidcIssuer, endpoint: str
) -> None:
    known = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys", "token_endpoint": issuer.url + TOKEN_PATH}
    issuer.answers[DISCOVERY_PATH] = 200, json.dumps({**known, "authorization_endpoint": endpoint}).encode()
    page = browser.get(BEGIN)
    assert (page.status, "neither https nor on loopback" in page.text) == (503, True)


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_a_sign_in_at_the_issuer_returns_to_portal_pages_only(browser: Browser, to: str) -> None:
    page = come_back(browser, sign_in_at_issuer(browser.get(f"/portal/sign-in/issuer?{urlencode({'to': to})}")))
    assert page.headers["location"] == "/portal/"


def test_markup_in_callback_parameters_is_escaped(browser: Browser) -> None:
    data = {"state": "x", "error": '"><script>alert(1)</script>', "other": "left out"}
    page = browser.get(f"{BACK}?{urlencode(data)}")
    assert "<script>" not in page.html
    assert "left out" not in page.html
    assert page.headers["referrer-policy"] == "no-referrer"


def test_sessions_of_an_issuer_end_when_it_is_no_longer_used(service: PortalService, browser: Browser) -> None:
    come_back(browser, sign_in_at_issuer(browser.get(BEGIN)))
    assert browser.user_name() != ""
    browser.service = PortalService(service.api)
    assert browser.user_name() == ""


def test_sessions_of_clients_end_when_an_issuer_is_used(service: PortalService) -> None:
    before = PortalService(service.api)
    browser = Browser(before).signed_in("ann", before.add_client())
    browser.service = service
    assert browser.user_name() == ""


@pytest.mark.parametrize("secret", ["s3cret/+&é", ""])
def test_a_confidential_client_sends_its_secret_to_redeem_a_code(issuer: OidcIssuer, secret: str) -> None:
    issuer.authorization.secret = "s3cret/+&é"
    code_flow = AuthorizationCodeFlow(
        ExternalIssuer(issuer.url, ["x"], client=LOOPBACK_CLIENT), "forewarn-portal", secret
    )
    flow, now = PendingSignIn.start(), read_real_time()

    async def scenario() -> str:
        address = await code_flow.authorization_url(flow, "http://localhost/back", now)
        data = dict(parse_qsl(urlsplit(issuer.authorization.authorize(urlsplit(address).query)).query))
        return (await code_flow.redeem_code(data["code"], flow, "http://localhost/back", now)).primary_id

    if secret:
        assert asyncio.run(scenario()) == "oidc:ann"
    else:
        with pytest.raises(Unauthenticated, match="invalid_client"):
            asyncio.run(scenario())


def test_the_metadata_of_an_issuer_is_cached_while_it_is_down(issuer: OidcIssuer) -> None:
    code_flow = AuthorizationCodeFlow(ExternalIssuer(issuer.url, ["x"], client=LOOPBACK_CLIENT), "forewarn-portal")

    async def scenario() -> None:
        await code_flow.authorization_url(PendingSignIn.start(), "http://localhost/back", 0.0)
        issuer.is_down = True
        assert await code_flow.authorization_url(PendingSignIn.start(), "http://localhost/back", 7200.0)
        with pytest.raises(Unavailable):
            await code_flow.redeem_code("code", PendingSignIn.start(), "http://localhost/back", 7201.0)

    asyncio.run(scenario())


def test_the_number_of_concurrent_redemptions_is_bounded(issuer: OidcIssuer) -> None:
    code_flow = AuthorizationCodeFlow(ExternalIssuer(issuer.url, ["x"], client=LOOPBACK_CLIENT), "forewarn-portal")
    may_answer = threading.Event()

    class Slow(AuthorizationCodes):
        def redeem(self, body: bytes, authorization: str) -> Any:
            assert may_answer.wait(20)
            return super().redeem(body, authorization)

    issuer.authorization = Slow()

    async def bring() -> None:
        with pytest.raises(Unauthenticated):
            await code_flow.redeem_code("no code of theirs", PendingSignIn.start(), "http://localhost/back", 0.0)

    async def scenario() -> str:
        await code_flow.authorization_url(PendingSignIn.start(), "http://localhost/back", 0.0)
        redemptions = [asyncio.create_task(bring()) for _ in range(100)]
        while issuer.requested_paths.count(TOKEN_PATH) < 3:
            await asyncio.sleep(0)
        done = await asyncio.to_thread(lambda: "other work has its thread")
        assert issuer.requested_paths.count(TOKEN_PATH) == 3
        may_answer.set()
        await asyncio.gather(*redemptions)
        return done

    assert asyncio.run(scenario()) == "other work has its thread"


def test_a_callback_without_a_code_is_rejected_without_asking_the_issuer(browser: Browser, issuer: OidcIssuer) -> None:
    state = parse_qs(urlsplit(browser.get(BEGIN).headers["location"]).query)["state"][0]
    assert_rejected(browser, come_back(browser, f"{BACK}?state={state}"), "sent you back without a code: sign in again")
    assert TOKEN_PATH not in issuer.requested_paths
